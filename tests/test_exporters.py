"""Exports: what is written, what is lost, and that what is carried comes back as it was."""

from __future__ import annotations

import ast
import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskfactory.cli import main
from taskfactory.errors import UsageError
from taskfactory.exporters import TARGETS, export, write
from taskfactory.exporters.carry import COMMON, SOURCES, metadata, module_text, read_module
from taskfactory.exporters.flashinfer import safetensors
from taskfactory.grader.sources import Part, load_namespace
from taskfactory.importers import import_problem
from taskfactory.load import SpecFile, load_spec

FIXTURE = Path(__file__).parent / "fixtures" / "specs" / "row_scale.py"


@pytest.fixture(scope="module")
def file() -> SpecFile:
    return load_spec(FIXTURE)


def common(file: SpecFile) -> dict[str, Any]:
    found = {name: getattr(file.spec, name) for name in COMMON}
    return found | {name: (found[name] or "").strip("\n") for name in SOURCES}


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=60)
LINES = st.lists(TEXT.map(lambda t: t.replace("\n", " ")), min_size=1, max_size=4).map("\n".join)


@given(
    st.fixed_dictionaries(dict.fromkeys(SOURCES, LINES)), TEXT, st.lists(TEXT, max_size=3),
    st.floats(1e-6, 0.5), st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=3),
)  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_carried_comes_back(
    file: SpecFile, sources: dict[str, str], title: str, words: list[str], tol: float, shapes: list[tuple[int, int]]
) -> None:
    changes: dict[str, Any] = {**sources, "title": title, "keywords": tuple(words), "tol": tol}
    spec = dataclasses.replace(file.spec, **changes, measure_shapes=tuple(shapes))
    changed = dataclasses.replace(file, spec=spec)
    found = read_module(module_text(changed, metadata(changed, ["x"]), "pass"))
    assert found is not None
    expected = common(changed)
    for name in COMMON:
        given_back = found.get(name, "") if name in SOURCES else found[name]
        if name in SOURCES and not expected[name].strip():
            assert name not in found or not given_back.strip()
        else:
            assert given_back == expected[name], name


@pytest.mark.parametrize("target", ["kernelbench", "flashinfer-trace"])
def test_round_trip_through_the_files(file: SpecFile, tmp_path: Path, target: str) -> None:
    write(export(file, target), tmp_path)
    problem = next(tmp_path.rglob("1_*.py" if target == "kernelbench" else "definitions/**/*.json"))
    imported = import_problem(problem, target)
    (tmp_path / "spec.py").write_text(imported.text)
    assert common(load_spec(tmp_path / "spec.py")) == common(file)
    assert any("grader_shapes" in note for note in imported.notes)


@pytest.mark.parametrize("target", list(TARGETS))
def test_losses_are_said_and_kept_and_hidden_shapes_stay_hidden(file: SpecFile, target: str) -> None:
    exported = export(file, target)
    assert any("graded shapes" in loss for loss in exported.losses)
    everything = b"".join(exported.files.values()).decode("utf-8", "replace")
    for loss in exported.losses:
        assert json.dumps(loss).strip('"') in everything
    for shape in file.spec.grader_shapes:
        assert not all(str(number) in everything for number in shape)


def test_no_source_may_look_like_a_mark(file: SpecFile) -> None:
    spec = dataclasses.replace(file.spec, derived_src="# --- taskfactory: glue ---\n")
    with pytest.raises(UsageError, match="marks sections"):
        module_text(dataclasses.replace(file, spec=spec), {}, "pass")


def test_a_damaged_head_is_an_error() -> None:
    assert read_module("import torch\n") is None
    with pytest.raises(UsageError, match="damaged"):
        read_module("# taskfactory: {}\n")


def test_kernelbench_runs(file: SpecFile) -> None:
    files = export(file, "kernelbench").files
    assert len(files) == len(file.spec.measure_shapes)
    text = next(iter(files.values())).decode().replace("(4096, 8192", "(8, 16").replace("_mk(4096, 8192", "_mk(8, 16")
    space = load_namespace([Part(text, "problem.py")], "cpu")
    inputs = space["get_inputs"]()
    out = space["Model"](*space["get_init_inputs"]())(*inputs)
    assert out.shape == inputs[0].shape


def test_gpu_mode_checks_with_our_gates(file: SpecFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(export(file, "gpu-mode"), tmp_path)
    folder = tmp_path / "row_scale_py"
    assert {path.name for path in folder.iterdir()} == {
        "task.yml", "reference.py", "task.py", "submission.py", "comparing.py",
    }  # fmt: skip
    monkeypatch.syspath_prepend(str(folder))
    space = load_namespace([Part((folder / "reference.py").read_text(), "reference.py")], "cpu")
    for case in range(3):
        data = space["generate_input"](M=5, N=129, seed=1, case=case)
        y, scale = space["ref_kernel"](data)
        assert space["check_implementation"](data, (y, scale)) == (True, "")
        wrong, why = space["check_implementation"](data, (y * 1.1, scale))
        assert not wrong
        assert why.startswith("y: ")
        assert not space["check_implementation"](data, y)[0]
    ast.parse((folder / "submission.py").read_text())
    ast.parse((folder / "task.py").read_text())


def test_flashinfer_describes_tensors(file: SpecFile) -> None:
    files = export(file, "flashinfer-trace").files
    definition = json.loads(files["definitions/taskfactory/row_scale.json"])
    assert definition["inputs"] == {
        "x": {"shape": ["M", "N"], "dtype": "bfloat16"}, "weight": {"shape": ["N"], "dtype": "float32"},
    }  # fmt: skip
    assert definition["outputs"]["scale"] == {"shape": ["M"], "dtype": "float32"}
    assert definition["axes"] == {"M": {"type": "var"}, "N": {"type": "var"}}
    rows = [json.loads(line) for line in files["workloads/taskfactory/row_scale.jsonl"].decode().splitlines()]
    assert [row["workload"]["axes"] for row in rows] == [{"M": 5, "N": 129}, {"M": 16, "N": 64}]
    space = load_namespace([Part(definition["reference"], "reference.py")], "cpu")
    y, scale = space["run"](torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(8))
    assert (y.shape, scale.shape) == ((2, 8), (2,))


def test_safetensors_layout() -> None:
    data = safetensors({"a": torch.tensor([[1, 2]], dtype=torch.int32), "b": torch.tensor([True])})
    (size,) = struct.unpack("<Q", data[:8])
    assert size % 8 == 0
    header = json.loads(data[8 : 8 + size])
    assert header["a"] == {"dtype": "I32", "shape": [1, 2], "data_offsets": [0, 8]}
    assert header["b"] == {"dtype": "BOOL", "shape": [1], "data_offsets": [8, 9]}
    assert data[8 + size :] == b"\x01\0\0\0\x02\0\0\0\x01"


def test_command(tmp_path: Path) -> None:
    words = ["export", "--to", "kernelbench", str(FIXTURE), "--out", str(tmp_path)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "lost: " in done.stderr
    assert (tmp_path / "kernelbench" / "1_row_scale.py").is_file()
