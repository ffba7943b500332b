"""From raw times to score and reward."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskfactory.grader.ceilings import Peaks
from taskfactory.grader.clock import Overhead
from taskfactory.grader.plan import BrokenEnvironment, Plan
from taskfactory.grader.result import Result, ShapeResult, Status
from taskfactory.grader.score import ImpossibleTime, Timed, fill_in, total

MEASURED = {"copy_gbps": 1000.0, "matmul_tflops": 500.0}
PEAKS = Peaks(bytes_per_s=1.25e12, flop_per_s=1e15)
N = 32


def launch(c_ms: float = 0.5) -> Overhead:
    return Overhead((c_ms + 1.0,) * N, (1.0,) * N)


def entry(
    time_ms: float, claim_ms: float | None = None, floor: tuple[float, float] = (1e9, 0.0), after_ms: float = 0.5
) -> Timed:
    """A graded shape of 2 GB of canonical work whose calls take `time_ms`; by its floor 1 ms is the limit."""
    plan = Plan("graded", 3, (4, 5), "", 2 * 10**9, floor)
    shape = ShapeResult("graded", 3, [4, 5], plan.work, N)
    shape.wall_ms, shape.claim_ms = [time_ms + 0.5] * N, [time_ms if claim_ms is None else claim_ms] * N
    return Timed(plan, shape, [launch(), launch(after_ms)])


def result() -> Result:
    return Result("toy", "1.0.0", "sha256:0", "GB/s", "sha256:1", "grade", Status.PASSED)


def filled(**changes: Any) -> ShapeResult:
    shape = ShapeResult("graded", 1, [1], 1, N)
    shape.metric, shape.score_ms, shape.interval_ms, shape.fraction_of_limit = 100.0, 2.0, [1.6, 2.5], 0.5
    shape.bounded = True
    for name, value in changes.items():
        setattr(shape, name, value)
    return shape


# -- one shape ---------------------------------------------------------------------------------------------------------


def test_metric_and_fraction_follow_from_the_score_time() -> None:
    timed = entry(2.0)
    assert not fill_in(timed, MEASURED, PEAKS, 1e9)
    shape = timed.shape
    assert shape.score_ms == pytest.approx(2.0)
    assert shape.metric == pytest.approx(1000.0)  # 2 GB in 2 ms
    assert shape.limit_ms == pytest.approx(1.0)
    assert shape.fraction_of_limit == pytest.approx(0.5)
    assert shape.bounded


def test_teraflops_are_decimal_too() -> None:
    timed = entry(2.0)
    fill_in(timed, MEASURED, PEAKS, 1e12)
    assert timed.shape.metric == pytest.approx(1.0)


def test_a_lying_claim_does_not_raise_the_metric() -> None:
    honest, liar = entry(2.0), entry(2.0, claim_ms=0.9)
    for timed in (honest, liar):
        fill_in(timed, MEASURED, PEAKS, 1e9)
    assert liar.shape.metric == pytest.approx(honest.shape.metric)


@pytest.mark.parametrize("floor", [(1.25e9, 0.0), (0.0, 1e12), (1.25e9, 1e12)])
def test_faster_than_the_datasheet_is_impossible(floor: tuple[float, float]) -> None:
    fill_in(entry(1.001, floor=floor), MEASURED, PEAKS, 1e9)
    with pytest.raises(ImpossibleTime, match=r"graded shape 3: 0\.999 ms, the floor is 1 ms") as caught:
        fill_in(entry(0.999, floor=floor), MEASURED, PEAKS, 1e9)
    assert caught.value.plan.ordinal == 3


def test_faster_than_the_measured_ceiling_is_only_more_than_one() -> None:
    """Reads alone are faster than the copy that the ceiling is."""
    timed = entry(0.9)
    fill_in(timed, MEASURED, PEAKS, 1e9)
    assert timed.shape.fraction_of_limit == pytest.approx(1 / 0.9)


def test_without_a_datasheet_nothing_is_impossible() -> None:
    timed = entry(1e-3)
    fill_in(timed, MEASURED, None, 1e9)
    assert timed.shape.metric == pytest.approx(2e6)


def test_without_a_floor_the_outputs_bytes_are_unavoidable() -> None:
    plan = Plan("graded", 1, (4,), "", 2 * 10**9, None)
    plan.outputs = [{"numel": 10**9, "itemsize": 4}, {"numel": 10**9, "itemsize": 1}]
    timed = Timed(plan, entry(4.0).shape, [launch(), launch()])
    fill_in(timed, MEASURED, PEAKS, 1e9)
    assert timed.shape.limit_ms == pytest.approx(5.0)


def test_a_time_near_the_noise_is_not_bounded_and_disagreement_is_reported() -> None:
    timed = entry(2.0, after_ms=0.9)
    assert fill_in(timed, MEASURED, PEAKS, 1e9)
    assert timed.shape.delta_ms == pytest.approx(0.4)
    assert not timed.shape.bounded


# -- the task ----------------------------------------------------------------------------------------------------------


def test_the_score_is_the_geometric_mean() -> None:
    got = result()
    total(got, [filled(metric=100.0), filled(metric=400.0)])
    assert got.timed
    assert got.score == pytest.approx(200.0)
    assert got.reward == pytest.approx(0.5)


def test_the_interval_is_in_order_and_holds_the_score() -> None:
    got = result()
    total(got, [filled()])
    assert got.score_interval == pytest.approx([100 * 2.0 / 2.5, 100 * 2.0 / 1.6])
    assert got.score is not None
    assert got.score_interval is not None
    assert got.score_interval[0] <= got.score <= got.score_interval[1]


def test_the_reward_is_one_at_most_but_one_slow_shape_counts() -> None:
    got = result()
    total(got, [filled(fraction_of_limit=1.5), filled(fraction_of_limit=1.2)])
    assert got.reward == 1.0
    total(got, [filled(fraction_of_limit=1.6), filled(fraction_of_limit=0.1)])
    assert got.reward == pytest.approx(0.4)


def test_a_time_that_is_not_bounded_ends_it_and_the_first_line_has_no_figures() -> None:
    with pytest.raises(BrokenEnvironment) as raised:
        total(result(), [filled(), filled(ordinal=2, bounded=False, delta_ms=0.08, limit_ms=0.237)])
    public, private = str(raised.value).split("\n")
    assert public.startswith("graded shape 2: the clock is too noisy")
    assert "ms" not in public
    assert "0.08" in private
    assert "0.237" in private


times = st.floats(0.9, 1e4)


@given(st.lists(st.tuples(times, st.floats(0, 1)), min_size=1, max_size=6))
def test_score_and_reward_are_sane_for_any_times(drawn: list[tuple[float, float]]) -> None:
    shapes = []
    for time_ms, honesty in drawn:
        timed = entry(time_ms, claim_ms=max(1e-9, time_ms * honesty))
        fill_in(timed, MEASURED, PEAKS, 1e9)
        shapes.append(timed.shape)
    got = result()
    total(got, shapes)
    assert got.score is not None
    assert got.reward is not None
    assert got.score_interval is not None
    assert 0 < got.reward <= 1
    metrics = [shape.metric for shape in shapes if shape.metric is not None]
    assert min(metrics) * (1 - 1e-9) <= got.score <= max(metrics) * (1 + 1e-9)
    assert got.score_interval[0] * (1 - 1e-9) <= got.score <= got.score_interval[1] * (1 + 1e-9)
    assert all(math.isfinite(end) for end in got.score_interval)
