"""From raw times and overheads to metrics, score and reward."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from . import ceilings
from .clock import UNBOUNDED_BELOW, Overhead, shape_time
from .plan import BrokenEnvironment, Plan
from .result import Result, ShapeResult, geometric_mean


@dataclass(frozen=True)
class Timed:
    """A timed shape with the trusted launches around it."""

    plan: Plan
    shape: ShapeResult
    launches: Sequence[Overhead]


class ImpossibleTime(Exception):
    """Faster than the floor at datasheet peaks."""

    def __init__(self, plan: Plan, message: str) -> None:
        super().__init__(message)
        self.plan = plan


def fill_in(entry: Timed, measured: dict[str, float], peaks: ceilings.Peaks | None, work_unit: float) -> bool:
    """Compute a shape's figures; returns whether wall, claims and launches disagree.

    Raises:
        ImpossibleTime: the score time is below the floor.
    """
    plan, shape = entry.plan, entry.shape
    timed = shape_time(shape.wall_ms, shape.claim_ms, entry.launches)
    shape.launches = [dataclasses.asdict(launch) for launch in entry.launches]
    shape.c_ms, shape.c_next_ms = timed.c_ms, timed.c_next_ms
    shape.delta_ms, shape.score_ms, shape.interval_ms = timed.delta_ms, timed.score_ms, list(timed.interval_ms)
    nbytes, flops = plan.unavoidable
    floor_ms = peaks.floor_ms(nbytes, flops) if peaks else 0.0
    if timed.score_ms < floor_ms:
        raise ImpossibleTime(plan, f"{plan.label}: {timed.score_ms:.4g} ms, the floor is {floor_ms:.4g} ms")
    shape.limit_ms = ceilings.limit_ms(nbytes, flops, measured)
    shape.bounded = shape.limit_ms >= UNBOUNDED_BELOW * timed.delta_ms
    shape.metric = plan.work / work_unit / timed.score_ms * 1e3
    shape.fraction_of_limit = shape.limit_ms / timed.score_ms
    return timed.disagree


def total(result: Result, shapes: Sequence[ShapeResult]) -> None:
    """Score, its interval and the reward of a task whose shapes are all filled in.

    Raises:
        BrokenEnvironment: the clock is too noisy to bound a time. The figures are on the message's second line, which
            is private, since a limit tells of a hidden shape.
    """
    unbounded = next((shape for shape in shapes if not shape.bounded), None)
    if unbounded is not None:
        raise BrokenEnvironment(
            f"graded shape {unbounded.ordinal}: the clock is too noisy here; is something else using the device?\n"
            f"delta {unbounded.delta_ms:.3g} ms against a limit of {unbounded.limit_ms:.3g} ms"
        )
    metrics, ends, fractions = [], [], []
    for shape in shapes:
        assert shape.metric is not None
        assert shape.fraction_of_limit is not None
        assert shape.score_ms is not None
        assert shape.interval_ms is not None
        metrics.append(shape.metric)
        fractions.append(shape.fraction_of_limit)
        ends.append([shape.metric * shape.score_ms / end for end in reversed(shape.interval_ms)])
    result.timed = True
    result.score = geometric_mean(metrics)
    result.score_interval = [geometric_mean([end[k] for end in ends]) for k in (0, 1)]
    result.reward = min(1.0, geometric_mean(fractions))
