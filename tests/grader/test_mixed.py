"""A submission that is right on the ordinary inputs and on every case, and wrong on the inputs of timed calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grader.toy import GOOD, write_task
from taskfactory.grader.result import Result, Status
from taskfactory.grader.supervisor import grade

MIX = '''

def mix(N, M, seed):
    """A row in eight is a thousand times as large."""
    (x,) = _mk(N, M, seed)
    x[::8] *= 1000.0
    return (x,)
'''
# The cases are recognised by the explicit scale and by the size of all entries.
CLAMPED = """
import torch


def row_scale(x, scale=None):
    y = x.float()
    if scale is None and float(y.abs().mean()) < 1000:
        y = y.clamp(-8, 8)
    return (y * (2.0 if scale is None else scale)).to(torch.bfloat16), (x > 0).sum(-1, dtype=torch.int32)
"""


def graded(folder: Path, source: str, mode: str, mixed: bool, **options: Any) -> Result:
    directory = write_task(folder / "task", mixed=mixed)
    with (directory / "make_inputs.py").open("a") as file:
        file.write(MIX)
    (folder / "rows.py").write_text(source)
    return grade(directory, folder / "rows.py", mode, "cpu", **options)[0]


@pytest.mark.parametrize("mixed", [False, True])
def test_a_shortcut_that_knows_the_cases_passes_unless_timed_inputs_are_mixed(tmp_path: Path, mixed: bool) -> None:
    verified = graded(tmp_path, CLAMPED, "measure", mixed, kinds=("quick", "measure"), calls=2)
    assert verified.status is (Status.INCORRECT if mixed else Status.PASSED)
    assert not mixed or "quick shape 1" in verified.message or "measure shape 1" in verified.message


def test_mixed_inputs_are_verified_without_a_gpu_as_a_case_of_correct_shapes(tmp_path: Path) -> None:
    result = graded(tmp_path, CLAMPED, "grade", True)
    assert result.status is Status.INCORRECT
    assert result.failure is not None
    assert (result.failure.kind, result.failure.case) == ("correct", "mixed")
    assert graded(tmp_path, CLAMPED, "grade", False).status is Status.PASSED
    assert graded(tmp_path, GOOD, "grade", True).status is Status.PASSED
