"""What one call really takes, to hold the work formulas against: sizes, entries that are looked at, FLOPs.

Correct shapes are run for real on the CPU. Graded shapes are run without storage: on torch's meta device, or, where the
reference looks at values, with its integer arguments kept and everything else made fake.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from taskfactory.checks.lab import SEED, Lab, Malformed, Outputs, Shape
from taskfactory.checks.record import SourceFailed
from taskfactory.grader.compare import allowed_dtypes

DRY_S = 60.0
"""What the graded shapes may take together; the rest is a gap."""
DIFFERENTIATED_BYTES = 32 << 20
"""Correct shapes with larger inputs are not differentiated, unless it is the smallest."""
MOST_BYTES = 2 << 30
"""Inputs are made for real only up to this size."""
Row = dict[str, Any]


def rows(lab: Lab, notice: Callable[[str], None] = lambda _: None) -> Iterator[Row]:
    """One row a shape, the correct ones first.

    A row has "kind" and "shape"; "inputs" and "outputs", their bytes, outputs in the narrowest dtype allowed; "flops"
    as torch counts the matrix products and convolutions of the reference; "touched", bytes of the outputs and of what
    they depend on; and "gaps", why one of these is not there.

    Args:
        lab: the spec's sources on the CPU.
        notice: called before each shape with what is about to run.
    """
    for place, shape in enumerate(lab.smallest_first()):
        notice(f"work at {shape}")
        yield _real(lab, shape, always=place == 0)
    started = time.monotonic()
    for number, shape in enumerate(lab.spec.grader_shapes, 1):
        notice(f"work of graded shape {number}")
        row: Row = {"kind": "graded", "number": number, "shape": list(shape), "gaps": []}
        if time.monotonic() - started < DRY_S:
            _dry(lab, shape, row)
        else:
            row["gaps"].append("not run: out of time")
        yield row


def _real(lab: Lab, shape: Shape, *, always: bool) -> Row:
    """A row from a real run."""
    row: Row = {"kind": "correct", "shape": list(shape), "gaps": []}
    args = lab.inputs(shape, "", SEED)
    if args is None:
        raise Malformed("has no default inputs")
    with torch.no_grad():
        row["flops"], outputs = _counted(lab, args)
    _sizes(lab, args, outputs, row)
    if always or row["inputs"] <= DIFFERENTIATED_BYTES:
        touched = _touched(lab, args)
        if touched is None:
            row["gaps"].append("touched: an output has no derivative")
        else:
            row["touched"] = touched + row["outputs"]
    return row


def _counted(lab: Lab, args: Sequence[Any]) -> tuple[int, Outputs]:
    counter = FlopCounterMode(display=False)
    with counter:
        outputs = lab.call("reference_src", "FLOPs of the reference", lab.reference, args)
    return int(counter.get_total_flops()), outputs


def _sizes(lab: Lab, args: Sequence[Any], outputs: Outputs, row: Row) -> None:
    tensors = {id(t.untyped_storage()): t for t in tree_leaves(list(args)) if isinstance(t, torch.Tensor)}
    declared = lab.spec.output_dtypes or (None,) * len(outputs)
    row["inputs"] = sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())
    row["outputs"] = sum(
        output.numel() * min(getattr(torch, name).itemsize for name in allowed_dtypes(output.dtype, dtypes))
        for output, dtypes in zip(outputs, declared, strict=True)
    )


def _touched(lab: Lab, args: Sequence[Any]) -> int | None:
    """Bytes of arguments on which the outputs depend; None if some output has no derivative.

    An entry of a float counts if the derivative of a random combination of all outputs by it is not zero; integers and
    booleans count whole.
    """
    leaves = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]
    floats = [a.requires_grad_() for a in leaves if isinstance(a, torch.Tensor) and a.is_floating_point()]
    outputs = lab.call("reference_src", "derivative of the reference", lab.reference, leaves)
    if not floats or not all(output.requires_grad for output in outputs):
        return None
    generator = torch.Generator().manual_seed(SEED)
    weights = [torch.randn(output.shape, generator=generator).to(output.dtype) for output in outputs]
    try:
        found = torch.autograd.grad(list(outputs), floats, weights, allow_unused=True)
    except RuntimeError:
        return None
    counted = sum(int((g != 0).sum()) * g.element_size() for g in found if g is not None)
    others = (t for t in tree_leaves(leaves) if isinstance(t, torch.Tensor) and not t.is_floating_point())
    return counted + sum(t.numel() * t.element_size() for t in others)


def _dry(lab: Lab, shape: Shape, row: Row) -> None:
    """Fill in a row without storage, as far as that goes."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            args = lab.inputs(shape, "", SEED)
    except (SourceFailed, Malformed) as error:
        row["gaps"].append(f"inputs: {error}"[:160])
        return
    assert args is not None
    for attempt in (_on_meta, _hollow):
        try:
            with torch.no_grad():
                counted = attempt(lab, shape, args, mode)
        except (SourceFailed, Malformed) as error:
            failed = error
            continue
        if counted is not None:
            row["flops"], outputs = counted
            _sizes(lab, args, outputs, row)
            return
    row["gaps"].append(f"flops: the reference cannot be run without storage ({failed})"[:160])


def _on_meta(lab: Lab, shape: Shape, args: Sequence[Any], mode: FakeTensorMode) -> tuple[int, Outputs] | None:
    """Twice as fast as fake tensors, but an argument of the CPU cannot be mixed in."""

    def meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    return _counted(lab, tree_map(meta, list(args)))


def _hollow(lab: Lab, shape: Shape, args: Sequence[Any], mode: FakeTensorMode) -> tuple[int, Outputs] | None:
    """Integers with their values, floats without."""
    size = sum(t.untyped_storage().nbytes() for t in tree_leaves(list(args)) if isinstance(t, torch.Tensor))
    if size > MOST_BYTES:
        return None

    def hollow(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return mode.from_tensor(value) if floating else value

    real = lab.inputs(shape, "", SEED)
    with mode:
        return _counted(lab, tree_map(hollow, list(real or ())))
