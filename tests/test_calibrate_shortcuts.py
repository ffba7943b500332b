"""The shortcuts that a solver might try in our five tasks are each rejected by a gate, region or case."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch

from calibrating import SEED, ours
from taskfactory.calibrate.precision import rounding
from taskfactory.checks.lab import Lab

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


def test_halo_exchange_in_the_tiled_convolution():
    """A convolution of the whole canvas: right everywhere but on the borders of tiles."""
    task = "conv3d-tiled-decode-blend"
    found = rejected_by(task, lab(task).variant("ablations.halo_exchange"))
    assert len(found) == 2
    assert all("" in cases for cases in found.values())


def test_late_rows_of_based_in_fp8():
    task = "based-forward"
    found = rejected_by(task, lab(task).variant("ablations.fp8_late_rows"))
    assert len(found) == 2
    assert all("" in cases for cases in found.values())


def test_sparse_mla_from_8_bit_integers():
    """Rows and queries in int8 with a scale each."""
    coarse, reference = rounding("int8"), lab(MLA).reference

    def int8(q, kv_cache, indices, dv, scale=None):
        return reference(coarse(q), coarse(kv_cache), indices, dv, scale)

    assert len(rejected_by(MLA, int8)) == 2


def test_sparse_mla_with_a_cubic_for_the_exponential():
    def cubic(q, kv_cache, indices, dv, scale=None):
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        rows = kv_cache[indices.long()].float()
        s = torch.bmm(q.float(), rows.mT) * factor
        weights = (1 + s + s**2 / 2 + s**3 / 6).clamp(min=0)
        return torch.bmm(weights / weights.sum(-1, keepdim=True), rows[..., :dv]).bfloat16()

    found = rejected_by(MLA, cubic)
    assert len(found) == 2
    assert all({"peaked", "huge_logits"} <= set(cases) for cases in found.values())


def test_mask_that_never_reads_far_tiles():
    """Scores fall off with distance, so a kernel may hope that tiles more than a frame away are never kept."""
    namespace = lab(MASK).namespace

    def near_only(scores, delta, grid):
        frame = torch.arange(scores.shape[-1]) // (grid[1] * grid[2])
        far = (frame[:, None] - frame).abs() > 1
        kept = namespace["_keep"](scores.masked_fill(far, float("-inf")), delta)
        return namespace["_report"](namespace["_dilate"](kept, grid))

    found = {}
    bench = lab(MASK)
    for shape in (shape for shape in bench.spec.correct_shapes if shape[2] > 2):
        args = bench.inputs(shape, "far_hits", SEED)
        expected = bench.call("reference_src", "reference", bench.reference, args)
        found[shape] = bench.judge(expected, near_only(*args), []).passed
    assert found
    assert not any(found.values())


@pytest.mark.parametrize("task", ["based-forward", "conv3d-tiled-decode-blend", MLA, MASK])
def test_the_references_own_answer_passes(task):
    assert rejected_by(task, lab(task).reference) == {}
