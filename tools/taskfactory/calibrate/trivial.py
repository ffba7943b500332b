"""Trivial answers: what a submission could return without computing anything. All must fail."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from taskfactory.checks.inputs import Sample
from taskfactory.checks.lab import Lab, Outputs

NAMES = ("zeros", "mean", "noise", "previous")
"""Those every task has; copies of arguments come on top, where the sizes allow."""


def copied_arguments(lab: Lab, sample: Sample) -> list[str]:
    """Names of the tensor arguments that could be returned as some output."""
    sizes = {output.numel() for output in sample.expected}
    pairs = zip(lab.parameters, sample.args, strict=False)
    return [p.name for p, value in pairs if isinstance(value, torch.Tensor) and value.numel() in sizes]


def answer(lab: Lab, sample: Sample, name: str, previous: Outputs | None, seed: int) -> Outputs | None:
    """The outputs of one trivial answer; None where it cannot be given.

    Args:
        lab: the spec's sources.
        sample: the call that is answered.
        name: one of `NAMES`, or `copy_<argument>`.
        previous: the right outputs of another call of the same shape.
        seed: seed of the noise.
    """
    expected = sample.expected
    if name == "zeros":
        return tuple(torch.zeros_like(output) for output in expected)
    if name == "mean":
        return tuple(_mean(output) for output in expected)
    if name == "noise":
        generator = torch.Generator(device=expected[0].device).manual_seed(seed)
        return tuple(_noise(output, generator) for output in expected)
    if name == "previous":
        return previous if previous is not None and _alike(previous, expected) else None
    argument = name.removeprefix("copy_")
    value = next(a for p, a in zip(lab.parameters, sample.args, strict=False) if p.name == argument)
    return tuple(
        value.reshape(output.shape).to(output.dtype) if value.numel() == output.numel() else torch.zeros_like(output)
        for output in expected
    )


def _alike(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return [x.shape for x in a] == [x.shape for x in b]


def _mean(output: torch.Tensor) -> torch.Tensor:
    """An output's mean everywhere: rounded for integers, the majority for booleans."""
    finite = output.double()[torch.isfinite(output)]
    mean = float(finite.mean()) if finite.numel() else 0.0
    if output.is_floating_point():
        return torch.full_like(output, mean)
    return torch.full_like(output, bool(mean >= 0.5) if output.dtype is torch.bool else round(mean))


def _noise(output: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random values of the right scale: normal ones for floats, the output's own in random order otherwise."""
    if not output.is_floating_point():
        order = torch.randperm(output.numel(), generator=generator, device=output.device)
        return output.flatten()[order].view(output.shape)
    finite = output.double()[torch.isfinite(output)]
    mean, spread = (float(finite.mean()), float(finite.std())) if finite.numel() > 1 else (0.0, 1.0)
    normal = torch.randn(output.shape, generator=generator, device=output.device, dtype=torch.float64)
    return (normal * spread + mean).to(output.dtype)
