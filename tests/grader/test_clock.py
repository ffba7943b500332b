"""The time that is scored: what a liar, a slow claim and a noisy machine make of it."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskfactory.grader.clock import (
    LOW,
    Overhead,
    ShapeTime,
    allowance,
    half_width,
    low,
    quantile_interval,
    shape_time,
    valid_claim,
)

N = 64


def launch(c_ms: float = 0.5, probe_ms: float = 1.0) -> Overhead:
    """A trusted launch without noise."""
    return overhead([c_ms] * 32, probe_ms)


def overhead(beyond_ms: list[float], probe_ms: float = 1.0) -> Overhead:
    """A trusted launch whose walls read so much beyond its probe."""
    return Overhead(tuple(beyond + probe_ms for beyond in beyond_ms), (probe_ms,) * len(beyond_ms))


def timed(wall_ms: float, claim_ms: float, before: Overhead, after: Overhead) -> ShapeTime:
    return shape_time([wall_ms] * N, [claim_ms] * N, [before, after])


# -- claims ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim_ms", [5e-324, 1e-9, 1.0, 2.0])
def test_a_time_within_the_wall_can_be_one(claim_ms: float) -> None:
    assert valid_claim(claim_ms, 2.0)


@pytest.mark.parametrize("claim_ms", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, math.nextafter(2.0, 3.0), 1e300])
def test_anything_else_cannot(claim_ms: float) -> None:
    assert not valid_claim(claim_ms, 2.0)


def test_an_honest_claim_is_the_score() -> None:
    got = timed(2.5, 2.0, launch(), launch())
    assert got.score_ms == pytest.approx(2.0)
    assert got.delta_ms == pytest.approx(0.0)


@pytest.mark.parametrize("claim_ms", [1e-9, 0.1, 1.99])
def test_a_claim_that_is_too_small_is_overruled_by_the_wall(claim_ms: float) -> None:
    got = timed(2.5, claim_ms, launch(), launch())
    assert got.score_ms == got.wall_bound_ms == pytest.approx(2.0)
    assert got.interval_ms == pytest.approx((2.0, 2.0))


def test_a_claim_that_is_too_large_only_hurts() -> None:
    assert timed(2.5, 2.4, launch(), launch()).score_ms == 2.4


def test_lies_in_some_calls_move_the_median_no_further_than_the_wall() -> None:
    claims = [1e-6] * (N // 2 + 1) + [2.0] * (N // 2 - 1)
    assert shape_time([2.5] * N, claims, [launch(), launch()]).score_ms == pytest.approx(2.0)


# -- overheads ---------------------------------------------------------------------------------------------------------


def test_the_smaller_overhead_of_two_launches_counts_whichever_comes_first() -> None:
    for pair in ((launch(0.5), launch(0.9)), (launch(0.9), launch(0.5))):
        got = timed(2.5, 1e-6, *pair)
        assert got.c_ms == pytest.approx(0.5)
        assert got.delta_ms >= 0.4 - 1e-9  # what they differ by
        assert got.disagree


def test_launches_that_agree_do_not_ask_for_a_repetition() -> None:
    assert not timed(2.5, 2.0, launch(0.5), launch(0.55)).disagree  # 0.05 of 2 ms
    assert timed(2.5, 2.0, launch(0.5), launch(0.65)).disagree
    assert not timed(0.65, 0.15, launch(0.5), launch(0.515)).disagree  # more than 5 %, but next to nothing


def test_a_claim_far_below_the_wall_asks_for_a_repetition() -> None:
    assert not timed(2.5, 1.985, launch(), launch()).disagree
    assert timed(2.5, 1.9, launch(), launch()).disagree


def test_a_launch_in_a_slow_phase_counts_for_nothing_once_two_others_agree() -> None:
    quiet, slow = launch(0.5), launch(0.9)
    for launches in itertools.permutations([quiet, slow, launch(0.51)]):
        got = shape_time([2.5] * N, [1e-6] * N, launches)
        assert (got.c_ms, got.c_next_ms) == pytest.approx((0.5, 0.51))
        assert got.delta_ms == pytest.approx(0.01)


@given(st.lists(st.floats(0.1, 2.0), min_size=2, max_size=4), st.floats(0.1, 2.0))
def test_another_launch_never_subtracts_more(overheads: list[float], more: float) -> None:
    launches = [launch(c) for c in overheads]
    assert allowance([*launches, launch(more)])[0] <= allowance(launches)[0] + 1e-12


def test_overheads_come_from_exchanges() -> None:
    class Call:
        def __init__(self, wall_ms: float, claim_ms: float) -> None:
            self.wall_ms, self.claim_ms = wall_ms, claim_ms

    made = Overhead.of([Call(1.75, 1.0), Call(2.5, 1.25)])  # type: ignore[list-item]
    assert made == Overhead((1.75, 2.5), (1.0, 1.25))
    assert made.beyond_ms == pytest.approx((0.75, 1.25))
    assert made.c_ms == pytest.approx(0.8)  # a tenth of the way from the lowest to the next


def test_what_a_probe_took_does_not_matter() -> None:
    assert launch(0.5, probe_ms=0.3).c_ms == pytest.approx(launch(0.5, probe_ms=3.0).c_ms)


# -- noise -------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    noise=st.lists(st.floats(0, 1), min_size=8, max_size=64),
    smaller=st.floats(0, 3), larger=st.floats(0, 3), where=st.sampled_from(["calls", "before", "after"]),
)  # fmt: skip
def test_delta_grows_with_noise(noise: list[float], smaller: float, larger: float, where: str) -> None:
    def delta(scale: float) -> float:
        wall = [2.5 + scale * n for n in noise]
        steady, noisy = launch(), overhead([w - 2.0 for w in wall])
        if where == "calls":
            return shape_time(wall, [2.0] * len(wall), [steady, steady]).delta_ms
        pair = (noisy, noisy)  # the same twice: no drift, only noise
        return shape_time([2.5] * N, [2.0] * N, pair).delta_ms

    smaller, larger = sorted((smaller, larger))
    assert delta(smaller) <= delta(larger) + 1e-12


def test_honest_noise_does_not_lift_the_bound_above_the_truth() -> None:
    """Delays only add; in 95 % of gradings the bound must be at or below the true time, whatever the claim."""
    rng = random.Random(7)
    above = 0
    for _ in range(300):
        walls = [2.5 + rng.expovariate(20) for _ in range(N)]
        launches = [overhead([0.5 + rng.expovariate(20) for _ in range(32)]) for _ in range(2)]
        above += shape_time(walls, [1e-6] * N, launches).wall_bound_ms > 2.0
    assert above <= 15


def test_a_lie_gains_no_more_than_two_deltas_on_a_noisy_machine() -> None:
    rng = random.Random(8)
    missed = 0
    for _ in range(300):
        walls = [2.5 + rng.expovariate(20) for _ in range(N)]
        launches = [overhead([0.5 + rng.expovariate(20) for _ in range(32)]) for _ in range(2)]
        got = shape_time(walls, [1e-6] * N, launches)
        missed += got.score_ms + 2 * got.delta_ms < 2.0
    assert missed <= 15


@pytest.mark.parametrize("honest_calls", [8, 10, 12])
def test_a_worker_gains_nothing_by_making_noise(honest_calls: int) -> None:
    """A tenth of the calls as fast as it can, the rest delayed, and events that say zero."""
    walls = [2.5] * honest_calls + [4.5] * (N - honest_calls)
    assert shape_time(walls, [1e-6] * N, [launch(), launch()]).score_ms >= 2.0 - 1e-9


# -- quantiles ---------------------------------------------------------------------------------------------------------


def coverage(n: int, quantile: float) -> float:
    """The exact probability that the interval of n independent values holds the quantile."""
    bottom, top = quantile_interval(range(n), quantile)  # the ranks themselves, from 0
    below = [math.comb(n, k) * quantile**k * (1 - quantile) ** (n - k) for k in range(n + 1)]
    return math.fsum(below[int(bottom) + 1 : int(top) + 1])


@pytest.mark.parametrize("n", [16, 20, 31, 32, 33, 64, 100, 1000])
def test_the_medians_interval_covers_it_in_95_percent(n: int) -> None:
    assert 0.945 <= coverage(n, 0.5) <= 0.99


@pytest.mark.parametrize("n", [32, 64, 128])
def test_the_low_quantiles_interval_covers_it_in_95_percent(n: int) -> None:
    assert coverage(n, LOW) >= 0.93


def test_coverage_by_simulation() -> None:
    rng = random.Random(5)
    hits = 0
    for _ in range(2000):
        bottom, top = quantile_interval([rng.gauss(0, 1) for _ in range(N)], 0.5)
        hits += bottom <= 0.0 <= top
    assert 0.94 <= hits / 2000 <= 0.98


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=100))
def test_intervals_hold_their_quantile_and_are_values_that_were_seen(values: list[float]) -> None:
    bottom, top = quantile_interval(values, 0.5)
    assert bottom <= statistics.median(values) <= top
    assert {bottom, top} <= set(values)
    bottom, top = quantile_interval(values, LOW)
    assert bottom <= low(values) <= top
    assert half_width(values) == (top - bottom) / 2
    assert min(values) <= low(values) <= statistics.median(values)


def test_order_does_not_matter() -> None:
    values = [random.Random(1).random() for _ in range(33)]
    assert low(values) == low(sorted(values)) == low(values[::-1])
    assert half_width(values) == half_width(values[::-1])


def test_a_single_value_is_its_own_quantile() -> None:
    assert low([3.0]) == 3.0
    assert quantile_interval([3.0], 0.5) == (3.0, 3.0)
    assert half_width([3.0]) == 0.0
