"""Exports read by the targets' own libraries where these install, and GPU MODE's format, which needs PyYAML.

Run by `make test-ecosystem` in the grading environment plus flashinfer-bench and PyYAML; collected nowhere else.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from flashinfer_bench.data import Definition, Workload
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from grader_problems import GPU_MODE_REFERENCE, GPU_MODE_TASK
from taskfactory.errors import UsageError
from taskfactory.exporters import export, write
from taskfactory.importers import import_problem
from taskfactory.load import load_spec
from taskfactory.paths import resolve_spec, specs_dir
from test_exporters import common
from test_importers import graded, imported

TASKS = sorted(path.stem.replace("_", "-") for path in specs_dir().glob("*.py"))


@pytest.mark.parametrize("task", TASKS)
def test_flashinfer_bench_reads_every_task(task: str, tmp_path: Path) -> None:
    files = export(load_spec(resolve_spec(task)), "flashinfer-trace").files
    write(export(load_spec(resolve_spec(task)), "flashinfer-trace"), tmp_path)
    (definition,) = (Definition.model_validate_json(data) for name, data in files.items() if "definitions/" in name)
    (rows,) = (data.decode().splitlines() for name, data in files.items() if name.endswith(".jsonl"))
    assert rows
    for row in rows:
        workload = Workload.model_validate(json.loads(row)["workload"])
        shapes = definition.get_input_shapes(workload.axes)
        assert definition.get_axes_values(shapes) == workload.axes
        for (name, given), shape in zip(workload.inputs.items(), shapes, strict=True):
            assert (given.type == "scalar") == (shape is None)
            if given.type == "safetensors":
                with safe_open(tmp_path / given.path, "pt") as stored:
                    assert list(stored.get_tensor(given.tensor_key).shape) == shape, name


@pytest.mark.parametrize("task", TASKS)
def test_gpu_mode_folder_is_complete(task: str, tmp_path: Path) -> None:
    file = load_spec(resolve_spec(task))
    write(export(file, "gpu-mode"), tmp_path)
    (folder,) = tmp_path.iterdir()
    data = yaml.safe_load((folder / "task.yml").read_text())
    assert set(data) == {
        "files", "lang", "description", "config", "templates", "ranking_by", "test_timeout", "benchmark_timeout",
        "ranked_timeout", "tests", "benchmarks",
    }  # fmt: skip
    for entry in data["files"]:
        assert (
            entry["source"] == "@SUBMISSION@"
            or entry["source"].startswith("../")
            or (folder / entry["source"]).is_file()
        )
    for case in (*data["tests"], *data["benchmarks"]):  # their eval.py reads "name: value" with these characters only
        assert all(re.fullmatch(r"[a-zA-Z_]+", key) and isinstance(value, int) for key, value in case.items()), case


@pytest.mark.parametrize("task", TASKS)
def test_gpu_mode_round_trip(task: str, tmp_path: Path) -> None:
    file = load_spec(resolve_spec(task))
    write(export(file, "gpu-mode"), tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    (tmp_path / "spec.py").write_text(import_problem(folder, "gpu-mode").text)
    assert common(load_spec(tmp_path / "spec.py")) == common(file)


def test_gpu_mode_problem_grades(tmp_path: Path) -> None:
    folder = tmp_path / "rowsum_py"
    folder.mkdir()
    (folder / "task.yml").write_text(GPU_MODE_TASK)
    (folder / "reference.py").write_text(GPU_MODE_REFERENCE)
    file = imported(folder, "gpu-mode", tmp_path)
    assert file.spec.shape_names == ("rows", "width")
    assert file.spec.correct_shapes == ((4, 33), (7, 16))
    assert file.spec.title == "Weighted sums of rows."
    assert graded(file, tmp_path) == "passed"


@pytest.mark.parametrize(
    ("task", "message"),
    [("lang: cu\n", "Python problem"), ("lang: py\ntests: []\n", "tests"), ("[", "cannot be read"),
     ('lang: py\ntests: [{"size": 3}]\n', "seed")],
)  # fmt: skip
def test_gpu_mode_what_cannot_be_held(task: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "task.yml").write_text(task)
    (tmp_path / "reference.py").write_text(GPU_MODE_REFERENCE)
    with pytest.raises(UsageError, match=message):
        import_problem(tmp_path, "gpu-mode")
