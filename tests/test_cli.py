"""The command as a whole: lazy, complete, and with the exit codes that are promised."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from taskfactory import InfrastructureError, SpecError, UsageError
from taskfactory.cli import COMMANDS, main
from taskfactory.findings import Finding

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def python(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(TOOLS)}
    return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout


def test_help_lists_every_command_without_importing_any():
    code = """
import sys
from click.testing import CliRunner
from taskfactory.cli import COMMANDS, main
result = CliRunner().invoke(main, ["--help"])
assert result.exit_code == 0, result
for name, (_, text) in COMMANDS.items():
    assert name in result.output and text.split(".")[0][:30] in result.output, name
heavy = {"torch", "pydantic", "jinja2", "rich", "triton", "taskfactory.load"} & set(sys.modules)
assert not heavy, heavy
"""
    python(code)


def test_help_survives_a_missing_module(monkeypatch):
    monkeypatch.setitem(COMMANDS, "ghost", ("taskfactory.cli.ghost:command", "Not there."))
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "Not there." in result.output


@pytest.mark.parametrize("name", [*COMMANDS])
def test_each_command_has_help_with_an_example(name):
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"taskfactory {name}" in result.output
    assert "Example" in result.output


def test_version():
    result = CliRunner().invoke(main, ["--version"])
    assert result.output.startswith("taskfactory, version ")


def test_module_runs():
    env = {**os.environ, "PYTHONPATH": str(TOOLS)}
    done = subprocess.run(
        [sys.executable, "-m", "taskfactory", "-h"], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: taskfactory ")


def test_completion_knows_the_commands():
    env = {**os.environ, "PYTHONPATH": str(TOOLS), "_TASKFACTORY_COMPLETE": "bash_complete"}
    env |= {"COMP_WORDS": "taskfactory va", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "taskfactory"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "plain,validate"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("no such thing"), 2, "no such thing"),
        (SpecError([Finding("TF306", "error", "too much", "a.py", 7, "tol")]), 2, "a.py:7: error TF306 tol"),
        (InfrastructureError("no device"), 3, "no device"),
        (OSError(28, "No space left on device"), 3, "No space left"),
        (RuntimeError("a defect"), 3, "internal error"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.UsageError("bad option"), 2, "bad option"),
    ],
)
def test_errors_become_exit_codes(monkeypatch, error, code, said):
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr("taskfactory.cli.LazyGroup.get_command", lambda *_: failing)
    result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""


def test_unknown_command():
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "nonsense" in result.stderr
