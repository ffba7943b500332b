"""Results: what a status allows, what the public form leaves out, and what is on disk whatever happens."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskfactory.grader import result as module
from taskfactory.grader.result import (
    CallFailure,
    Result,
    ShapeResult,
    Status,
    dumps,
    from_json,
    geometric_mean,
    write_atomically,
)

SECRETS = ("90017", "90019", "71237", "8151234567", "tb-secret", "message-secret", "region-secret", "40409")


def shape(kind: str = "graded", **changes: Any) -> ShapeResult:
    made = ShapeResult(
        kind, 1, [90017, 90019], 71237, 3, seeds=[8151234567], claim_ms=[1.5, 1.25], errors={"out": 0.25}
    )
    return dataclasses.replace(made, **changes)


def failure(kind: str = "graded") -> CallFailure:
    report = {
        "name": "out", "failure": "incorrect", "message": "message-secret 90017", "error": 0.5, "tile_ratio": 0.0,
        "regions": {}, "differences": [{"index": [40409], "expected": 1.0, "actual": "nan"}],
    }  # fmt: skip
    message = f"{kind} shape 1: message-secret of 90017 x 90019"
    return CallFailure(kind, 1, "region-secret" if kind != "graded" else "", message, [90017, 90019], 8151234567,
                       [report], "tb-secret: 90017")  # fmt: skip


def result(status: Status = Status.PASSED, **changes: Any) -> Result:
    return Result("toy", "1.0.0", "sha256:0", "GB/s", "sha256:1", "grade", status, **changes)


# -- what a status allows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PASSED])
@pytest.mark.parametrize("name", ["score", "reward"])
def test_only_a_passed_grading_has_a_score_or_a_reward(status: Status, name: str) -> None:
    with pytest.raises(ValueError, match="only a passed"):
        result(status, timed=True, **{name: 1.0})


def test_only_a_timed_grading_has_a_score() -> None:
    with pytest.raises(ValueError, match="only a passed, timed grading"):
        result(timed=False, score=1.0)
    assert result(timed=True, score=1.0).score == 1.0


def test_a_score_is_not_kept_by_changing_the_status() -> None:
    with pytest.raises(ValueError, match="only a passed"):
        dataclasses.replace(result(timed=True, score=1.0), status=Status.INCORRECT)


def test_every_status_has_a_meaning_and_an_unknown_one_is_refused() -> None:
    assert all(status.meaning.endswith(".") for status in Status)
    assert len({status.meaning for status in Status}) == len(Status)
    with pytest.raises(ValueError, match="fine"):
        result("fine")  # type: ignore[arg-type]


# -- round trips -------------------------------------------------------------------------------------------------------


def full() -> Result:
    return result(
        Status.INCORRECT, message="m", shapes=[shape(), shape("correct", interval_ms=[1.0, 2.0], bounded=True)],
        failure=failure(), calls_verified=7, ceilings={"copy_gbps": 4100.0}, environment={"device": "x", "cuda": None},
        confinement={"tier": "confined"}, clock={"disagree": True}, warnings=["w"], started_at="now", duration_s=1.5,
    )  # fmt: skip


def test_a_result_goes_through_json_unchanged() -> None:
    assert from_json(json.loads(dumps(full().to_json()))) == full()
    scored = result(timed=True, score=1.5, score_interval=[1.0, 2.0], reward=0.5)
    assert from_json(json.loads(dumps(scored.to_json()))) == scored


def test_infinite_errors_are_numbers_again() -> None:
    """E is infinite for every output that holds NaN, and the table formats it as a number."""
    bad = shape("correct", errors={"out": math.inf}, tile_ratios={"out": math.nan}, claim_ms=[-math.inf, 1.0])
    got = from_json(json.loads(dumps(result(Status.NOT_FINITE, shapes=[bad]).to_json()))).shapes[0]
    assert got.errors == {"out": math.inf}
    assert math.isnan(got.tile_ratios["out"])
    assert got.claim_ms == [-math.inf, 1.0]
    assert (got.kind, got.shape) == ("correct", [90017, 90019])


@pytest.mark.parametrize(
    "change", [{"schema": 2}, {"schema": None}, {"status": "well"}, {"surprise": 1}, {"shapes": [{"kind": "graded"}]}]
)
def test_what_is_no_result_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        from_json(full().to_json() | change)


def test_a_result_without_a_field_is_refused() -> None:
    data = full().to_json()
    del data["task"]
    with pytest.raises(TypeError):
        from_json(data)


# -- the public form ---------------------------------------------------------------------------------------------------


def test_nothing_of_a_graded_shape_is_public() -> None:
    private = dumps(result(Status.INCORRECT, message=failure().message, shapes=[shape()], failure=failure()).to_json())
    hidden = [secret for secret in SECRETS if secret != "region-secret"]
    assert all(secret in private for secret in hidden)
    public = dumps(
        result(Status.INCORRECT, message=failure().message, shapes=[shape()], failure=failure()).public_json()
    )
    assert not [secret for secret in hidden if secret in public]
    data = json.loads(public)
    assert data["message"] == f"graded shape 1: {Status.INCORRECT.meaning}"
    assert data["shapes"][0]["ordinal"] == 1
    assert data["failure"]["outputs"][0]["error"] == 0.5


def test_times_of_graded_shapes_are_not_public_for_a_metric_times_a_time_is_the_work() -> None:
    timed = {
        "score_ms": 2.0,
        "delta_ms": 0.05,
        "limit_ms": 1.0,
        "metric": 35.6,
        "fraction_of_limit": 0.5,
        "wall_ms": [3.0],
    }
    graded, measured = result(shapes=[shape(**timed), shape("measure", **timed)]).public_json()["shapes"]
    assert not [name for name in graded if name.endswith("_ms")]
    assert "launches" not in graded
    assert graded["metric"] == 35.6
    assert graded["delta_of_score_time"] == 0.025
    assert measured["score_ms"] == 2.0


def test_a_failure_at_a_public_shape_shows_shape_and_traceback_but_no_seed_or_coordinate() -> None:
    broken = result(Status.INCORRECT, message="m", shapes=[shape("correct")], failure=failure("correct"))
    public = dumps(broken.public_json())
    assert "8151234567" not in public
    assert "40409" not in public
    data = json.loads(public)
    assert data["failure"]["shape"] == data["shapes"][0]["shape"] == [90017, 90019]
    assert data["failure"]["traceback"] == "tb-secret: 90017"
    assert data["failure"]["case"] == "region-secret"


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.RUNTIME_ERROR, Status.WRONG_SHAPE, Status.OUT_OF_MEMORY])
def test_messages_of_graded_failures_are_the_statuss_meaning(status: Status) -> None:
    public = result(status, message="message-secret", failure=failure()).public_json()
    assert public["failure"]["message"] == status.meaning
    assert "message-secret" not in dumps(public)


def test_a_traceback_of_the_broker_is_private() -> None:
    broken = result(Status.INFRASTRUCTURE_ERROR, message="the broker process died\nTraceback: 90017 x 90019")
    assert broken.public_json()["message"] == "the broker process died"
    assert "90017" in broken.to_json()["message"]


def test_making_the_public_form_does_not_change_the_result() -> None:
    one = full()
    one.public_json()
    assert one == full()


# -- text --------------------------------------------------------------------------------------------------------------


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_text_is_strict_json_whatever_the_numbers(value: Any) -> None:
    json.loads(dumps(value), parse_constant=pytest.fail)


def test_finite_numbers_keep_every_digit() -> None:
    numbers = [0.1, 1e-300, 2**70, -0.0, 1.7976931348623157e308]
    assert json.loads(dumps(numbers)) == numbers


@pytest.mark.parametrize(("numbers", "mean"), [([2.0, 8.0], 4.0), ([5.0], 5.0), ([1e300, 1e300, 1e-300], 1e100)])
def test_geometric_mean(numbers: list[float], mean: float) -> None:
    assert geometric_mean(numbers) == pytest.approx(mean, rel=1e-12)


# -- files -------------------------------------------------------------------------------------------------------------


def test_writing_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "reward.json"
    for text in ("long " * 1000, "ü", ""):
        write_atomically(path, text)
        assert path.read_text("utf-8") == text
    assert os.listdir(tmp_path) == ["reward.json"]


def test_others_can_read_a_result_as_the_umask_says(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_atomically(tmp_path / "reward.json", "x")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(old)
    assert (tmp_path / "reward.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("call", ["fsync", "replace", "fdopen"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "reward.json"
    path.write_text("old")
    real_fdopen = os.fdopen

    def full_disk(*arguments: Any, **_: Any) -> None:
        if call == "fdopen":  # the first write fails, and so would the flush of `close`
            real_fdopen(arguments[0]).close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, call, full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["reward.json"]


def test_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "reward.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["reward.json"]


def test_a_missing_directory_or_one_in_the_way_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "absent" / "reward.json", "x")
    (tmp_path / "reward.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "reward.json", "x")
    assert os.listdir(tmp_path) == ["reward.json"]
