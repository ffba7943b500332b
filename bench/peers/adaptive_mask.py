"""Peers of the adaptive mask: torch.compile of a form without writes in place; as a yardstick, one read of the map."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from peers.contest import Call, Contestant, Problem
from peers.inductor import compiled


def vectorised(
    scores: torch.Tensor, delta: torch.Tensor, grid: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The task as a chain of expressions that a compiler can fuse.

    Args:
        scores: (B, NH, NT, NT) float32.
        delta: (NH,) float32.
        grid: its product is NT.
    """
    tiles = scores.shape[-1]
    line = torch.arange(tiles, device=scores.device)
    kept = (scores >= scores.amax(-1, keepdim=True) - delta[:, None, None]) | (line[:, None] == line)
    cube = kept.to(torch.int32).unflatten(-1, grid)  # not bool: some versions of Inductor pad those into wrong code
    grown = cube
    for axis, before in enumerate((4, 2, 0)):  # F.pad counts from the last axis
        size = grid[axis]
        for low, high in ((1, 0), (0, 1)):
            pad = [0] * 6
            pad[before], pad[before + 1] = low, high
            grown = grown | F.pad(cube, pad).narrow(axis - 3, high, size)
    mask = grown.flatten(-3)
    place = torch.arange(8, dtype=torch.int32, device=scores.device)
    bits = (mask.unflatten(-1, (-1, 8)) << place).sum(-1, dtype=torch.int32).to(torch.uint8)
    counts = mask.sum(-1, dtype=torch.int32)
    return bits, counts, counts.sum(-1).to(torch.float32) / (tiles * tiles)


def _vectorised(problem: Problem) -> Call:
    function = compiled(vectorised)
    return lambda: function(*problem.args)


def _amax(problem: Problem) -> Call:
    scores = problem.args[0]
    return lambda: scores.amax(-1)


def _row_maxima(problem: Problem) -> Call:
    from peers.row_maxima import row_maxima

    scores = problem.args[0]
    return lambda: row_maxima(scores)


def _read_bytes(problem: Problem) -> float:
    """The map read, an fp32 a row written."""
    scores = problem.args[0]
    return 4.0 * (scores.numel() + scores.numel() // scores.shape[-1])


CONTESTANTS = (
    Contestant("torch.compile", "peer", "a vectorised form under torch.compile, static shapes", _vectorised),
    Contestant("row maximum, torch", "yardstick", "torch.amax: reads the map once", _amax, _read_bytes),
    Contestant("row maximum, Triton", "yardstick", "the same, a program a row", _row_maxima, _read_bytes),
)
