"""`validate`: what is printed where, in which form, and the exit code."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner, Result

import specimens
from taskfactory.cli import main
from taskfactory.cli import validate as validate_command
from taskfactory.findings import Finding


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()
    specimens.write(tmp_path / "specs", specimens.text())
    return tmp_path / "specs"


def validate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["validate", *arguments])


@pytest.mark.parametrize("arguments", [(), ("specs",), ("ragged-softmax",), ("specs/ragged_softmax.py",)])
def test_flawless(here, arguments):
    result = validate(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "1 spec: no findings\n")


def test_errors_are_shown_like_a_compiler_does(here):
    content = specimens.damaged(("tol=1e-2,", "tol=1.5,"), ('version="0.1.0"', 'version="x"'))
    specimens.write(here, content)
    result = validate()
    assert result.exit_code == 2
    line = specimens.line_of(content, "tol=1.5")
    assert (
        result.stdout.split("\n")[0]
        == f"specs/ragged_softmax.py:{line}: error TF306 tol  1.5 is not above 0 and below 1"
    )
    assert f"{line} |     tol=1.5," in result.stdout.split("\n")[1]
    assert "TF110" in result.stdout
    assert result.stderr == "1 spec: 2 errors\n"
    assert "\033[" not in result.output


def test_warnings_fail_only_when_strict(here):
    specimens.write(here, specimens.damaged(('name="ragged-softmax"', 'name="other"')))
    assert validate().exit_code == 0
    assert "TF106" in validate().stdout
    assert validate("--strict").exit_code == 2


def test_strict_leaves_calibration_to_its_own_switch(here, monkeypatch):
    found = [Finding("TF708", "warning", "no certificate from a GPU", "specs/a.py")]
    monkeypatch.setattr(validate_command, "check_files", lambda *_, **__: (found, [], 1))
    result = validate("--strict")
    assert (result.exit_code, result.stderr) == (0, "1 spec: 1 warning\n")
    found.append(Finding("TF223", "warning", "there is no floor", "specs/a.py"))
    result = validate("--strict")
    assert (result.exit_code, result.stderr) == (2, "1 spec: 2 warnings (errors under --strict)\n")


def test_json(here):
    assert json.loads(validate("--json").stdout) == {
        "schema": 1,
        "ok": True,
        "strict": False,
        "specs": [{"path": "specs/ragged_softmax.py", "name": "ragged-softmax"}],
        "findings": [],
    }
    (here / "broken.py").write_text("SPEC = TaskSpec(\n")
    result = validate("--format", "json")
    data = json.loads(result.stdout)
    assert result.exit_code == 2
    assert not data["ok"]
    assert [(f["code"], f["path"], f["line"]) for f in data["findings"]] == [("TF003", "specs/broken.py", 1)]
    assert len(data["specs"]) == 1


def test_github(here):
    specimens.write(here, specimens.damaged(("tol=1e-2,", "tol=1.5,")))
    result = validate("--format", "github")
    assert result.stdout.startswith("::error file=specs/ragged_softmax.py,title=TF306 tol,line=")
    assert result.stderr == "1 spec: 1 error\n"


def test_two_specs_of_one_name(here):
    specimens.write(here, specimens.text(), "second.py")
    result = validate()
    assert result.exit_code == 2
    assert "TF107" in result.stdout


def test_what_does_not_exist(here):
    for argument in ("nothing", "no/such.py"):
        result = validate(argument)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert argument in result.stderr


def test_run_hands_sound_specs_to_the_dynamic_checks(here, monkeypatch):
    seen: list[str] = []
    fake = ModuleType("taskfactory.checks.dynamic")

    def run_all(files):
        seen.extend(file.path.name for file in files)
        hang = [Finding("TF601", "error", "hangs", file.path, 1, "reference_src") for file in files]
        return [SimpleNamespace(findings=[finding], figures={"margin": 2.5}) for finding in hang]

    fake.run_all = run_all
    monkeypatch.setitem(sys.modules, "taskfactory.checks.dynamic", fake)
    specimens.write(here, specimens.damaged(("tol=1e-2,", "tol=1.5,"), ('name="ragged', 'name="other')), "bad.py")
    result = validate("--run")
    assert seen == ["ragged_softmax.py"]
    assert result.exit_code == 2
    assert "TF601" in result.stdout
    printed = json.loads(validate("--run", "--json").stdout)
    assert [entry.get("figures") for entry in printed["specs"]] == [None, {"margin": 2.5}]
