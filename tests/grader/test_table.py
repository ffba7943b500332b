"""Results as text: the verdict, and nothing of graded shapes in the public one."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from grader.toy import write_task
from taskfactory.grader.result import CallFailure, Result, ShapeResult, Status, dumps, from_json
from taskfactory.grader.table import describe_failure, result_table, summary
from taskfactory.grader.task import Task, load_task


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return load_task(write_task(tmp_path))


def result(status: Status = Status.PASSED, **changes: Any) -> Result:
    made = Result(
        "row-scale", "1.0.0", "sha256:0", "GB/s", "sha256:1", "grade", status, confinement={"tier": "confined"}
    )
    return dataclasses.replace(made, **changes)


def shape(kind: str = "graded", **changes: Any) -> ShapeResult:
    return dataclasses.replace(ShapeResult(kind, 2, [96, 80], 30720, 7, errors={"scaled": 0.00321}), **changes)


TIMED = {
    "claim_ms": [0.5, 0.4, 0.6], "score_ms": 0.55, "delta_ms": 0.01, "metric": 1234.56, "fraction_of_limit": 0.875,
    "bounded": True,
}  # fmt: skip


def test_columns_are_aligned_and_numbers_rounded(task: Task) -> None:
    head, graded, correct = result_table(result(shapes=[shape(**TIMED), shape("correct")]), task).split("\n")
    assert [head.index(word) for word in ("calls", "worst E", "GB/s")] == [
        graded.index("7"), graded.index("scaled"), graded.index("1234.6"),
    ]  # fmt: skip
    assert graded.split("  ")[0] == "graded 2"
    for cell in ("scaled 0.0032", "0.5000", "0.5500", "0.0100", "1234.6", "0.875"):
        assert cell in graded
    assert correct.startswith("correct 2: N=96 M=80 ")
    assert "not timed" in correct


def test_a_graded_shape_is_named_by_its_ordinal_alone(task: Task) -> None:
    text = result_table(result(shapes=[shape(**TIMED)]), task)
    assert "96" not in text
    assert "80" not in text


def test_an_unbounded_time_has_no_metric(task: Task) -> None:
    row = result_table(result(shapes=[shape(**TIMED | {"bounded": False})]), task).split("\n")[1]
    assert "unbounded" in row
    assert "1234" not in row


def test_errors_that_are_not_finite_are_shown(task: Task) -> None:
    """As they come back from the broker's JSON."""
    bad = shape("correct", errors={"scaled": math.inf, "positive": math.nan}, claim_ms=[math.nan])
    text = result_table(from_json(json.loads(dumps(result(Status.NOT_FINITE, shapes=[bad]).to_json()))), task)
    assert "scaled inf, positive nan" in text


def test_a_result_without_shapes_is_a_head(task: Task) -> None:
    assert result_table(result(Status.IMPORT_ERROR), task).startswith("shape  calls")


def broken(kind: str) -> Result:
    output = {
        "name": "scaled", "failure": "incorrect", "message": "", "error": 1.0, "tile_ratio": 1.0, "regions": {},
        "differences": [{"index": [3, 77], "expected": 1.0, "actual": "nan"}],
    }  # fmt: skip
    failure = CallFailure(kind, 1, "", "off", [96, 80], 99, [output], "Traceback: here\n")
    return result(Status.INCORRECT, message=f"{kind} shape 1: off", failure=failure)


def test_a_private_description_is_enough_to_repeat_the_failure() -> None:
    assert describe_failure(broken("graded"), private=True).split("\n") == [
        "incorrect: graded shape 1: off",
        "  at shape (96, 80), seed 99",
        "  scaled[3, 77]: nan, expected 1.0",
        "Traceback: here",
    ]


def test_a_public_description_has_no_seed_and_no_coordinates() -> None:
    graded = describe_failure(broken("graded"), private=False)
    assert graded == f"incorrect: graded shape 1: {Status.INCORRECT.meaning}"
    assert describe_failure(broken("correct"), private=False).split("\n") == [
        "incorrect: correct shape 1: off", "Traceback: here",
    ]  # fmt: skip


def test_a_failure_without_a_message_says_what_its_status_means() -> None:
    assert describe_failure(result(Status.TIMEOUT), private=False) == f"timeout: {Status.TIMEOUT.meaning}"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (result(timed=True, score=1234.56, reward=0.5), "row-scale: passed, 1234.6 GB/s, 0.500 of the limit"),
        (result(calls_verified=5), "row-scale: passed, not timed (5 calls verified)"),
        (result(Status.TIMEOUT), "row-scale: timeout"),
        (result(confinement={"tier": "unconfined"}), "row-scale: passed, not timed (0 calls verified) [unconfined]"),
    ],
)
def test_the_last_line(made: Result, text: str) -> None:
    assert summary(made) == text
