"""A rehearsal on a machine without a GPU: the whole way from submission to reward, at one small shape.

It shows that a task's files, its solution and the machinery around them fit together. Its reward tells right from wrong
and slow from fast on one machine; it has nothing to do with the reward of a device, and the details say so.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from .result import Result, Status
from .supervisor import Progress, grade
from .task import load_task

CALLS = 2
"""Timed calls, after the broker's warm-ups; each is verified on fresh inputs."""
NOTE = (
    "A rehearsal on the CPU: only the smallest public shape was verified and timed. "
    "The reward is 1 / (1 + t / 1 s) and not comparable with that of any device."
)


def rehearsal_reward(seconds: float) -> float:
    """A number in (0, 1) that falls with the duration of a call: 1 / (1 + t / 1 s)."""
    return 1.0 / (1.0 + seconds)


def rehearse(task_dir: Path, submission: Path, progress: Progress | None = None, **options: Any) -> Result:
    """Verify and time a submission at the correct shape of least work, on the CPU.

    The time is the broker's: wall-clock time around the call, outside the submission's process.

    Args:
        task_dir: a task directory.
        submission: the file.
        progress: as for `supervisor.grade`.
        **options: further fields of `job.Job`.

    Returns:
        The result; with a reward, but no score, if every call passed.

    Raises:
        TaskError: the task directory or the submission file cannot be used.
    """
    task = load_task(task_dir)
    _, shape = min(zip(task.work["correct"], task.shapes["correct"], strict=True))
    result, _ = grade(task_dir, submission, "measure", "cpu", progress, shapes=(shape,), calls=CALLS, **options)
    result.warnings.append(NOTE)
    if result.status is Status.PASSED:
        result.reward = rehearsal_reward(statistics.median(result.shapes[-1].wall_ms) / 1e3)
    return result
