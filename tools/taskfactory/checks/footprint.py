"""How much device memory grading needs at a graded shape, estimated without having that memory (TF671).

Inputs and reference are run on tensors without storage (torch's fake tensors) while their sizes are added up; where a
source looks at values, which such tensors lack, its appetite at the correct shapes is scaled instead.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from taskfactory.checks.lab import Lab, Malformed, Shape
from taskfactory.checks.record import Record, SourceFailed
from taskfactory.grader.compare import CHUNK

DRY_RUNS_S = 6.0
"""Dry runs, the largest shape first, take no longer in all; a reference that loops over thousands of pieces is slow
even without storage. What is left is scaled."""
COMPARISON_BYTES = CHUNK * (4 * 8 + 2)
"""Two float64 chunks, their difference and squares, and masks."""
JUNK_BYTES = 4 * 64 * 10**6
"""Four times the L2 of a large device, streamed through between calls."""


class _TooSlow(Exception):
    """The dry run is given up."""


class _Meter(TorchDispatchMode):
    """Adds up the storage that operators make while it is alive."""

    def __init__(self, deadline: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.deadline = deadline
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.monotonic() > self.deadline:
            raise _TooSlow
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._meet(value.untyped_storage())
        return result

    def _meet(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        nbytes = storage.nbytes()
        self._known.add(key)
        self.now += nbytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, nbytes)

    def _forget(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.now -= nbytes


@dataclass
class _Appetite:
    """Bytes at one shape."""

    inputs: int = 0
    making: int = 0
    """Peak while the inputs are made, they themselves included."""
    outputs: int = 0
    widest: int = 0
    """Outputs, floats counted in fp32, as a submission may return them."""
    working: int = 0
    """Peak of the reference beyond its inputs, outputs included."""


def check_memory(
    lab: Lab, record: Record, seed: int, shapes: Sequence[Shape], budget_gb: float
) -> list[dict[str, Any]]:
    """Estimate every graded shape, report those above the budget (decimal gigabytes), and return the figures."""
    graded, work = lab.spec.grader_shapes, lab.file.formulas()
    deadline = time.monotonic() + DRY_RUNS_S
    known: dict[Shape, _Appetite] = {}
    partly: dict[Shape, _Appetite] = {}
    for shape in sorted(graded, key=lambda s: work.call("canonical_work", *s), reverse=True):
        lab.notice(f"memory of graded shape {graded.index(shape) + 1}", f"grader_shapes.{graded.index(shape)}", 0)
        appetite, complete = _dry(lab, shape, seed, deadline)
        (known if complete else partly)[shape] = appetite
    measured = dict(known)
    if partly and not known:
        measured = {s: a for s in shapes[-2:] if (a := _measure(lab, s, seed)) is not None}
    figures = []
    for index, shape in enumerate(graded):
        method = "dry run" if shape in known else "scaled"
        appetite = known[shape] if shape in known else _scaled(lab, shape, partly[shape], measured)
        total = _total(appetite)
        parts = {name: round(value / 1e9, 3) for name, value in vars(appetite).items()}
        figures.append({"graded": index + 1, "total_gb": round(total / 1e9, 3), "method": method, "parts_gb": parts})
        if total > budget_gb * 1e9:
            message = f"grading {shape} needs about {total / 1e9:.0f} GB, more than {budget_gb:g}"
            record.add("TF671", f"grader_shapes.{index}", message)
    return figures


def _total(appetite: _Appetite) -> int:
    """Private and shared copy of the inputs, snapshot, the submission's own outputs and junk all the while; on top of
    them the larger of making inputs, the reference, and comparing with what the reference returned."""
    standing = 2 * appetite.inputs + 2 * appetite.widest + JUNK_BYTES
    return standing + max(appetite.making, appetite.working, appetite.outputs + COMPARISON_BYTES)


def _dry(lab: Lab, shape: Shape, seed: int, deadline: float) -> tuple[_Appetite, bool]:
    """Sizes from a run without storage, as far as it got, and whether that was all the way."""
    appetite = _Appetite()
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = _metered_inputs(lab, shape, seed, appetite, time.monotonic() + DRY_RUNS_S)
        return appetite, args is not None and _meter_reference(lab, args, appetite, deadline)


def _measure(lab: Lab, shape: Shape, seed: int) -> _Appetite | None:
    """Sizes from a real run at a shape that fits."""
    appetite = _Appetite()
    args = _metered_inputs(lab, shape, seed, appetite, math.inf)
    return appetite if args is not None and _meter_reference(lab, args, appetite, math.inf) else None


def _metered_inputs(lab: Lab, shape: Shape, seed: int, appetite: _Appetite, deadline: float) -> list[Any] | None:
    made: list[Any] = []

    def make() -> None:
        made.extend(lab.inputs(shape, lab.timed_case, seed) or ())

    peak = _metered(make, deadline)
    if peak is None:
        return None
    appetite.making = peak
    appetite.inputs = _bytes(made)
    return made


def _meter_reference(lab: Lab, args: Sequence[Any], appetite: _Appetite, deadline: float) -> bool:
    outputs: list[torch.Tensor] = []

    def call() -> None:
        outputs.extend(lab.call("reference_src", "memory of the reference", lab.reference, args))

    peak = _metered(call, deadline)
    if peak is None:
        return False
    appetite.working = peak
    appetite.outputs = _bytes(outputs)
    appetite.widest = sum(o.numel() * (4 if o.is_floating_point() else o.element_size()) for o in outputs)
    return True


def _metered(function: Callable[[], None], deadline: float) -> int | None:
    """The peak of storage made by a function; None if it cannot be run this way."""
    meter = _Meter(deadline)
    try:
        with meter:
            function()
    except (SourceFailed, Malformed):
        return None
    return meter.peak


def _bytes(values: Sequence[Any]) -> int:
    tensors = {id(v.untyped_storage()): v for v in tree_leaves(list(values)) if isinstance(v, torch.Tensor)}
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())


def _scaled(lab: Lab, shape: Shape, known: _Appetite, measured: dict[Shape, _Appetite]) -> _Appetite:
    """What is not known, from the most that measured shapes need: reference by its inputs, inputs by canonical work."""
    work = lab.file.formulas()
    result = _Appetite(**vars(known))
    for small, appetite in measured.items():
        if not known.inputs:
            ratio = work.call("canonical_work", *shape) / work.call("canonical_work", *small)
            result.inputs = max(result.inputs, int(ratio * appetite.inputs))
            result.making = max(result.making, int(ratio * appetite.making))
        ratio = result.inputs / max(appetite.inputs, 1)
        result.outputs = max(result.outputs, int(ratio * appetite.outputs))
        result.widest = max(result.widest, int(ratio * appetite.widest))
        result.working = max(result.working, int(ratio * appetite.working))
    return result
