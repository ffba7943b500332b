"""`taskfactory show`: Markdown when piped, laid out on a terminal."""

import sys

import pytest
from click.testing import CliRunner

from taskfactory.cli import main, show
from taskfactory.load import load_spec
from taskfactory.render import readme
from test_prose import FIXTURE, edited


def run(*arguments: str):
    return CliRunner().invoke(main, ["show", *arguments])


@pytest.mark.parametrize("arguments", [(), ("--raw",)])
def test_piped_output_is_the_markdown_itself(arguments):
    done = run(str(FIXTURE), *arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout == readme(load_spec(FIXTURE))


def test_a_terminal_gets_it_laid_out(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(show, "_on_terminal", lambda: True)
    text = run(str(FIXTURE)).stdout
    assert "Scale the rows of a matrix" in text
    assert "## " not in text
    assert "**" not in text.replace("x[i] ** 2", "").replace(") ** (1/n)", "")
    assert max(len(line) for line in text.split("\n")) <= 100
    assert run(str(FIXTURE), "--raw").stdout == readme(load_spec(FIXTURE))


def test_a_spec_with_errors_is_reported(tmp_path):
    file = edited(tmp_path, "{{ correct.N.min }}", "{{ correct.K.min }}")
    done = run(str(file.path))
    assert done.exit_code == 2
    assert "correct.K" in done.stderr
    assert done.stdout == ""


def test_unknown_task():
    assert run("no-such-task").exit_code == 2


def test_help_shows_an_example():
    assert "Example: taskfactory show" in run("--help").stdout
    assert sys.modules["taskfactory.cli.show"] is show
