"""Reading task.json and the submission file: everything that is not as it should be ends in a `TaskError`."""

from __future__ import annotations

import copy
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.toy import TASK, write_task
from taskfactory.grader.task import MAX_SUBMISSION_BYTES, Output, TaskError, load_task, read_submission


def test_a_task_is_read_whole(tmp_path: Path) -> None:
    floor = {kind: [[100, 5]] * len(shapes) for kind, shapes in TASK["shapes"].items()}
    task = load_task(write_task(tmp_path, floor=floor, metric="TFLOP/s"))
    assert task.parameters == ("x", "scale")
    assert task.outputs == (Output("scaled", None), Output("positive", ("int32",)))
    assert task.shapes["correct"] == ((4, 32), (8, 100))
    assert task.work["graded"] == (30720,)
    assert task.floor is not None
    assert task.floor["graded"] == ((100.0, 5.0),)
    assert task.work_unit == 1e12


def test_the_metric_is_decimal(tmp_path: Path) -> None:
    assert load_task(write_task(tmp_path)).work_unit == 1e9


def test_a_solvers_copy_has_no_graded_shapes_and_is_fine(tmp_path: Path) -> None:
    changes = {name: {k: v for k, v in TASK[name].items() if k != "graded"} for name in ("shapes", "work")}
    assert "graded" not in load_task(write_task(tmp_path, **changes)).shapes


@pytest.mark.parametrize("name", [name for name in TASK if name != "schema"])
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    write_task(tmp_path)
    (tmp_path / "task.json").write_text(json.dumps({key: value for key, value in TASK.items() if key != name}))
    with pytest.raises(TaskError, match=f"task.json: unknown or missing fields: {name}; rebuild"):
        load_task(tmp_path)


WRONG: dict[str, Any] = {
    "name": 5, "title": None, "version": 1.0, "spec_digest": [], "module": "../rows.py", "func": None,
    "parameters": 3, "metric": "MB/s", "compare": "list", "outputs": [{"name": "x"}], "tol": "0.01",
    "tile_kappa": float("nan"), "tile_epsilon": -1, "has_regions": "no", "shape_names": 2, "cases": None,
    "mixed": 1,
    "shapes": [[4, 32]], "work": [1], "floor": {"correct": [[1]]},
}  # fmt: skip


def test_a_task_from_before_inputs_were_mixed_has_none(tmp_path: Path) -> None:
    assert load_task(write_task(tmp_path)).mixed is False
    assert load_task(write_task(tmp_path, mixed=True)).mixed is True


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_kind(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match=r"task.json: .*rebuild the bundle"):
        load_task(write_task(tmp_path, **{name: WRONG[name]}))


@pytest.mark.parametrize(
    "changes",
    [
        {"module": "rows"}, {"module": ""}, {"module": "a/rows.py"}, {"tol": True}, {"tol": float("inf")},
        {"outputs": []}, {"outputs": ["scaled"]}, {"compare": "tensor"}, {"unknown": 1},
        {"shapes": TASK["shapes"] | {"graded": [[96]]}}, {"shapes": TASK["shapes"] | {"graded": [[96, 1.5]]}},
        {"shapes": TASK["shapes"] | {"graded": [[96, True]]}}, {"shapes": TASK["shapes"] | {"graded": []}},
        {"shapes": TASK["shapes"] | {"secret": [[1, 1]]}, "work": TASK["work"] | {"secret": [1]}},
        {"work": TASK["work"] | {"graded": [0]}}, {"work": {"correct": [1, 1]}}, {"floor": {"graded": [[1, 1]]}},
        {"floor": {"graded": [["one", 1]]}},
    ],
    ids=lambda changes: "-".join(changes) if isinstance(changes, dict) else None,
)  # fmt: skip
def test_facts_that_do_not_fit_together(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=r"task\.json: "):
        load_task(write_task(tmp_path, **changes))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "5", '"schema"', "{}", '{"schema": 2}', '{"schema": "1"}', "\ufeff{}"]
)
def test_a_file_that_is_no_task(tmp_path: Path, text: str) -> None:
    (tmp_path / "task.json").write_text(text)
    with pytest.raises(TaskError, match=r"task\.json"):
        load_task(tmp_path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match=r"task\.json"):
        load_task(tmp_path)


def test_a_missing_task_says_where_tasks_are(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="environment/app or tests"):
        load_task(tmp_path)
    (tmp_path / "task.json").mkdir()
    with pytest.raises(TaskError, match="directory"):
        load_task(tmp_path)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_a_task_error_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """One value anywhere in task.json replaced by another."""
    task = copy.deepcopy(TASK)
    place: Any = task
    while True:
        key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
    (tmp_path / "task.json").write_text(json.dumps(task))
    try:
        loaded = load_task(tmp_path)
    except TaskError:
        return
    assert all(len(loaded.work[kind]) == len(shapes) for kind, shapes in loaded.shapes.items())
    assert all(isinstance(n, int) for shapes in loaded.shapes.values() for shape in shapes for n in shape)


# -- submissions -------------------------------------------------------------------------------------------------------


def test_a_submission_is_returned_byte_for_byte(tmp_path: Path) -> None:
    data = "# ü\r\nx = 1\n\n".encode() + b"#" * (MAX_SUBMISSION_BYTES - 13)
    assert len(data) == MAX_SUBMISSION_BYTES
    (tmp_path / "rows.py").write_bytes(data)
    assert read_submission(tmp_path / "rows.py") == data
    (tmp_path / "empty.py").touch()
    assert read_submission(tmp_path / "empty.py") == b""


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    """Who starts the grader names the file, and reads nothing through it that he could not read anyway."""
    (tmp_path / "real.py").write_text("x = 1\n")
    (tmp_path / "rows.py").symlink_to("real.py")
    assert read_submission(tmp_path / "rows.py") == b"x = 1\n"
    (tmp_path / "lost.py").symlink_to("nowhere.py")
    with pytest.raises(TaskError, match="no such submission file"):
        read_submission(tmp_path / "lost.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    with pytest.raises(TaskError, match=r"loop\.py: Too many levels"):
        read_submission(tmp_path / "loop.py")


def test_one_byte_too_many(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_bytes(b"#" * (MAX_SUBMISSION_BYTES + 1))
    with pytest.raises(TaskError, match="larger than 1 MiB"):
        read_submission(tmp_path / "rows.py")


def test_a_large_file_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "rows.py").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TaskError, match="larger than 1 MiB"):
        read_submission(tmp_path / "rows.py")


def test_a_fifo_does_not_make_the_grader_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.py")
    with pytest.raises(TaskError, match="not a regular file"):
        read_submission(tmp_path / "rows.py")


def test_directories_devices_and_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskError, match="a directory"):
        read_submission(tmp_path)
    with pytest.raises(TaskError, match="not a regular file"):
        read_submission(Path("/dev/zero"))
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("rows.py")
        with pytest.raises(TaskError, match=r"rows\.py: No such device"):
            read_submission(Path("rows.py"))


@pytest.mark.parametrize(
    ("data", "text"), [(b"x = '\xff'", "not UTF-8"), (b"x = 1\0", "NUL byte"), ("x".encode("utf-16"), "not UTF-8")]
)
def test_what_python_would_not_read(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "rows.py").write_bytes(data)
    with pytest.raises(TaskError, match=text):
        read_submission(tmp_path / "rows.py")


@pytest.mark.parametrize("name", ["absent.py", "absent/rows.py", "x" * 300, "a\0b", "rows.py/x"])
def test_names_of_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.py").touch()
    with pytest.raises(TaskError):
        read_submission(tmp_path / name)
