"""Peers of the tiled convolution: the reference's algorithm on cuDNN in bf16, and as a yardstick one plain convolution.

Four forms of the algorithm: tile by tile or all tiles as one batch, each in the plain layout and in channels last; the
best one counts. To their advantage, what depends on shapes and origins only (list of tiles, feather, its sum) is made
outside the timed call, and so are activations and weights in channels last, since a decoder would keep them so. cuDNN
chooses by trial among its algorithms in the first call.

The yardstick convolves the whole canvas at once. It computes another function: the taps beyond a tile's border are
no zeros there, and nothing is blended.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional as F

from peers.contest import Call, Contestant, Problem

_FAST = {"enabled": True, "benchmark": True, "deterministic": False, "allow_tf32": True}
Window = tuple[slice, slice]


def _windows(origins: torch.Tensor, tile: int) -> list[Window]:
    return [(slice(top, top + tile), slice(left, left + tile)) for top, left in origins.tolist()]


def _weights(tile: int, overlap: int, canvas: tuple[int, int], windows: list[Window], device: torch.device):
    """(tile, tile) feather and (H, W) sum of the feathers over a canvas, float32."""
    steps = torch.arange(1, tile + 1, device=device).float()
    ramp = torch.minimum(steps, steps.flip(0)).div(overlap + 1).clamp(max=1.0)
    feather = ramp[:, None] * ramp
    mass = torch.zeros(canvas, device=device)
    for rows, columns in windows:
        mass[rows, columns] += feather
    return feather, mass


def _laid_out(problem: Problem, channels_last: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(1, Cin, T, H, W) activations, weights and bias in the layout wanted."""
    x, weight, bias = problem.args[:3]
    if channels_last:
        layout = torch.channels_last_3d
        return x[None].contiguous(memory_format=layout), weight.contiguous(memory_format=layout), bias
    return x[None], weight, bias


def _convolve(frames: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """(N, Cin, T, h, w) -> (N, Cout, T, h, w), bf16: two zero frames in front, zeros around."""
    return F.conv3d(F.pad(frames, (0, 0, 0, 0, 2, 0)), weight, bias, padding=(0, 1, 1))


def _tiled(problem: Problem, *, channels_last: bool, batch: bool) -> Call:
    origins, tile, overlap = problem.args[3:]
    x, weight, bias = _laid_out(problem, channels_last)
    windows = _windows(origins, tile)
    feather, mass = _weights(tile, overlap, tuple(x.shape[3:]), windows, x.device)
    canvas = (1, weight.shape[0], *x.shape[2:])
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format

    def tiles():
        if batch:
            clips = torch.cat([x[..., rows, columns] for rows, columns in windows])
            yield from _convolve(clips, weight, bias).split(1)
        else:
            for rows, columns in windows:
                yield _convolve(x[..., rows, columns], weight, bias)

    def call() -> torch.Tensor:
        total = torch.empty(canvas, dtype=torch.float32, device=x.device, memory_format=layout).zero_()
        with torch.backends.cudnn.flags(**_FAST):
            for (rows, columns), result in zip(windows, tiles(), strict=True):
                total[..., rows, columns].addcmul_(result, feather)
        return torch.div(total, mass).bfloat16()[0]

    return call


def _whole(problem: Problem, *, channels_last: bool) -> Call:
    x, weight, bias = _laid_out(problem, channels_last)

    def call() -> torch.Tensor:
        with torch.backends.cudnn.flags(**_FAST):
            return _convolve(x, weight, bias)

    return call


def _contestants() -> tuple[Contestant, ...]:
    found = []
    for batch, form in ((False, "tile by tile"), (True, "tiles as a batch")):
        for last, layout in ((False, ""), (True, ", channels last")):
            prepare = partial(_tiled, channels_last=last, batch=batch)
            found.append(Contestant(f"cuDNN {form}{layout}", "peer", "bf16, blended in fp32", prepare))
    for last, layout in ((False, ""), (True, ", channels last")):
        prepare = partial(_whole, channels_last=last)
        note = "one convolution of the canvas: no tiles, no blend; rate by the canonical work"
        found.append(Contestant(f"cuDNN whole canvas{layout}", "yardstick", note, prepare))
    return tuple(found)


CONTESTANTS = _contestants()
