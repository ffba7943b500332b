"""Does every argument matter, and would a submission that ignores it be caught? (TF64x, TF225)

One argument of a call is exchanged at a time, the others stay, and the reference is run again. An argument is

- *exercised* if exchanging it by a value that occurs in some other verified call is noticed: a gate rejects the
  output, or the reference refuses the value (a grid of another size, an index out of range). Values come from another
  seed, from the cases, and, for numbers, None and tuples, from other shapes; a tensor must have the same shape and
  dtype, since one of another shape only shows that shapes matter. No finding.
- *faint* if such an exchange changes the output but no gate notices it: TF643.
- *constant* if only a value made up here changes it: every verified call has the same value, so that it can be taken
  for granted. TF642, or TF225 as in the static check where the value is the default. A constant number or tuple for
  which the reference refuses every made-up value follows from the shapes (a grid, a width) and counts as exercised.
- *idle* if nothing changes the output: TF641.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import torch

from taskfactory.checks.inputs import Sample, copied, same
from taskfactory.checks.lab import Lab, Malformed, Shape, line_of
from taskfactory.checks.record import Record, SourceFailed

_BASES = 2
"""At so many shapes the inputs of cases, too, serve as the call in which one argument is exchanged."""


class Effect(IntEnum):
    """What an exchange does, the least first."""

    NONE = 0
    FAINT = 1
    REFUSED = 2
    NOTICED = 3


class Influence:
    """Collects, shape by shape, the strongest effect each argument has."""

    def __init__(self, lab: Lab, record: Record, seed: int) -> None:
        self.lab, self.record, self.seed = lab, record, seed
        count = len(lab.parameters)
        self._effect = [Effect.NONE] * count
        self._faintest: list[tuple[float, str]] = [(0.0, "")] * count
        self._values: list[list[Any]] = [[] for _ in range(count)]
        """Numbers, None and tuples met so far, per argument."""
        self._smallest: Sample | None = None
        self._shapes = 0

    def study(self, shape: Shape, samples: Sequence[Sample]) -> None:
        """Exchange the arguments that are still open by values of other calls at this and earlier shapes."""
        self._shapes += 1
        if self._smallest is None:
            self._smallest = samples[0]
        padded = [self.lab.with_defaults(sample.pristine) for sample in samples]
        for values, *column in zip(self._values, *padded, strict=True):
            values.extend(value for value in column if _plain(value) and not any(same(value, v) for v in values))
        if min(self._effect) >= Effect.REFUSED:
            return
        other = self.lab.inputs(shape, "", self.seed + 1)
        donors = [*padded, *([self.lab.with_defaults(other)] if other is not None else [])]
        bases = samples if self._shapes <= _BASES else samples[:1]
        for index in range(len(self._effect)):
            for sample in bases:
                if self._effect[index] >= Effect.REFUSED:
                    break
                self._exchange_by(sample, index, self._donated(sample, index, donors))

    def _donated(self, sample: Sample, index: int, donors: Sequence[Sequence[Any]]) -> Iterator[Any]:
        own = self.lab.with_defaults(sample.pristine)[index]
        for donor in reversed(donors):  # the other seed first
            value = donor[index]
            fits = isinstance(own, torch.Tensor) and isinstance(value, torch.Tensor) and _alike(own, value)
            if fits or (_plain(value) and not isinstance(own, torch.Tensor)) or (own is None) != (value is None):
                yield value
        if not isinstance(own, torch.Tensor):
            yield from self._values[index]

    def _exchange_by(self, sample: Sample, index: int, values: Iterator[Any]) -> None:
        """Try values until one is noticed."""
        own = self.lab.with_defaults(sample.pristine)[index]
        for value in values:
            if same(own, value):
                continue
            effect, use = self._exchange(sample, index, value)
            self._effect[index] = max(self._effect[index], effect)
            if effect is Effect.FAINT and use > self._faintest[index][0]:
                self._faintest[index] = (use, sample.where)
            if self._effect[index] >= Effect.REFUSED:
                return

    def _exchange(self, sample: Sample, index: int, value: Any) -> tuple[Effect, float]:
        args = self.lab.with_defaults([copied(v) for v in sample.pristine])
        args[index] = copied(value)
        name = self.lab.parameters[index].name
        doing = f"the reference on {sample.where} with another {name}"
        try:
            outputs = self.lab.call("reference_src", doing, self.lab.reference, args)
        except (SourceFailed, Malformed):
            return Effect.REFUSED, math.inf
        if all(map(same, sample.expected, outputs)):
            return Effect.NONE, 0.0
        verdict = self.lab.judge(sample.expected, outputs, sample.regions)
        return (Effect.FAINT, verdict.use) if verdict.passed else (Effect.NOTICED, verdict.use)

    def finish(self) -> None:
        """Make up values for what is still without effect, and report."""
        sample = self._smallest
        if sample is None:
            return
        for index, effect in enumerate(self._effect):
            if effect is Effect.FAINT:
                use, where = self._faintest[index]
                message = f"ignoring {self.lab.parameters[index].name!r} uses at most {use:.2g} of a gate (on {where})"
                self._report("TF643", index, message)
            elif effect is Effect.NONE:
                self._made_up(sample, index)

    def _made_up(self, sample: Sample, index: int) -> None:
        name = self.lab.parameters[index].name
        own = self.lab.with_defaults(sample.pristine)[index]
        effects = [self._exchange(sample, index, value)[0] for value in _variations(own)]
        if max(effects, default=Effect.NONE) is Effect.NONE:
            self._report("TF641", index, f"argument {name!r} never changes the output")
        elif isinstance(own, torch.Tensor):
            self._report("TF642", index, f"argument {name!r} is the same for every seed and in every case of a shape")
        elif any(effect in (Effect.FAINT, Effect.NOTICED) for effect in effects):
            self._report_constant(index, own)

    def _report_constant(self, index: int, own: Any) -> None:
        """In the words of the static check where it is the default, so that the two become one finding."""
        parameter = self.lab.parameters[index]
        maker_line = line_of(self.lab.namespace["_mk"])
        hint = f"add a case that passes another {parameter.name}"
        if parameter.default is not inspect.Parameter.empty and same(own, parameter.default):
            message = f"argument {parameter.name!r} always has its default value {own}"
            self.record.add("TF225", "make_inputs_src", message, about=parameter.name, line=maker_line, hint=hint)
        else:
            message = f"argument {parameter.name!r} is {own!r} in every call"
            self.record.add("TF642", "make_inputs_src", message, about=parameter.name, line=maker_line, hint=hint)

    def _report(self, code: str, index: int, message: str) -> None:
        field, function = "make_inputs_src", self.lab.namespace["_mk"]
        if code == "TF641":
            field, function = "reference_src", self.lab.reference
        self.record.add(code, field, message, about=self.lab.parameters[index].name, line=line_of(function))


def _plain(value: Any) -> bool:
    """Whether it is a number, None, or a tuple of such."""
    if isinstance(value, tuple | list):
        return all(map(_plain, value))
    return not isinstance(value, torch.Tensor)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _variations(value: Any) -> Iterator[Any]:
    """Values of the same kind that a call might have had instead."""
    if isinstance(value, torch.Tensor):
        yield from _tensor_variations(value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 2 * value, value // 2)
    elif isinstance(value, float):
        yield from (1.5 * value + 0.25, -value, 0.0)
    elif value is None:
        yield from (0.5, 2, True)
    else:
        yield tuple(reversed(value))
        for index, part in enumerate(value):
            for other in _variations(part):
                yield (*value[:index], other, *value[index + 1 :])


def _tensor_variations(value: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = value.reshape(-1)
    yield flat.roll(1).reshape(value.shape)
    yield flat.flip(0).reshape(value.shape)
    if value.dtype is torch.bool:
        yield ~value
    elif value.is_floating_point():
        yield value * 1.5 + 0.25
    elif not value.is_complex():
        yield value + 1
