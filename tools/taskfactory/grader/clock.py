"""From raw times to a score time that a worker cannot push below the truth by more than delta.

    T      = wall - c            wall: t1 - t0 around reveal, GO, DONE and snapshot, by the broker's own device events
    c      = what a trusted worker's wall reads beyond the known duration of its work, a copy of about the floor's
             duration at the same shape; the smallest of several launches (one before, one or more after)
    delta  = half-width of the 95 % interval of c + how much larger the next larger c of these launches is
    score  = max(median claim, T - delta)

Walls enter by their lower decile: what disturbs them (a late wake-up, a slow phase of the machine) only ever adds, so
the low end is the steady one, and it is the same quantile of the submission's calls and of the trusted worker's. Every
call is verified on fresh inputs, so a worker cannot be quick in a tenth of its calls alone. Nothing in c or delta
comes from the submission's process: the spread of its own walls, which it can make as wide as it likes, widens the
interval that is shown and never the allowance. A claim that is too small is overruled by the wall; one that is too
large only hurts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .session import Exchange

UNBOUNDED_BELOW = 4.0
"""Where the floor is under this many deltas, the wall clock bounds too little to be scored."""

STEADY = 0.05
"""The delta that is aimed at, as a share of the time: while it is larger, more trusted launches are made."""
UNSTEADY_MS = 0.02
"""Disagreements below this are not worth a repetition."""


@dataclass(frozen=True)
class Overhead:
    """One trusted launch at one shape: walls and event times of a probe, whose event times are true."""

    wall_ms: tuple[float, ...]
    claim_ms: tuple[float, ...]

    @classmethod
    def of(cls, probes: Sequence[Exchange]) -> Overhead:
        """From the exchanges of one launch."""
        return cls(tuple(e.wall_ms for e in probes), tuple(e.claim_ms for e in probes))

    @property
    def beyond_ms(self) -> tuple[float, ...]:
        """What each wall reads beyond its probe."""
        return tuple(wall - claim for wall, claim in zip(self.wall_ms, self.claim_ms, strict=True))

    @property
    def c_ms(self) -> float:
        """Lower decile of what the walls read beyond the probe."""
        return low(self.beyond_ms)


@dataclass(frozen=True)
class ShapeTime:
    """The outcome at one shape, in milliseconds."""

    c_ms: float
    c_next_ms: float
    """The next larger c of another launch."""
    delta_ms: float
    claim_ms: float
    wall_bound_ms: float
    """T - delta."""
    score_ms: float
    interval_ms: tuple[float, float]
    disagree: bool
    """The wall clock holds more than launches and claims explain: a slow phase, or a lie. The grading is repeated."""


def valid_claim(claim_ms: float, wall_ms: float) -> bool:
    """Whether a claimed event time can be a time at all: finite, positive, no longer than the wall clock saw."""
    return math.isfinite(claim_ms) and 0.0 < claim_ms <= wall_ms


LOW = 0.1
"""The quantile by which walls enter."""


def low(values: Sequence[float]) -> float:
    """The lower decile, interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * LOW
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def quantile_interval(values: Sequence[float], quantile: float) -> tuple[float, float]:
    """95 % confidence interval of a quantile from order statistics (normal approximation of the binomial).

    Source: Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2.
    """
    ordered = sorted(values)
    n = len(ordered)
    reach = 1.96 * math.sqrt(n * quantile * (1 - quantile))
    return ordered[max(0, math.floor(n * quantile - reach))], ordered[min(n - 1, math.ceil(n * quantile + reach))]


def half_width(values: Sequence[float]) -> float:
    """Half the width of the lower decile's interval."""
    bottom, top = quantile_interval(values, LOW)
    return (top - bottom) / 2


def allowance(launches: Sequence[Overhead]) -> tuple[float, float, float]:
    """c, the next larger c of another launch, and delta, in milliseconds, from two launches or more.

    A launch in a slow phase of the machine counts for nothing once two others agree, so whoever finds delta too large
    can make another; none of them can make c larger.
    """
    best, following = sorted(launches, key=lambda launch: launch.c_ms)[:2]
    return best.c_ms, following.c_ms, half_width(best.beyond_ms) + following.c_ms - best.c_ms


def shape_time(wall_ms: Sequence[float], claim_ms: Sequence[float], launches: Sequence[Overhead]) -> ShapeTime:
    """Combine a shape's calls with the trusted launches around them. All times in milliseconds."""
    c, following, delta = allowance(launches)
    claim = statistics.median(claim_ms)
    bound = low(wall_ms) - c - delta
    score = max(claim, bound)
    spread = half_width(wall_ms)
    interval = quantile_interval(claim_ms, 0.5) if claim >= bound else (bound - spread, bound + 2 * delta + spread)
    return ShapeTime(
        c, following, delta, claim, bound, score, interval,
        disagree=delta > max(UNSTEADY_MS, STEADY * score) or bound - claim > max(UNSTEADY_MS, delta),
    )  # fmt: skip
