"""INVENTED results for tests of the store and the report. Nothing here was measured; no such figures exist anywhere.

They are made through the grader's own records, so that they have the form of real ones.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from taskfactory.grader.result import CallFailure, Result, ShapeResult, Status, dumps, geometric_mean
from taskfactory.store.records import NewJob, NewResult, Run, StoredTask, sha256
from taskfactory.store.store import Store

CEILINGS = {"copy_gbps": 4180.0, "matmul_tflops": 750.0}

ROW_SCALE = StoredTask(
    name="row-scale", title="Scale rows", version="1.0.0", spec_digest="sha256:11", metric="GB/s",
    readme="# Scale rows\n\nWrite `row_scale(x)`.\n\n| N | M |\n|---|---|\n| 4 | 32 |\n\n```python\ny = 2 * x\n```\n",
    files={"task.json": "{}", "reference.py": "def row_scale(x):\n    return 2 * x\n"},
)  # fmt: skip
PAIR_SUM = StoredTask(
    name="pair-sum", title="Sum pairs", version="2.1.0", spec_digest="sha256:22", metric="TFLOP/s",
    readme="# Sum pairs\n\nWrite `pair_sum(a, b)`.\n", files={"task.json": "{}"},
)  # fmt: skip

SOURCE = b'''"""An invented submission."""
import torch


def row_scale(x, scale=2.0):
    # one pass
    return x * scale, (x > 0).sum(-1, dtype=torch.int32)
'''


def invented_result(
    task: StoredTask = ROW_SCALE,
    fraction: float | None = 0.5,
    *,
    noise: float = 0.01,
    device: str = "Imaginary GPU",
    ceilings: dict[str, float] | None = None,
    status: Status = Status.PASSED,
    source: bytes = SOURCE,
    seed: int = 0,
    **changes: Any,
) -> Result:
    """A result at `fraction` of the limit; None gives one that was not timed. `noise` is half the relative interval."""
    dice = random.Random(f"{seed} {fraction} {task.name}")
    shapes = [_shape(task, k, fraction, noise, dice) for k in (1, 2, 3)] if status is Status.PASSED else []
    timed = fraction is not None and status is Status.PASSED
    metrics = [shape.metric for shape in shapes if shape.metric]
    score = geometric_mean(metrics) if timed else None
    failure = None
    if status not in (Status.PASSED, Status.INFRASTRUCTURE_ERROR):
        failure = CallFailure(
            "graded", 2, "", "graded shape 2: out[0, 7] differs", [77777, 33], 12345,
            [{"name": "out", "message": "E 0.31", "differences": [{"index": [0, 7], "actual": 1, "expected": 2}]}],
            "Traceback (most recent call last): secret 77777",
        )  # fmt: skip
    fields: dict[str, Any] = {
        "message": failure.message if failure else "", "timed": timed, "score": score,
        "score_interval": [score * (1 - noise), score * (1 + noise)] if score else None,
        "reward": min(1.0, fraction) if timed and fraction else None, "shapes": shapes, "failure": failure,
        "calls_verified": 5 + 67 * len(shapes), "ceilings": dict(ceilings or CEILINGS) if timed else {},
        "environment": {"device": device, "python": "3.12.1", "torch": "2.11", "triton": "3.6", "driver": "580.1"},
        "confinement": {"tier": "confined"}, "started_at": "2026-01-02T03:04:05.000+00:00", "duration_s": 41.5,
    }  # fmt: skip
    return Result(
        task.name, task.version, task.spec_digest, task.metric, f"sha256:{sha256(source)}", "grade", status,
        **(fields | changes),
    )  # fmt: skip


def _shape(task: StoredTask, ordinal: int, fraction: float | None, noise: float, dice: random.Random) -> ShapeResult:
    limit = 0.3 * 2**ordinal
    shape = ShapeResult("graded" if fraction else "correct", ordinal, [77777, ordinal], 10**9 * 2**ordinal, 64)
    shape.errors, shape.tile_ratios, shape.seeds = {"scaled": 0.0021}, {"scaled": 0.4}, [1, 2, 3]
    if fraction is None:
        return shape
    time = limit / fraction
    shape.claim_ms = [time * (1 + abs(dice.gauss(0, noise))) for _ in range(64)]
    shape.wall_ms = [t + 0.6 + abs(dice.gauss(0, 0.02)) for t in shape.claim_ms]
    shape.c_ms, shape.delta_ms, shape.bounded = 0.6, time * noise, True
    shape.score_ms, shape.limit_ms, shape.fraction_of_limit = time, limit, limit / time
    shape.interval_ms = [time * (1 - noise), time * (1 + noise)]
    shape.metric = shape.work / (1e9 if task.metric == "GB/s" else 1e12) / time * 1e3
    return shape


def fill(
    store: Store, entries: list[tuple[str, str, Result]], *, tasks: tuple[StoredTask, ...] = (ROW_SCALE, PAIR_SUM),
    run_id: str = "r1", sources: dict[str, bytes] | None = None, started_at: str = "2026-01-02T03:00:00.000+00:00",
    **observed: Any,
) -> None:  # fmt: skip
    """Store one run with a job and a result for each (submitter, sample, result)."""
    by_digest = {task.spec_digest: task.content_sha256 for task in tasks}
    store.add_tasks(tasks)
    store.add_sources([SOURCE, *(sources or {}).values()])
    jobs = [
        NewJob(by_digest[r.spec_digest], r.submission_sha256.removeprefix("sha256:"), who, k) for who, k, r in entries
    ]
    store.add_run(Run(run_id, "run", started_at, "here", "0", {"device": "cuda"}), jobs)
    for job, (_, _, result) in zip(store.jobs(run_id), entries, strict=True):
        store.add_result(new_result(job.id, result, **observed))


def new_result(job_id: int, result: Result, attempt: int = 1, **observed: Any) -> NewResult:
    """As an executor would deliver it."""
    fields = {"printed": "", "host": "here", "slot": "GPU-imaginary", "grader_sha256": "g" * 64, "conditions": {}}
    return NewResult(job_id, attempt, dumps(result.to_json()), **(fields | observed))


def sqlite_store(path: Path) -> Store:
    """A new store in a file."""
    from taskfactory.store.store import open_store

    return open_store(str(path), create=True)


__all__ = [
    "CEILINGS",
    "PAIR_SUM",
    "ROW_SCALE",
    "SOURCE",
    "Status",
    "fill",
    "invented_result",
    "new_result",
    "sqlite_store",
]
