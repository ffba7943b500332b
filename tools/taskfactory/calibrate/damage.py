"""Semantic damage around the reference: parts of an output or of an argument skipped, arguments ignored or exchanged.

These complete the mutants of the syntax tree: they say what a kernel with a wrong grid, a forgotten tail or a forgotten
argument would return, whatever the reference's own text looks like.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from taskfactory.checks.inputs import Sample, copied
from taskfactory.checks.lab import Lab, Outputs
from taskfactory.grader.compare import TILE, as_tuple


def damage_names(lab: Lab, sample: Sample) -> Iterator[tuple[str, str]]:
    """(name, description) of every damage that fits a spec, judged by one of its samples."""
    for output, value in zip(lab.names, sample.expected, strict=True):
        for axis in range(value.dim()):
            yield f"output.{output}.last_{axis}", f"the last index of axis {axis} of {output} is not written"
            yield f"output.{output}.one_{axis}", f"one random index of axis {axis} of {output} is not written"
            yield f"output.{output}.repeated_{axis}", f"the last index of axis {axis} of {output} repeats another"
        yield f"output.{output}.tile", f"one random run of {TILE} entries of {output} is not written"
    tensors = []
    for parameter, value in zip(lab.parameters, lab.with_defaults(sample.args), strict=True):
        if not isinstance(value, bool):
            yield f"argument.{parameter.name}.ignored", f"{parameter.name} is ignored"
        if isinstance(value, torch.Tensor):
            tensors.append(parameter.name)
            for axis in range(value.dim()):
                about = f"the last index of axis {axis} of {parameter.name} is not read"
                yield f"argument.{parameter.name}.last_{axis}", about
    for place, first in enumerate(tensors):
        for second in tensors[place + 1 :]:
            yield f"argument.{first}.as_{second}", f"{first} and {second} are exchanged"


def damaged(lab: Lab, sample: Sample, name: str, seed: int) -> Outputs | None:
    """The outputs with one damage; None where it changes nothing, such as an axis of length 1."""
    kind, subject, what = name.split(".")
    if kind == "output":
        return _output(lab, sample, subject, what, seed)
    args = [copied(value) for value in lab.with_defaults(sample.args)]
    place = [parameter.name for parameter in lab.parameters].index(subject)
    value = args[place]
    if what == "ignored":
        default = lab.parameters[place].default
        args[place] = _ignored(value, default if default is not lab.parameters[place].empty else value)
    elif what.startswith("as_"):
        other = [parameter.name for parameter in lab.parameters].index(what.removeprefix("as_"))
        if not _exchangeable(value, args[other]):
            return None
        args[place], args[other] = args[other], args[place]
    else:
        axis = int(what.removeprefix("last_"))
        if not isinstance(value, torch.Tensor) or value.dim() <= axis or value.shape[axis] < 2:
            return None
        # A float that is not read counts as zero; an index must stay valid, so it repeats the one before.
        last, before = value.select(axis, -1), value.select(axis, -2)
        last.copy_(torch.zeros_like(last) if value.is_floating_point() else before)
    return as_tuple(lab.call("reference_src", name, lab.reference, args))


def _exchangeable(a: Any, b: Any) -> bool:
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return tensors and a.shape == b.shape and a.dtype == b.dtype


def _ignored(value: Any, default: Any) -> Any:
    """What stands in for an argument that is not looked at: its default, zeros, or another number."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, tuple):
        return tuple(reversed(value))
    if default is not value or value is None:
        return default
    return type(value)(value + 1)


def _output(lab: Lab, sample: Sample, subject: str, what: str, seed: int) -> Outputs | None:
    index = lab.names.index(subject)
    outputs = [output.clone() for output in sample.expected]
    value = outputs[index]
    generator = torch.Generator().manual_seed(seed)
    if what == "tile":
        tiles = -(-value.numel() // TILE)
        start = TILE * int(torch.randint(tiles, (), generator=generator))
        value.view(-1)[start : start + TILE] = 0
        return tuple(outputs)
    how, _, number = what.partition("_")
    axis = int(number)
    if value.dim() <= axis or value.shape[axis] < 2:
        return None
    place = -1 if how != "one" else int(torch.randint(value.shape[axis], (), generator=generator))
    part = value.select(axis, place)
    if how == "repeated":
        part.copy_(value.select(axis, -2))
    else:
        part.zero_()
    return tuple(outputs)
