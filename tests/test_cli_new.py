"""`new` and `list` on the command line."""

from __future__ import annotations

import json

from click.testing import CliRunner

import specimens
from taskfactory.cli import main


def invoke(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def test_new_validate_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("new", "fused-thing")
    assert (result.exit_code, result.stdout) == (0, "specs/fused_thing.py\n")
    assert "taskfactory validate specs/fused_thing.py" in result.stderr
    assert invoke("validate", "--strict").exit_code == 0
    assert invoke("new", "fused-thing").exit_code == 2
    assert invoke("new", "Fused").exit_code == 2
    assert invoke("new", "other-thing", "--dir", "elsewhere").stdout == "elsewhere/other_thing.py\n"

    (tmp_path / "specs" / "broken.py").write_text("SPEC = TaskSpec(tol=1)\n")
    table = invoke("list").stdout.split("\n")
    assert table[0].split() == ["task", "metric", "function", "graded", "state"]
    assert table[1].split()[0] == "broken"
    assert table[2].split() == ["fused-thing", "GB/s", "ragged_softmax", "5", "ok"]

    broken, fine = json.loads(invoke("list", "--json").stdout)
    assert broken["errors"] > 0
    assert (fine["task"], fine["metric"], fine["graded_shapes"]) == ("fused-thing", "GB/s", 5)
    assert (fine["errors"], fine["warnings"]) == (0, 0)
    assert fine["digest"].startswith("sha256:")


def test_list_counts_warnings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specimens.write(tmp_path, specimens.text(), "misnamed.py")
    assert "1 warning" in invoke("list", "misnamed.py").stdout
    assert invoke("list", "nothing-here").exit_code == 2
