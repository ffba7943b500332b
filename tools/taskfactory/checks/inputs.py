"""The inputs of every correct shape and case, and the reference on them (TF62x, TF63x)."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from taskfactory.checks.lab import Lab, Malformed, Outputs, Shape, line_of, maker_of, said
from taskfactory.checks.record import Record, SourceFailed
from taskfactory.grader.compare import Region, allowed_dtypes, dtype_name
from taskfactory.grader.task import MIXED

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_QUICK_S = 2.0
"""A reference call that took longer is not repeated to see whether it is deterministic."""


@dataclass
class Sample:
    """One call that is verified: a kind of inputs at a shape, and what the reference says."""

    shape: Shape
    case: str
    args: list[Any]
    pristine: list[Any]
    """The arguments again, in memory of their own."""
    expected: Outputs = ()
    regions: list[Region] = field(default_factory=list)

    @property
    def where(self) -> str:
        """Where this is, for messages."""
        return f"{said(self.case)} at {self.shape}"

    def restore(self, *, thorough: bool = True) -> list[int]:
        """Undo what a source wrote into the arguments; returns the positions that were written.

        Unless `thorough`, only tensors whose version counter has moved are compared; writes past it go unseen.
        """
        pairs = list(enumerate(zip(self.args, self.pristine, strict=True)))
        written = [i for i, (a, b) in pairs if (thorough or _touched(a)) and not same(a, b)]
        for index in written:
            self.args[index] = copied(self.pristine[index])
        return written


def same(a: Any, b: Any) -> bool:
    """Equality of two arguments or outputs, bit for bit: NaN equals the same NaN, 1 does not equal True."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and _same_tensor(a, b)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _touched(value: Any) -> bool:
    """Whether an operator may have written into an argument since it was made by `copied`."""
    if isinstance(value, tuple | list):
        return any(map(_touched, value))
    return isinstance(value, torch.Tensor) and value._version > 0


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    integer = _INTEGER.get(a.element_size())
    if integer is None:  # complex128
        return torch.equal(torch.view_as_real(a), torch.view_as_real(b))
    return torch.equal(a.view(integer), b.view(integer))


def _layout(value: Any) -> Any:
    """What two arguments have in common if only the values in their tensors differ."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.stride()
    return tuple(map(_layout, value)) if isinstance(value, tuple | list) else (type(value), value)


def _shown(value: Any) -> str:
    """An argument's layout, for a message."""
    if not isinstance(value, torch.Tensor):
        return repr(value)[:60]
    gaps = "" if value.is_contiguous() else f" with strides {value.stride()}"
    return f"{dtype_name(value.dtype)} {tuple(value.shape)}{gaps}"


def copied(value: Any) -> Any:
    """An argument that shares no memory with the original; strides are kept where they leave no gaps."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(map(copied, value)) if isinstance(value, tuple | list) else value


class Inputs:
    """Makes the inputs of each shape, runs the reference on them, and reports what is wrong with either."""

    def __init__(self, lab: Lab, record: Record, seed: int) -> None:
        self.lab, self.record, self.seed = lab, record, seed
        self.reference_line = line_of(lab.reference)
        self.complete = True
        """Whether every sample of every shape could be made."""
        self._applied: set[str] = set()
        self._failed: set[str] = set()
        self._unsteady: set[str] = set()
        self._differs: set[str] = set()
        self._masked: dict[str, bool] = {}
        self._varies: set[str] = set()
        """Those of the default and the mixed inputs that differ from seed to seed."""
        self._default: list[Any] = []

    def samples(self, shape: Shape) -> list[Sample]:
        """The usable samples at a shape, the default inputs first."""
        found = []
        for case in ("", *self.lab.cases):
            if "" in self._failed:
                break  # cases are made from the default inputs, and would say the same again
            if case in self._failed:
                continue
            try:
                sample = self._sample(shape, case)
            except SourceFailed as error:
                self._failed.add(case)
                self.complete = False
                self.record.failure(error, f"{said(case)} at {shape}")
            else:
                if sample is not None:
                    found.append(sample)
        return found

    def _line(self, case: str) -> tuple[str, int]:
        return maker_of(case)[1], line_of(self.lab.makers[case])

    def _sample(self, shape: Shape, case: str) -> Sample | None:
        """One sample with its expected outputs; None if the case does not apply or is unusable (which is reported)."""
        name, line = self._line(case)
        try:
            args = self.lab.inputs(shape, case, self.seed)
            if args is None:
                return None
            if not case or case not in self._applied:  # a case is replayed at its first shape only
                self._check_seed(shape, case, args)
            first = case not in self._applied
            self._applied.add(case)
        except Malformed as error:
            self._failed.add(case)
            self.complete = False
            self.record.add("TF623", name, f"{maker_of(case)[0]} {error} at {shape}", line=line)
            return None
        # Copies on both sides: their version counters begin at zero, and arguments share no memory.
        sample = Sample(shape, case, [copied(value) for value in args], list(args))
        self._note_difference(sample)
        if case == MIXED:
            self._check_layout(sample)
        return sample if self._run_reference(sample, repeat=first or not case) else None

    def _check_seed(self, shape: Shape, case: str, args: Sequence[Any]) -> None:
        """The same seed gives the same inputs, whatever the global generators hold; another seed gives others."""
        name, line = self._line(case)
        torch.manual_seed(random.randrange(1 << 30))
        random.seed(random.randrange(1 << 30))
        again = self.lab.inputs(shape, case, self.seed)
        if not same(args, again) and "" not in self._unsteady:
            self._unsteady.add(case)
            what = self._first_difference(args, again)
            self.record.add("TF621", name, f"{said(case)} at {shape}: {what} differs for the same seed", line=line)
        asked = case in ("", MIXED) and case not in self._varies
        if asked and not same(args, self.lab.inputs(shape, case, self.seed + 1)):
            self._varies.add(case)

    def _first_difference(self, args: Sequence[Any], again: Sequence[Any] | None) -> str:
        if again is None or len(again) != len(args):
            return "the number of arguments"
        pairs = zip(self.lab.parameters, args, again, strict=False)
        return next((parameter.name for parameter, a, b in pairs if not same(a, b)), "an argument")

    def _note_difference(self, sample: Sample) -> None:
        if not sample.case:
            self._default = sample.pristine
        elif not same(self.lab.with_defaults(sample.pristine), self.lab.with_defaults(self._default)):
            self._differs.add(sample.case)

    def _check_layout(self, sample: Sample) -> None:
        """The mixed inputs are laid out like the default ones, so that work and floor are theirs too."""
        made, default = sample.pristine, self._default
        problem = "" if len(made) == len(default) else f"returns {len(made)} arguments, and _mk {len(default)}"
        for parameter, value, usual in zip(self.lab.parameters, made, default, strict=False):
            if not problem and _layout(value) != _layout(usual):
                problem = f"makes {parameter.name} {_shown(value)}, and _mk {_shown(usual)}"
        if problem:
            name, line = self._line(MIXED)
            self.record.add("TF627", name, f"mix {problem} at {sample.shape}", line=line)

    def _run_reference(self, sample: Sample, *, repeat: bool) -> bool:
        """Fill in expected outputs and regions; False if the sample is of no use."""
        lab, record = self.lab, self.record
        started = time.perf_counter()
        doing = f"the reference on {sample.where}"
        try:
            outputs = lab.call("reference_src", doing, lab.reference, sample.args)
        except Malformed as error:
            self.complete = False
            record.add("TF631", "reference_src", f"{error} ({sample.where})", line=self.reference_line)
            return False
        repeat = repeat and time.perf_counter() - started < _QUICK_S
        sample.expected = tuple(output.clone() for output in outputs)
        if written := sample.restore():
            names = " and ".join(lab.parameters[index].name for index in written)
            record.add("TF633", "reference_src", f"the reference writes into {names}", line=self.reference_line)
        if not self._allowed(sample):
            self.complete = False
            return False
        if sample.case in ("", MIXED):
            self._check_finite(sample)
        if repeat:
            again = lab.call("reference_src", doing + ", again", lab.reference, sample.args)
            sample.restore()
            if not same(sample.expected, again):
                record.add("TF632", "reference_src", f"two calls differ on {sample.where}", line=self.reference_line)
        self._declare_regions(sample)
        return True

    def _allowed(self, sample: Sample) -> bool:
        """Whether the reference's own dtypes would pass."""
        declared = self.lab.spec.output_dtypes or [None] * len(self.lab.names)
        for name, output, dtypes in zip(self.lab.names, sample.expected, declared, strict=True):
            allowed = allowed_dtypes(output.dtype, dtypes)
            if dtype_name(output.dtype) not in allowed:
                message = f"returns {name} in {dtype_name(output.dtype)}, but allowed is {' or '.join(allowed)}"
                hint = "cast it, or set output_dtypes"
                self.record.add("TF631", "reference_src", message, line=self.reference_line, hint=hint)
                return False
        return True

    def _check_finite(self, sample: Sample) -> None:
        for name, output in zip(self.lab.names, sample.expected, strict=True):
            wrong = output.numel() - int(torch.isfinite(output).sum())
            if wrong:
                message = f"{wrong} of {output.numel()} entries of {name} are NaN or infinite on {sample.where}"
                self.record.add("TF634", "reference_src", message, line=self.reference_line)

    def _declare_regions(self, sample: Sample) -> None:
        try:
            sample.regions = self.lab.regions(sample.args, sample.expected)
        except (Malformed, SourceFailed) as error:
            raised = isinstance(error, SourceFailed)
            line = error.line if isinstance(error, SourceFailed) else line_of(self.lab.namespace["regions"])
            message = f"{'regions() raises ' if raised else ''}{error} ({sample.where})"
            self.record.add("TF661", "regions_src", message, line=line)
            return
        sample.restore()
        for region in sample.regions:
            known = self._masked.get(region.name, False)
            self._masked[region.name] = known or bool(region.mask.any())

    def finish(self) -> None:
        """What can be said only after all shapes."""
        record = self.record
        for case, function in self.lab.cases.items():
            name, line = maker_of(case)[0], line_of(function)
            field = maker_of(case)[1]
            if not inspect.getdoc(function):
                record.add("TF625", field, f"{name} has no docstring", line=line)
            if self._failed & {"", case}:
                continue
            if case not in self._applied:
                record.add("TF624", field, f"{name} returns None at every correct shape", line=line)
            elif case not in self._differs:
                record.add("TF626", field, f"{name} returns the arguments of _mk", line=line)
        for case in dict.fromkeys(("", self.lab.timed_case)):
            if not self._failed & {"", case} and case not in self._varies:
                message = f"{maker_of(case)[0]} returns the same arguments for two seeds at every correct shape"
                record.add("TF622", *self._line(case)[:1], message, line=self._line(case)[1])
        for name, selects in self._masked.items():
            if not selects:
                line = line_of(self.lab.namespace["regions"])
                record.add("TF662", "regions_src", f"region {name!r} selects nothing anywhere", about=name, line=line)
