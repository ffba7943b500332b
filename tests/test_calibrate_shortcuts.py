"""The shortcuts that a solver might try in our five tasks are each rejected by a gate, region or case.

And each of them by the inputs of timed calls alone, so that recognising the cases would not help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import pytest
import torch

from calibrating import SEED, ours
from taskfactory.calibrate.precision import rounding
from taskfactory.checks.inputs import same
from taskfactory.checks.lab import Lab
from taskfactory.grader.task import MIXED
from taskfactory.paths import specs_dir, specs_in

MLA, MASK = "deepseek-v32-sparse-mla-decode", "adaptive-sparsity-threshold"


@lru_cache
def lab(task: str) -> Lab:
    return Lab(ours(task))


def rejected_by(task: str, shortcut: Callable) -> dict[tuple[int, ...], list[str]]:
    """Per correct shape the kinds of inputs that reject a shortcut; "" stands for the default inputs."""
    bench = lab(task)
    found: dict[tuple[int, ...], list[str]] = {}
    for shape in bench.smallest_first()[:2]:
        for case in ("", *bench.cases):
            args = bench.inputs(shape, case, SEED)
            if args is None:
                continue
            expected = bench.call("reference_src", "reference", bench.reference, args)
            outputs = bench.call("reference_src", "shortcut", shortcut, args)
            if not bench.judge(expected, outputs, bench.regions(args, expected)).passed:
                found.setdefault(shape, []).append(case)
    return found


def timed_use(task: str, shortcut: Callable, shapes: Sequence[tuple[int, ...]] = ()) -> float:
    """The least share of a gate that a shortcut uses on the inputs of timed calls, over shapes and two seeds."""
    bench = lab(task)
    assert bench.timed_case == MIXED
    uses = []
    for shape in shapes or bench.smallest_first()[:2]:
        for seed in (SEED, SEED + 1):
            args = bench.inputs(shape, MIXED, seed)
            assert args is not None
            expected = bench.call("reference_src", "reference", bench.reference, args)
            outputs = bench.call("reference_src", "shortcut", shortcut, args)
            uses.append(bench.judge(expected, outputs, bench.regions(args, expected)).use)
    return min(uses)


def test_halo_exchange_in_the_tiled_convolution():
    """A convolution of the whole canvas: right everywhere but on the borders of tiles."""
    task = "conv3d-tiled-decode-blend"
    found = rejected_by(task, lab(task).variant("ablations.halo_exchange"))
    assert len(found) == 2
    assert all("" in cases for cases in found.values())
    assert timed_use(task, lab(task).variant("ablations.halo_exchange")) > 3


def test_a_convolution_that_takes_the_grid_for_granted():
    task = "conv3d-tiled-decode-blend"
    regular = lab(task).variant("ablations.regular_grid")
    assert all("" not in cases for cases in rejected_by(task, regular).values())
    assert timed_use(task, regular, [(16, 8, 2, 64, 96, 24, 16)]) > 3


def test_late_rows_of_based_in_fp8():
    """Rounded at the end, or computed from rounded values."""
    task = "based-forward"
    late = lab(task).variant("ablations.fp8_late_rows")
    found = rejected_by(task, late)
    assert len(found) == 2
    assert all({"", "even_values"} <= set(cases) for cases in found.values())
    args = lab(task).inputs(lab(task).spec.correct_shapes[0], "even_values", SEED)
    expected = (lab(task).reference(*args),)
    judged = lab(task).judge(expected, (late(*args),), lab(task).regions(args, expected))
    assert judged.use > 5, "each result is rounded by a seventeenth"
    assert timed_use(task, late) > 2.5
    coarse, reference = rounding("fp8"), lab(task).reference

    def late_values(q, k, v, scale=None):
        out = reference(q, k, coarse(v), scale)
        out[:, :64] = reference(*(x[:, :64] for x in (q, k, v)), scale)
        return out

    assert timed_use(task, late_values) > 2.2


def test_the_energy_of_timed_based_is_in_its_late_tokens():
    """With the default inputs a norm over everything lets fp8 pass in all but the first eighth, with mixed ones not."""
    bench = lab("based-forward")
    late = bench.variant("ablations.fp8_late_rows")
    for case, bound in (("", 0.95), (MIXED, 1.2)):
        args = bench.inputs(bench.spec.correct_shapes[0], case, SEED)
        expected, rounded = bench.reference(*args).double(), late(*args).double()
        error = float((rounded - expected).norm() / expected.norm()) / bench.spec.tol
        assert (error < bound) if not case else (error > bound)


def test_sparse_mla_from_8_bit_integers():
    """Rows and queries in int8 with a scale each; of the short queries alone, which the long ones' norm would hide."""
    coarse, bench = rounding("int8"), lab(MLA)

    def int8(q, kv_cache, indices, dv, scale=None):
        return bench.reference(coarse(q), coarse(kv_cache), indices, dv, scale)

    def short_int8(q, kv_cache, indices, dv, scale=None):
        short = q.float().norm(dim=-1, keepdim=True) < 4 * q.shape[-1] ** 0.5
        exact = bench.reference(q, kv_cache, indices, dv, scale)
        return torch.where(short, int8(q, kv_cache, indices, dv, scale), exact)

    assert len(rejected_by(MLA, int8)) == 2
    assert timed_use(MLA, int8) > 1.4
    assert timed_use(MLA, short_int8) > 1.4
    args = bench.inputs(bench.spec.correct_shapes[0], MIXED, SEED)
    expected = bench.reference(*args)
    assert bench.judge((expected,), (short_int8(*args),), []).passed, "without regions it would pass"


def test_sparse_mla_with_a_cubic_for_the_exponential():
    cubic = lab(MLA).variant("ablations.cubic_exponential")
    found = rejected_by(MLA, cubic)
    assert len(found) == 2
    assert all({"peaked", "huge_logits"} <= set(cases) for cases in found.values())
    assert all("" not in cases for cases in found.values()), "flat logits do not tell it from the exponential"
    assert timed_use(MLA, cubic) > 50


def test_sparse_mla_without_a_maximum():
    """exp of logits as they are: faster, and right until it overflows."""

    def unshifted(q, kv_cache, indices, dv, scale=None):
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        rows = kv_cache[indices.long()].float()
        weights = torch.exp(torch.bmm(q.float(), rows.mT) * factor)
        return torch.bmm(weights / weights.sum(-1, keepdim=True), rows[..., :dv]).bfloat16()

    assert all("" not in cases for cases in rejected_by(MLA, unshifted).values())
    assert timed_use(MLA, unshifted, [(16, 64, 32, 128, 32, 1024)]) > 50


def test_mask_that_never_reads_far_tiles():
    """Scores fall off with distance, so a kernel may hope that tiles more than a frame away are never kept."""
    bench = lab(MASK)
    namespace = bench.namespace

    def near_only(scores, delta, grid):
        frame = torch.arange(scores.shape[-1]) // (grid[1] * grid[2])
        far = (frame[:, None] - frame).abs() > 1
        kept = namespace["_keep"](scores.masked_fill(far, float("-inf")), delta)
        return namespace["_report"](namespace["_dilate"](kept, grid))

    shapes = [shape for shape in bench.spec.correct_shapes if shape[2] > 2]
    assert shapes
    for shape in shapes:
        args = bench.inputs(shape, "far_hits", SEED)
        expected = bench.call("reference_src", "reference", bench.reference, args)
        assert not bench.judge(expected, near_only(*args), []).passed
    assert timed_use(MASK, near_only, shapes) == math.inf


def test_mask_that_skips_what_no_default_call_keeps():
    """On a grid like the graded ones nothing beyond 24 units of the generator's distance is ever kept by default."""
    bench, shape = lab(MASK), (1, 2, 9, 12, 12)
    weight = torch.tensor([1.6, 0.5, 0.5])

    def near_only(scores, delta, grid):
        steps = torch.meshgrid(*(torch.arange(float(n)) for n in grid), indexing="ij")
        place = torch.stack([step.flatten() for step in steps], dim=1) * weight
        far = torch.cdist(place, place, p=1) > 16.0
        assert far.any()
        return bench.reference(scores.masked_fill(far, float("-inf")), delta, grid)

    args = bench.inputs(shape, "", SEED)
    assert bench.judge(bench.reference(*args), near_only(*args), []).passed
    assert timed_use(MASK, near_only, [shape]) == math.inf


def test_mask_with_margins_from_the_table_of_the_default_inputs():
    bench = lab(MASK)

    def fixed(scores, delta, grid):
        return bench.reference(scores, bench.namespace["_margins"](len(delta)), grid)

    assert timed_use(MASK, fixed) == math.inf


def test_gate_that_reads_what_it_must_not():
    task = "cache-hit-skip-gate"
    select = lab(task).variant("ablations.arithmetic_select")
    shape = (2, 129, 64, 64)
    args = lab(task).inputs(shape, "", SEED)
    assert lab(task).judge(lab(task).reference(*args), select(*args), []).passed
    assert timed_use(task, select, [shape]) == math.inf


@pytest.mark.parametrize("task", [file.stem.replace("_", "-") for file in specs_in(specs_dir())])
def test_timed_inputs_differ_in_values_of_floats_and_places_of_tiles_alone(task):
    """What decides how much work a call is, flags, lists and counts, is that of the ordinary inputs."""
    bench = lab(task)
    for shape in bench.smallest_first()[:2]:
        usual, mixed = bench.inputs(shape, "", SEED), bench.inputs(shape, MIXED, SEED)
        for parameter, a, b in zip(bench.parameters, usual, mixed, strict=False):
            if not isinstance(a, torch.Tensor) or not a.is_floating_point():
                assert same(a, b) != (parameter.name == "origins"), parameter.name


@pytest.mark.parametrize("seed", range(8))
def test_moved_tiles_cover_the_canvas_with_the_overlap_that_the_floor_asks_for(seed):
    bench = lab("conv3d-tiled-decode-blend")
    shapes = [*bench.spec.grader_shapes, *bench.spec.correct_shapes]
    for *_, H, W, tile, stride in shapes:
        origins = bench.namespace["mix"](1, 1, 1, H, W, tile, stride, seed)[3]
        assert len(origins.unique(dim=0)) == len(origins)
        for axis, size in enumerate((H, W)):
            starts = origins[:, axis].unique().tolist()
            assert len(starts) == len(bench.namespace["_tile_starts"](size, tile, stride))
            assert starts[0] == 0
            assert starts[-1] == size - tile
            assert all(tile - (b - a) >= 2 for a, b in pairwise(starts))


@pytest.mark.parametrize("task", ["based-forward", "conv3d-tiled-decode-blend", MLA, MASK])
def test_the_references_own_answer_passes(task):
    assert rejected_by(task, lab(task).reference) == {}


@pytest.mark.parametrize("case", ["wide_range", "long_tail_keys"])
def test_an_honest_kernel_of_based_is_not_failed_by_an_unlucky_draw(case):
    """Where a single key dominates a row and is nearly orthogonal to the query, rounding it is an error of any size.

    With keys over twelve octaves, one draw in sixty failed honest work; as they are now, none in hundreds comes near.
    """
    bench = lab("based-forward")
    honest, shape = bench.variant("alternates.packed_bf16"), (1, 512, 6, 8, 128)
    for seed in range(24):
        args = bench.inputs(shape, case, seed)
        expected = (bench.reference(*args),)
        assert bench.judge(expected, (honest(*args),), bench.regions(args, expected)).use < 1 / 1.5
