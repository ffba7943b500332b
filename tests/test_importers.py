"""Imports: problems written for these tests in other formats become specs that validate, build and grade on the CPU."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from grader_problems import DEFINITION, KERNELBENCH, WORKLOADS, solution_of
from taskfactory.checks import check_spec
from taskfactory.cli import main
from taskfactory.errors import UsageError
from taskfactory.grader.supervisor import grade
from taskfactory.importers import import_problem
from taskfactory.importers.draft import identifier, task_name
from taskfactory.load import SpecFile, load_spec
from taskfactory.render import task_files


@pytest.fixture
def kernelbench(tmp_path: Path) -> Path:
    path = tmp_path / "7_Scaled_linear.py"
    path.write_text(KERNELBENCH)
    return path


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    path = tmp_path / "definitions" / "norm" / "shifted_sum_h8.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(DEFINITION))
    rows = tmp_path / "workloads" / "norm" / "shifted_sum_h8.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text("".join(json.dumps(row) + "\n" for row in WORKLOADS))
    return path


def imported(problem: Path, source: str, tmp_path: Path, licence: str | None = "MIT") -> SpecFile:
    found = import_problem(problem, source, licence)
    path = tmp_path / f"{found.name.replace('-', '_')}.py"
    path.write_text(found.text)
    file = load_spec(path)
    assert [finding for finding in check_spec(file) if finding.severity == "error"] == []
    assert all(f"# TODO {note}" in found.text for note in found.notes)
    return file


def graded(file: SpecFile, tmp_path: Path) -> str:
    folder = tmp_path / "task"
    folder.mkdir()
    for name, text in task_files(file).items():
        (folder / name).write_text(text)
    submission = tmp_path / "answer.py"
    submission.write_text(solution_of(file))
    return grade(folder, submission, "grade", "cpu", require_tier="unconfined")[0].status


def test_kernelbench(kernelbench: Path, tmp_path: Path) -> None:
    file = imported(kernelbench, "kernelbench", tmp_path)
    spec = file.spec
    assert spec.name == "task-7-scaled-linear"
    assert spec.shape_names == ("rows", "width", "height", "features")
    assert spec.measure_shapes == ((512, 64, 64, 32),)
    assert spec.correct_shapes == ((16, 64, 64, 32),)
    assert spec.signature.endswith("(x, gain, weights, shape)")
    assert spec.license == "MIT"
    assert graded(file, tmp_path) == "passed"


def test_flashinfer(definition: Path, tmp_path: Path) -> None:
    file = imported(definition, "flashinfer-trace", tmp_path)
    spec = file.spec
    assert spec.shape_names == ("batch", "length")
    assert spec.measure_shapes == ((4, 100), (8, 200))
    assert spec.tuple_names == ("total", "count")
    assert spec.output_dtypes == (("float32",), ("int32",))
    assert file.formulas().call("canonical_work", 4, 100) == 2 * 4 * 100 * 8 + 4 * 4 + 4 * 4 + 4 * 4
    assert graded(file, tmp_path) == "passed"


@pytest.mark.parametrize(
    ("source", "text", "message"),
    [
        ("kernelbench", "x = 1\n", "no Model"),
        ("kernelbench", "def broken(:\n", "cannot be read"),
        ("kernelbench", KERNELBENCH.replace("def get_inputs", "def inputs"), "get_inputs"),
        ("kernelbench", KERNELBENCH.replace("= 16 * 32", "= 2**9").replace("= 64", "= 8**2").replace("= 32", "= 2**5"),
         "no integer constant"),
        ("flashinfer-trace", "{}", "not a Definition"),
        ("flashinfer-trace", json.dumps(DEFINITION | {"axes": {}}), "variable axis"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_is_said(source: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(text)
    with pytest.raises(UsageError, match=message):
        import_problem(tmp_path / "problem.py", source)


def test_nothing_is_executed(kernelbench: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    kernelbench.write_text(f"open({str(mark)!r}, 'w')\n" + KERNELBENCH)
    import_problem(kernelbench, "kernelbench")
    assert not mark.exists()


def test_command(kernelbench: Path, tmp_path: Path) -> None:
    words = ["import", "--from", "kernelbench", str(kernelbench), "--out", str(tmp_path / "specs")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "license" in done.stderr
    (path,) = (tmp_path / "specs").iterdir()
    ast.parse(path.read_text())
    assert CliRunner().invoke(main, words).exit_code == 2


@pytest.mark.parametrize(
    ("text", "name"),
    [("19_ReLU", "task-19-re-lu"), ("softmax_py", "softmax-py"), ("gqa_paged_decode_h32", "gqa-paged-decode-h32"),
     ("", "task-problem"), ("x" * 200, "task-" + "x" * 56)],
)  # fmt: skip
def test_names(text: str, name: str) -> None:
    assert task_name(text) == name


def test_identifiers() -> None:
    assert [identifier(each) for each in ("a-b", "9x", "for", "")] == ["a_b", "kernel_9x", "kernel_for", "kernel"]
