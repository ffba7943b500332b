"""The gates, against independent computations: what passes, what does not, and what a report says about it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskfactory.grader import compare
from taskfactory.grader.compare import TILE, Gates, OutputReport, Region, build_regions, compare_outputs
from taskfactory.grader.result import Status, dumps

LOOSE = Gates(tol=1e9, kappa=1e9)
NAN, INF = math.nan, math.inf


def one(r: torch.Tensor, o: torch.Tensor, gates: Gates = LOOSE, **options: Any) -> OutputReport:
    """The report of a task with one output."""
    (report,) = compare_outputs([r], [o], ["out"], gates, **options)
    return report


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact_error(r: torch.Tensor, o: torch.Tensor) -> float:
    """E in float64, by numpy."""
    a, b = r.double().numpy().ravel(), o.double().numpy().ravel()
    finite = np.isfinite(a)
    return float(np.linalg.norm(b[finite] - a[finite]) / np.linalg.norm(a[finite]))


def exact_tile_ratio(r: torch.Tensor, o: torch.Tensor, gates: Gates) -> float:
    """The worst tile, straight from the module's formula."""
    a, b = r.double().numpy().ravel(), o.double().numpy().ravel()
    cuts = range(TILE, len(a), TILE)
    norms = np.array([np.linalg.norm(t) for t in np.split(a, cuts)])
    errors = np.array([np.linalg.norm(t) for t in np.split(b - a, cuts)])
    median = np.sort(norms)[(len(norms) - 1) // 2]
    return float((errors / (gates.tol * np.maximum(norms, gates.epsilon * median))).max())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [1.0, INF])
def test_neither_side_is_changed(dtype: torch.dtype, value: float) -> None:
    r, o = noise(2, 9).to(dtype), noise(2, 9, seed=1).to(dtype)
    r[0, 0] = o[0, 0] = value
    kept = r.clone(), o.clone()
    one(r, o, dtypes=[["float64", "float32", "bfloat16"]])
    assert torch.equal(r, kept[0])
    assert torch.equal(o, kept[1])


def test_float64_squares_that_overflow_are_no_infinities() -> None:
    r = torch.tensor([1e200, 1.0], dtype=torch.float64)
    assert one(r, torch.tensor([1e200, 2.0], dtype=torch.float64), dtypes=[["float64"]]).failure != "not_finite"


# -- the global gate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("o_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5, 11), (TILE,), (TILE + 1,), (5, 3000)])
def test_e_is_the_relative_frobenius_error_in_float64(
    shape: tuple[int, ...], r_dtype: torch.dtype, o_dtype: torch.dtype
) -> None:
    r = noise(*shape, seed=1).to(r_dtype)
    o = (r.float() * (1 + 1e-2 * noise(*shape, seed=2))).to(o_dtype)
    gates = Gates(0.5)
    report = one(r, o, gates)
    assert report.error == pytest.approx(exact_error(r, o), rel=1e-12)
    assert report.tile_ratio == pytest.approx(exact_tile_ratio(r, o, gates), rel=1e-12)
    assert not report.failure
    assert not report.differences


def test_an_error_of_exactly_tol_passes_and_the_next_number_fails() -> None:
    r, o = torch.tensor([4.0]), torch.tensor([5.0])
    assert one(r, o, Gates(tol=0.25)).failure == ""
    failed = one(r, o, Gates(tol=math.nextafter(0.25, 0)))
    assert failed.failure == Status.INCORRECT
    assert "relative error 0.25 exceeds the tolerance 0.25" in failed.message


def test_a_tile_of_exactly_kappa_passes_and_the_next_number_fails() -> None:
    r, o = torch.tensor([4.0]), torch.tensor([5.0])
    assert one(r, o, Gates(tol=0.25, kappa=1.0)).failure == ""
    assert one(r, o, Gates(tol=0.25, kappa=math.nextafter(1, 0))).failure == Status.INCORRECT


def test_a_tolerance_that_is_no_number_passes_nothing_but_equality() -> None:
    r = noise(10)
    assert one(r, r + 1e-6, Gates(tol=NAN)).failure
    assert not one(r, r.clone(), Gates(tol=NAN)).failure


def test_fp32_squares_that_overflow_do_not_disturb_e() -> None:
    r = torch.full((1000,), 3e38)
    o = r.clone()
    o[7] = 2.9e38
    report = one(r, o, Gates(1e-2))
    assert report.error == pytest.approx(exact_error(r, o), rel=1e-9)
    assert math.isfinite(report.error)
    assert not report.failure


def test_fp32_squares_that_underflow_do_not_hide_an_error() -> None:
    r = torch.full((1000,), 1e-30)
    assert one(r, r * 2, Gates(0.5)).error == pytest.approx(1.0, rel=1e-6)
    assert one(r, r * 2, Gates(0.5)).failure == Status.INCORRECT


def test_a_sum_of_many_small_squares_keeps_its_precision() -> None:
    """In fp32 the sum would stop growing long before the end."""
    r = torch.full((1 << 20,), 1.0)
    o = torch.full((1 << 20,), 1.001)
    assert one(r, o).error == pytest.approx(exact_error(r, o), rel=1e-10)


@pytest.mark.parametrize("r", [torch.zeros(5), torch.zeros(2, 3, dtype=torch.bfloat16)])
def test_a_reference_of_zero_norm_needs_equality(r: torch.Tensor) -> None:
    assert one(r, r.clone(), Gates(0.1)).failure == ""
    assert one(r, -r, Gates(0.1)).failure == ""
    off = r.clone()
    off.view(-1)[1] = 1e-38
    report = one(r, off, Gates(0.1))
    assert report.failure == Status.INCORRECT
    assert report.error == INF


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sign_of_zero_does_not_matter(dtype: torch.dtype) -> None:
    r = torch.tensor([0.0, -0.0, 1.0])
    report = one(r, torch.tensor([-0.0, 0.0, 1.0]).to(dtype), Gates(1e-9))
    assert report.failure == ""
    assert report.error == 0.0


def test_outputs_without_entries_pass_if_their_shapes_agree() -> None:
    r = torch.zeros(0, 4)
    region = Region("all", 0, torch.ones(0, 4, dtype=torch.bool), 0.1)
    for o in (torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.bfloat16)):
        report = one(r, o, regions=[region])
        assert (report.failure, report.error, report.regions) == ("", 0.0, {})
    assert one(r, torch.zeros(4, 0)).failure == Status.WRONG_SHAPE


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_e_and_tiles_agree_with_numpy_for_any_values(data: st.DataObject) -> None:
    finite = st.floats(-(2.0**100), 2.0**100, width=32)
    values = data.draw(st.lists(st.tuples(finite, finite), min_size=1, max_size=40))
    r, o = (torch.tensor(column, dtype=torch.float32) for column in zip(*values, strict=True))
    norm = float(np.linalg.norm(r.double().numpy()))
    report = one(r, o)
    if torch.equal(r, o):
        assert report.error == 0.0
    elif norm == 0.0:
        assert report.error == INF
    else:
        assert report.error == pytest.approx(exact_error(r, o), rel=1e-9)


# -- not finite --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("expected", "actual", "agree"),
    [
        (NAN, NAN, True), (INF, INF, True), (-INF, -INF, True),
        (1.0, NAN, False), (1.0, INF, False), (NAN, 1.0, False), (INF, 1.0, False),
        (INF, -INF, False), (-INF, INF, False), (NAN, INF, False), (INF, NAN, False), (-INF, NAN, False),
    ],
)  # fmt: skip
def test_what_is_not_finite_agrees_in_position_kind_and_sign(
    expected: float, actual: float, agree: bool, dtype: torch.dtype
) -> None:
    r, o = noise(3, 4), noise(3, 4).to(dtype)
    r[1, 2], o[1, 2] = expected, actual
    report = one(r, o, Gates(0.1))
    if agree:
        assert report.failure == ""
        assert report.error == pytest.approx(exact_error(r, o), abs=1e-300)
    else:
        assert report.failure == Status.NOT_FINITE
        assert report.error == INF
        assert [d["index"] for d in report.differences] == [[1, 2]]


def test_the_same_kinds_at_swapped_positions_do_not_agree() -> None:
    r, o = torch.tensor([NAN, INF, 1.0]), torch.tensor([INF, NAN, 1.0])
    report = one(r, o)
    assert report.failure == Status.NOT_FINITE
    assert [d["index"] for d in report.differences] == [[0], [1]]
    assert report.differences[0] == {"index": [0], "expected": "nan", "actual": "inf"}


def test_an_error_beside_matching_infinities_still_counts() -> None:
    r = torch.tensor([INF, -INF, NAN, 3.0, 4.0])
    o = torch.tensor([INF, -INF, NAN, 3.0, 5.0])
    report = one(r, o, Gates(0.1))
    assert report.error == pytest.approx(0.2)
    assert report.failure == Status.INCORRECT
    assert [d["index"] for d in report.differences] == [[4]]


def test_a_reference_that_is_finite_nowhere_needs_the_same_everywhere() -> None:
    r = torch.tensor([NAN, INF])
    assert one(r, r.clone(), Gates(0.1)).failure == ""
    assert one(r, torch.tensor([NAN, 5.0]), Gates(0.1)).failure == Status.NOT_FINITE


def test_fp16_overflow_in_a_float32_output_is_seen() -> None:
    r = torch.tensor([1e5, 1.0])
    assert one(r, r.half().float(), Gates(0.1)).failure == Status.NOT_FINITE


# -- tiles -------------------------------------------------------------------------------------------------------------


def test_one_wrong_tile_fails_although_the_whole_is_within_tolerance() -> None:
    r = noise(50 * TILE)
    o = r.clone()
    o[7 * TILE : 8 * TILE] *= 1.05
    gates = Gates(tol=1e-2)
    report = one(r, o, gates)
    assert report.error < gates.tol
    assert report.tile_ratio == pytest.approx(5.0, rel=1e-3)
    assert report.failure == Status.INCORRECT
    assert "worst tile is 5 tolerances off, allowed are 4" in report.message
    assert one(r, o, Gates(tol=1e-2, kappa=5.1)).failure == ""


def test_a_tile_of_tiny_norm_is_judged_by_the_typical_tile() -> None:
    """Such a tile may be rounding noise of a sum that cancels; epsilon says how small is tiny."""
    r = noise(9 * TILE)
    r[TILE : 2 * TILE] *= 1e-6
    o = r.clone()
    o[TILE : 2 * TILE] *= 1.5
    assert one(r, o, Gates(1e-2, epsilon=0.1)).failure == ""
    judged = one(r, o, Gates(1e-2, epsilon=0.0))
    assert judged.failure == Status.INCORRECT
    assert judged.tile_ratio == pytest.approx(50, rel=1e-3)
    o[TILE : 2 * TILE] = r[TILE : 2 * TILE] + 0.01 * r[:TILE]  # wrong by 10 % of what epsilon forgives
    assert one(r, o, Gates(1e-2, kappa=9.0, epsilon=0.1)).failure == Status.INCORRECT


def test_a_short_last_tile_is_a_tile_of_its_own() -> None:
    r = noise(3 * TILE + 64)
    o = r.clone()
    o[3 * TILE :] = 0.0
    gates = Gates(0.1)
    report = one(r, o, gates)
    assert report.error < gates.tol
    assert report.tile_ratio == pytest.approx(exact_tile_ratio(r, o, gates))
    assert report.failure == Status.INCORRECT


def test_tiles_follow_the_references_contiguous_order_whatever_the_strides() -> None:
    r = noise(4, TILE)
    o = r.clone()
    o[2] *= 1.2
    strided = o.t().contiguous().t()
    assert not strided.is_contiguous()
    gates = Gates(0.2, kappa=1.0)
    assert one(r, strided, gates).tile_ratio == pytest.approx(one(r, o, gates).tile_ratio)
    assert one(r.t().contiguous().t(), o, gates).tile_ratio == pytest.approx(1.0, rel=1e-5)


def test_a_tile_where_the_reference_is_zero_may_hold_nothing_if_the_typical_tile_is_zero_too() -> None:
    r = torch.zeros(4 * TILE)
    r[0] = 1.0
    o = r.clone()
    o[-1] = 1e-30
    report = one(r, o, Gates(0.1))
    assert report.tile_ratio == INF
    assert report.failure == Status.INCORRECT


# -- chunks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numel", [3 * TILE, 6 * TILE + 1, 5 * TILE - 1, 2 * TILE])
def test_chunks_give_the_numbers_of_one_pass(monkeypatch: pytest.MonkeyPatch, numel: int) -> None:
    r = noise(numel, seed=3)
    r[5], r[-3] = INF, NAN
    o = (r * (1 + 0.01 * noise(numel, seed=4))).bfloat16()
    mask = torch.rand(numel, generator=torch.Generator().manual_seed(5)) < 0.3
    regions = [Region("some", 0, mask, 1.0), Region("end", 0, torch.arange(numel) == numel - 1, 1.0)]
    whole = one(r, o, Gates(0.5), regions=regions)
    monkeypatch.setattr(compare, "CHUNK", 2 * TILE)
    chunked = one(r, o, Gates(0.5), regions=regions)
    assert chunked.error == pytest.approx(whole.error, rel=1e-12)
    assert chunked.tile_ratio == pytest.approx(whole.tile_ratio, rel=1e-12)
    assert chunked.regions == pytest.approx(whole.regions, rel=1e-12)
    assert chunked.failure == whole.failure == ""
    assert whole.regions["some"] == pytest.approx(exact_error(r[mask], o[mask]), rel=1e-9)


def test_a_difference_in_a_later_chunk_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "CHUNK", TILE)
    r = noise(3, TILE)
    for value, status in ((NAN, Status.NOT_FINITE), (1e9, Status.INCORRECT)):
        o = r.clone()
        o[2, 17] = value
        report = one(r, o, Gates(1e-2))
        assert report.failure == status
        assert report.differences[0]["index"] == [2, 17]


@pytest.mark.parametrize("value", [1.0, INF])
def test_no_copy_of_a_whole_output_in_float64_is_made(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    monkeypatch.setattr(compare, "CHUNK", TILE)
    converted: list[int] = []
    double, to = torch.Tensor.double, torch.Tensor.to

    def watched(self: torch.Tensor, *what: Any, **options: Any) -> torch.Tensor:
        if torch.float64 in what:
            converted.append(self.numel())
        return to(self, *what, **options)

    monkeypatch.setattr(torch.Tensor, "double", lambda self: (converted.append(self.numel()), double(self))[1])
    monkeypatch.setattr(torch.Tensor, "to", watched)
    r = noise(10, TILE)
    r[5, 5] = value
    one(r, r * 1.1, Gates(1e-2), regions=[Region("all", 0, torch.tensor(True), 1.0)])
    assert len(converted) >= 20
    assert max(converted) <= TILE


# -- regions -----------------------------------------------------------------------------------------------------------


def test_a_region_has_its_own_tolerance() -> None:
    r = noise(100, 40)
    o = r.clone()
    o[:, -1] *= 1.03
    column = torch.zeros(40, dtype=torch.bool)
    column[-1] = True
    strict, lax = Region("last column", 0, column, 0.02), Region("last column", 0, column, 0.04)
    report = one(r, o, Gates(0.01), regions=[strict])
    assert report.error < 0.01
    assert report.regions == {"last column": pytest.approx(0.03, rel=1e-4)}
    assert report.failure == Status.INCORRECT
    assert "region last column: relative error 0.03 exceeds 0.02" in report.message
    assert one(r, o, Gates(0.01), regions=[lax]).failure == ""


def test_a_region_belongs_to_its_output_alone() -> None:
    r = noise(8)
    region = Region("half", 1, torch.arange(8) < 4, 1e-3)
    reports = compare_outputs([r, r], [r * 1.01, r.clone()], ["a", "b"], Gates(0.1), regions=[region])
    assert [report.regions for report in reports] == [{}, {"half": 0.0}]
    reports = compare_outputs([r, r], [r.clone(), r * 1.01], ["a", "b"], Gates(0.1), regions=[region])
    assert [report.failure for report in reports] == ["", "incorrect"]


def test_an_empty_mask_is_skipped_and_a_scalar_mask_covers_everything() -> None:
    r = noise(6)
    regions = [Region("none", 0, torch.zeros(6, dtype=torch.bool), 0.0), Region("all", 0, torch.tensor(True), 0.5)]
    report = one(r, r * 1.25, Gates(0.5), regions=regions)
    assert report.failure == ""
    assert report.regions == {"all": pytest.approx(0.25)}
    assert one(r, r.clone(), regions=regions).regions == {"all": 0.0}


def test_a_region_where_the_reference_is_zero_needs_equality() -> None:
    r = noise(6)
    r[3] = 0.0
    o = r.clone()
    o[3] = 1e-20
    region = Region("corner", 0, torch.arange(6) == 3, 0.9)
    report = one(r, o, Gates(0.5), regions=[region])
    assert report.regions["corner"] == INF
    assert report.failure == Status.INCORRECT


def test_regions_are_built_by_output_name() -> None:
    mask = torch.tensor(True)
    built = build_regions({"x": ("b", mask, 1), "y": ("a", mask, 2e-2)}, ["a", "b"])
    assert [(region.name, region.output, region.tol) for region in built] == [("x", 1, 1.0), ("y", 0, 0.02)]
    with pytest.raises(ValueError, match=r"'x' names the output 'c'; there are a, b"):
        build_regions({"x": ("c", mask, 1)}, ["a", "b"])


# -- exact outputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool])
def test_integers_and_bools_are_compared_exactly(dtype: torch.dtype) -> None:
    r = torch.arange(60).reshape(3, 4, 5).remainder(2).to(dtype)
    assert one(r, r.clone(), Gates(1e9)).failure == ""
    o = r.clone()
    o[1, 3, 2] = 1 - int(o[1, 3, 2])
    report = one(r, o, Gates(1e9))
    assert report.failure == Status.INCORRECT
    assert report.error == 1.0
    assert "1 of 60 entries differ" in report.message
    assert report.differences == [{"index": [1, 3, 2], "expected": int(r[1, 3, 2]), "actual": int(o[1, 3, 2])}]


def test_large_integers_are_not_compared_as_floats() -> None:
    r = torch.tensor([2**53, 2**62], dtype=torch.int64)
    assert one(r, r + torch.tensor([0, 1])).failure == Status.INCORRECT


def test_an_integer_output_may_have_a_declared_dtype() -> None:
    r = torch.arange(5, dtype=torch.int32)
    declared = [("int32", "int64")]
    assert one(r, r.long(), dtypes=declared).failure == ""
    assert one(r, r.long() + 2**32, dtypes=declared).failure == Status.INCORRECT
    assert one(r, r.long()).failure == Status.WRONG_DTYPE


# -- structure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5), (5, 4), (20,), (4, 5, 1), (1, 4, 5), ()])
def test_another_shape_is_wrong_even_if_it_broadcasts(shape: tuple[int, ...]) -> None:
    report = one(torch.zeros(4, 5), torch.zeros(shape))
    assert report.failure == Status.WRONG_SHAPE
    assert report.message == f"shape {shape}, expected (4, 5)"


@pytest.mark.parametrize(
    ("r", "o", "declared", "right"),
    [
        ("float32", "bfloat16", None, True), ("bfloat16", "float32", None, True), ("float16", "float32", None, True),
        ("float32", "float16", None, False), ("float32", "float64", None, False), ("float32", "int32", None, False),
        ("float16", "float16", None, False), ("float32", "float16", ("float16",), True),
        ("float32", "float32", ("bfloat16",), False), ("int32", "int64", None, False), ("bool", "uint8", None, False),
        ("int64", "float32", None, False), ("float32", "complex64", None, False),
        ("float32", "float8_e4m3fn", None, False),
    ],
)  # fmt: skip
def test_dtypes(r: str, o: str, declared: Sequence[str] | None, right: bool) -> None:
    report = one(torch.ones(3).to(getattr(torch, r)), torch.ones(3).to(getattr(torch, o)), dtypes=[declared])
    assert report.failure == ("" if right else Status.WRONG_DTYPE)
    assert right or report.message.startswith(f"dtype {o}, expected ")


def test_every_failure_is_a_status_and_every_report_is_json() -> None:
    r = torch.tensor([1.0, 2.0, NAN, 0.0])
    wrong = [r.half(), r[:3], torch.tensor([1.0, INF, NAN, 0.0]), torch.tensor([1.0, 9.0, NAN, 0.0])]
    for o in wrong:
        report = one(r, o, Gates(1e-3))
        assert Status(report.failure) is not Status.PASSED
        json.loads(dumps(dataclasses.asdict(report)), parse_constant=pytest.fail)


# -- differences -------------------------------------------------------------------------------------------------------


def test_at_most_five_differences_are_named_in_order() -> None:
    r = torch.ones(4, 4, 4)
    o = r.clone()
    places = [(0, 0, 1), (0, 3, 3), (1, 0, 0), (2, 2, 2), (3, 1, 0), (3, 3, 3)]
    for k, place in enumerate(places):
        o[place] = 10.0 + k
    report = one(r, o, Gates(1e-2))
    assert [d["index"] for d in report.differences] == [list(place) for place in places[:5]]
    assert [d["actual"] for d in report.differences] == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert {d["expected"] for d in report.differences} == {1.0}


def test_the_difference_of_a_scalar_has_an_empty_index() -> None:
    report = one(torch.tensor(1.0), torch.tensor(2.0), Gates(1e-2))
    assert report.differences == [{"index": [], "expected": 1.0, "actual": 2.0}]


def test_differences_of_a_strided_output_are_named_by_its_own_coordinates() -> None:
    r = torch.ones(3, 7)
    o = torch.ones(7, 3)
    o[5, 2] = 4.0
    assert one(r, o.t(), Gates(1e-2)).differences[0]["index"] == [2, 5]


def test_differences_are_named_for_huge_values_too() -> None:
    r = torch.full((8,), 1e38)
    o = r.clone()
    o[3] = -1e38
    assert [d["index"] for d in one(r, o, Gates(1e-2)).differences] == [[3]]
