"""A toy task for grader tests: row scaling with an optional scale, two cases, one region; tiny and fast."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from taskfactory.grader import nursery
from taskfactory.grader.processes import descendants
from taskfactory.grader.result import Result
from taskfactory.grader.supervisor import grade

REFERENCE = """
import torch


def row_scale(x, scale=None):
    y = x.float() * (2.0 if scale is None else scale)
    return y.to(torch.bfloat16), (x > 0).sum(-1, dtype=torch.int32)


def regions(x, scale=None):
    mask = torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
    mask[-1] = True
    return {"last column": ("scaled", mask, 6e-3)}
"""

MAKE_INPUTS = '''
import torch


def canonical_work(N, M):
    return 4 * N * M


def _mk(N, M, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.randn(N, M, device="cuda", dtype=torch.bfloat16, generator=gen),)


def case_scaled(N, M, seed):
    """An explicit scale."""
    return (*_mk(N, M, seed), 0.37)


def case_wide(N, M, seed):
    """Only where there are many columns."""
    return None if M < 64 else (_mk(N, M, seed)[0] * 1e4,)


def make_inputs(shape, seed):
    return _mk(*shape, seed)
'''

TASK: dict[str, Any] = {
    "schema": 1, "name": "row-scale", "title": "Scale rows", "version": "1.0.0", "spec_digest": "sha256:0",
    "module": "rows.py", "func": "row_scale", "parameters": ["x", "scale"], "metric": "GB/s", "compare": "tuple",
    "outputs": [{"name": "scaled", "dtypes": None}, {"name": "positive", "dtypes": ["int32"]}],
    "tol": 0.01, "tile_kappa": 4.0, "tile_epsilon": 0.1, "has_regions": True, "shape_names": ["N", "M"],
    "cases": ["scaled", "wide"],
    "shapes": {"correct": [[4, 32], [8, 100]], "quick": [[64, 64]], "measure": [[128, 128]], "graded": [[96, 80]]},
    "work": {"correct": [512, 3200], "quick": [16384], "measure": [65536], "graded": [30720]},
    "floor": None,
}  # fmt: skip

GOOD = """
import torch


def row_scale(x, scale=None):
    return (x.float() * (2.0 if scale is None else scale)).to(torch.bfloat16), (x > 0).sum(-1, dtype=torch.int32)
"""


def write_task(directory: Path, **changes: Any) -> Path:
    """A task directory of the toy with some fields of task.json replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "reference.py").write_text(REFERENCE)
    (directory / "make_inputs.py").write_text(MAKE_INPUTS)
    (directory / "task.json").write_text(json.dumps(TASK | changes))
    return directory


def grade_source(tmp_path: Path, source: str, mode: str = "grade", **options: Any) -> Result:
    """Grade a submission's source on the toy task, on the CPU."""
    submission = tmp_path / "rows.py"
    submission.write_text(source)
    return grade(write_task(tmp_path / "task"), submission, mode, "cpu", **options)[0]


def strays() -> set[int]:
    """Processes below this one that no grading should leave: all but the nurseries."""
    return descendants(os.getpid()) - nursery.pids()
