"""Mutants come from the syntax tree: named stably, different from each other and from the reference."""

from __future__ import annotations

import ast

import pytest

from calibrating import ours
from taskfactory.calibrate.float64 import promoted_source
from taskfactory.calibrate.mutants import mutants_of

SOURCE = '''
SIZE = 4


def attend(q, k, v, scale=None):
    """Words with 1 and + in them."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    s = (q @ k.mT) * factor - 1.5
    s = s.masked_fill(s >= 2.0, 0.0)
    out = s.softmax(dim=-1)[:, 1:] @ v[:, 1:]
    out.diagonal().fill_(1)
    for row in range(SIZE):
        out[row] += F.pad(v, (1, 1)).max(dim=0).values
    return F.conv2d(out, v, padding=1)
'''

# operator -> (what stands in the source, what a mutant has in its place)
EXPECTED = {
    "constant": ("1.5", "3.0"),
    "dropped": ("q @ k.mT * factor - 1.5", "q @ k.mT * factor"),
    "sign": ("q @ k.mT * factor - 1.5", "q @ k.mT * factor + 1.5"),
    "comparison": ("s >= 2.0", "s > 2.0"),
    "opposite": ("F.pad(v, (1, 1)).max(dim=0)", "F.pad(v, (1, 1)).min(dim=0)"),
    "keyword": ("s.softmax(dim=-1)", "s.softmax()"),
    "slice": ("1:", "1 + 1:"),
    "wrapped": ("F.pad(v, (1, 1))", "_wrapped(v, (1, 1))"),
    "swapped": ("q @ k.mT", "k.mT @ q"),
    "omitted": ("s.softmax(dim=-1)", "s"),
    "transposed": ("k.mT", "k"),
    "branch": ("q.shape[-1] ** (-0.5) if scale is None else scale", "q.shape[-1] ** (-0.5)"),
    "deleted": ("out.diagonal().fill_(1)", ""),
    "overwritten": ("out[row] += F.pad(v, (1, 1)).max(dim=0).values", "out[row] = F.pad(v, (1, 1)).max(dim=0).values"),
    "skipped": ("for row in range(SIZE):", "for row in list(range(SIZE))[:-1]:"),
}


@pytest.mark.parametrize("operator", EXPECTED)
def test_each_operator_damages_what_it_says(operator):
    found = [(m.before, m.after) for m in mutants_of(SOURCE) if m.name.split(".")[1] == operator]
    assert EXPECTED[operator] in found


def test_mutants_are_valid_distinct_and_stably_named():
    mutants = mutants_of(SOURCE)
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    assert len({mutant.source for mutant in mutants}) == len(mutants)
    assert [mutant.name for mutant in mutants] == [mutant.name for mutant in mutants_of(SOURCE)]
    for mutant in mutants:
        ast.parse(mutant.source)
        assert mutant.change.startswith(mutant.before)
    longer = SOURCE.replace("SIZE = 4", "def other(x):\n    return x + 1\n\n\nSIZE = 4")
    assert {m.name for m in mutants} <= {m.name for m in mutants_of(longer)}


def test_docstrings_casts_and_plumbing_are_left_alone():
    source = '''
def f(x):
    """One + 1."""
    return x.float().to(torch.bfloat16, device="cuda")
'''
    assert mutants_of(source) == []


@pytest.mark.parametrize(
    "task",
    ["adaptive-sparsity-threshold", "based-forward", "cache-hit-skip-gate", "conv3d-tiled-decode-blend",
     "deepseek-v32-sparse-mla-decode"],
)  # fmt: skip
def test_our_references_yield_plenty(task):
    assert len(mutants_of(ours(task).spec.reference_src)) >= 15


def test_promotion_reaches_every_float_and_nothing_else():
    source = "y = x.float() + torch.zeros(3, dtype=torch.float32).bfloat16().to(torch.int32).half()"
    assert promoted_source(source) == (
        "y = x.double() + torch.zeros(3, dtype=torch.float64).double().to(torch.int32).double()"
    )
