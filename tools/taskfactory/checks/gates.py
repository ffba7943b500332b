"""Do the gates bite? Trivial answers and ablations have to be rejected, alternates to be let through (TF65x)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from taskfactory.checks.inputs import Sample
from taskfactory.checks.lab import Judgement, Lab, Malformed, Outputs, Shape, Unsupported, line_of
from taskfactory.checks.record import Record, SourceFailed

_LARGE = 1 << 22
"""Trivial answers are not tried again at shapes with more output entries than this."""


@dataclass
class _Honest:
    """The nearest that an alternate comes to a gate."""

    error: float = 0.0
    use: float = -1.0
    where: str = ""


class Gauntlet:
    """Judges stand-ins for the reference at one shape after the other."""

    def __init__(self, lab: Lab, record: Record) -> None:
        self.lab, self.record = lab, record
        self._honest: dict[str, _Honest] = {}
        self._ablated: dict[str, list[tuple[Shape, str, Judgement]]] = {}
        self._broken: set[str] = set()
        self._functions: dict[str, Callable[..., Any]] = {}
        self._unseen: dict[str, bool] = {}
        """Ablation -> whether the inputs that are timed let it pass wherever it was looked at."""
        self._trivial: dict[str, float] = {}
        self._weak: dict[tuple[str, str], bool] = {}
        """(trivial answer, output) -> whether it passes for that output at every shape looked at."""

    def run(self, shape: Shape, samples: Sequence[Sample]) -> None:
        """Trivial answers on default and mixed inputs, alternates on all samples, ablations until one rejects them."""
        if not self._trivial or sum(output.numel() for output in samples[0].expected) <= _LARGE:
            for sample in samples:
                if sample.case in ("", self.lab.timed_case):
                    self._trivial_answers(sample)
        for name in self.lab.spec.alternates:
            self._alternate(name, samples)
        for name in self.lab.spec.ablations:
            self._ablation(name, shape, samples)

    def _trivial_answers(self, sample: Sample) -> None:
        self.lab.notice(f"trivial answers on {sample.where}", "reference_src", 0)
        line = line_of(self.lab.reference)
        for what, outputs in self._candidates(sample):
            verdict = self.lab.judge(sample.expected, outputs, sample.regions)
            self._trivial[what] = min(verdict.use, self._trivial.get(what, math.inf))
            if verdict.passed:
                message = f"{what} pass on {sample.where}: E = {verdict.error:.2g}, tolerance {self.lab.spec.tol:g}"
                self.record.add("TF651", "reference_src", message, about=what, line=line)
                continue
            for name, passed in zip(self.lab.names, verdict.outputs, strict=True):
                self._weak[what, name] = passed and self._weak.get((what, name), True)

    def _candidates(self, sample: Sample) -> Iterator[tuple[str, Outputs]]:
        expected = sample.expected
        yield "zeros", tuple(torch.zeros_like(output) for output in expected)
        yield "constants (each output's mean)", tuple(_constant(output) for output in expected)
        for parameter, value in zip(self.lab.parameters, sample.args, strict=False):
            if not isinstance(value, torch.Tensor) or value.is_complex():
                continue
            fits = [value.numel() == output.numel() for output in expected]
            if any(fits):
                copy = tuple(
                    value.reshape(output.shape).to(output.dtype) if fit else torch.zeros_like(output)
                    for fit, output in zip(fits, expected, strict=True)
                )
                yield f"copies of {parameter.name}", copy

    def _function(self, field: str, code: str) -> Callable[..., Any] | None:
        """A variant's function, executed once; None after reporting that it cannot be had."""
        if field not in self._functions and field not in self._broken:
            try:
                self._functions[field] = self.lab.variant(field)
            except SourceFailed as error:
                self._broken.add(field)
                self.record.add(code, field, f"its source raises {error.message}", line=error.line)
        return self._functions.get(field)

    def _judge(self, field: str, function: Callable[..., Any], sample: Sample) -> tuple[Judgement, list[int]]:
        """The verdict on a variant's outputs, and the positions of the arguments it wrote into."""
        try:
            outputs = self.lab.call(field, f"{field} on {sample.where}", function, sample.args)
            verdict = self.lab.judge(sample.expected, outputs, sample.regions)
        finally:
            written = sample.restore(thorough=False)
        return verdict, written

    def _alternate(self, name: str, samples: Sequence[Sample]) -> None:
        field = f"alternates.{name}"
        function = self._function(field, "TF653")
        if function is None:
            return
        honest = self._honest.setdefault(name, _Honest())
        for sample in samples:
            if field in self._broken:
                return
            try:
                verdict, written = self._judge(field, function, sample)
            except Unsupported:
                continue
            except (SourceFailed, Malformed) as error:
                self._broken.add(field)
                line = error.line if isinstance(error, SourceFailed) else line_of(function)
                message = f"{name} raises {error}" if isinstance(error, SourceFailed) else f"{name} {error}"
                self.record.add("TF653", field, f"{message} on {sample.where}", line=line)
                return
            if written:
                names = " and ".join(self.lab.parameters[index].name for index in written)
                self.record.add("TF633", field, f"{name} writes into {names}", line=line_of(function))
            if verdict.use > honest.use:
                self._honest[name] = honest = _Honest(verdict.error, verdict.use, sample.where)
            if not verdict.passed:
                self.record.add(
                    "TF653", field, f"{name} fails on {sample.where}: {verdict.message}", line=line_of(function)
                )

    def _ablation(self, name: str, shape: Shape, samples: Sequence[Sample]) -> None:
        """Run an ablation at a shape until a sample rejects it; keep its best pass if none does."""
        field = f"ablations.{name}"
        function = self._function(field, "TF656")
        if function is None or field in self._broken:
            return
        rejected: tuple[str, Judgement] | None = None
        passed: tuple[str, Judgement] | None = None
        for sample in samples:
            try:
                verdict, _ = self._judge(field, function, sample)
            except Unsupported:
                continue
            except (SourceFailed, Malformed) as error:
                if sample.case:
                    continue  # it need not understand every case; the default inputs it must
                self._broken.add(field)
                line = error.line if isinstance(error, SourceFailed) else line_of(function)
                verb = "raises " if isinstance(error, SourceFailed) else ""
                self.record.add("TF656", field, f"{name} {verb}{error} on {sample.where}", line=line)
                return
            if verdict.structural:
                self._broken.add(field)
                message = f"{name} is rejected for its form on {sample.where}: {verdict.message}"
                self.record.add("TF656", field, message, line=line_of(function))
                return
            if not verdict.passed:
                rejected = (sample.case, verdict)
                break
            if passed is None or verdict.use > passed[1].use:
                passed = (sample.case, verdict)
        outcome = rejected or passed
        if outcome is not None:
            self._ablated.setdefault(name, []).append((shape, *outcome))
        if rejected is not None and rejected[0] != self.lab.timed_case:
            self._timed(name, function, samples)

    def _timed(self, name: str, function: Callable[..., Any], samples: Sequence[Sample]) -> None:
        """Note whether the kind of inputs that is timed lets an ablation pass, which something else rejects."""
        sample = next((sample for sample in samples if sample.case == self.lab.timed_case), None)
        if sample is None:
            return
        try:
            verdict, _ = self._judge(f"ablations.{name}", function, sample)
        except (Unsupported, SourceFailed, Malformed):
            return
        self._unseen[name] = self._unseen.get(name, True) and verdict.passed

    def finish(self) -> None:
        """Report what can be said only after all shapes: single outputs that are trivial, ablations that pass."""
        for (what, output), passes in self._weak.items():
            if passes:
                self.record.add("TF652", "reference_src", f"{what} pass for {output} at every shape",
                                about=output, line=line_of(self.lab.reference))  # fmt: skip
        for name, unseen in self._unseen.items():
            field = f"ablations.{name}"
            if unseen and self.lab.timed_case:
                message = f"{name} passes on the mixed inputs, which alone are timed; only cases reject it"
                self.record.add("TF657", field, message, line=line_of(self._functions[field]))
        for name, outcomes in self._ablated.items():
            field = f"ablations.{name}"
            passing = [(shape, verdict) for shape, _, verdict in outcomes if verdict.passed]
            if not passing or field in self._broken:
                continue
            line = line_of(self._functions[field])
            shown = ", ".join(f"{shape} with E = {verdict.error:.2g}" for shape, verdict in passing)
            tol = f"tolerance {self.lab.spec.tol:g}"
            if len(passing) == len(outcomes):
                self.record.add("TF654", field, f"{name} passes everywhere: {shown}; {tol}", line=line)
            else:
                self.record.add("TF655", field, f"{name} passes at {shown}; {tol}", line=line)

    def figures(self) -> dict[str, Any]:
        """How near honest answers come to a gate, and how far beyond it the others are."""
        alternates = {
            name: {"error": _plain(best.error), "margin": _plain(1 / best.use if best.use > 0 else math.inf),
                   "nearest": best.where}
            for name, best in self._honest.items()
            if best.use >= 0
        }  # fmt: skip
        ablations = {
            name: [
                {"shape": list(shape), "case": case, "rejected": not verdict.passed, "error": _plain(verdict.error),
                 "times_gate": _plain(verdict.use)}
                for shape, case, verdict in outcomes
            ]
            for name, outcomes in self._ablated.items()
        }  # fmt: skip
        trivial = {what: _plain(use) for what, use in self._trivial.items()}
        return {"alternates": alternates, "ablations": ablations, "trivial_times_gate": trivial}


def _constant(output: torch.Tensor) -> torch.Tensor:
    """An output's mean everywhere: rounded for integers, the majority for booleans."""
    if output.is_complex() or output.numel() == 0:
        return torch.zeros_like(output)
    finite = output.double()[torch.isfinite(output)]
    mean = float(finite.mean()) if finite.numel() else 0.0
    if output.is_floating_point():
        return torch.full_like(output, mean)
    return torch.full_like(output, bool(mean >= 0.5) if output.dtype is torch.bool else round(mean))


def _plain(number: float) -> float | None:
    """Four significant digits; None for infinity and NaN, which JSON lacks."""
    return float(f"{number:.4g}") if math.isfinite(number) else None
