"""The subjects of a calibration: everything that is held against the reference, each under a name.

reference.float64              the reference in float64
alternates.<name>              honest: must pass
ablations.<name>               a feature removed: must fail
trivial.<name>                 nothing computed: must fail
precision.<format>.<place>     rounded: reported, 8-bit formats judged
mutants.<name>                 damaged: must fail
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from taskfactory.calibrate.damage import damage_names, damaged
from taskfactory.calibrate.float64 import in_float64
from taskfactory.calibrate.mutants import Mutant, mutants_of
from taskfactory.calibrate.precision import precision_names, rounded_outputs
from taskfactory.calibrate.trivial import NAMES, answer, copied_arguments
from taskfactory.checks.inputs import Sample
from taskfactory.checks.lab import SHARED_SOURCES, Lab, Outputs
from taskfactory.grader.sources import Part, load_namespace

Kind = Literal["float64", "alternate", "ablation", "trivial", "precision", "mutant"]
KINDS: tuple[Kind, ...] = ("float64", "alternate", "ablation", "trivial", "precision", "mutant")


@dataclass(frozen=True)
class Context:
    """What a subject may know besides the call it answers."""

    seed: int
    previous: Outputs | None
    """The right outputs for another seed at the same shape."""


@dataclass(frozen=True)
class Subject:
    """One stand-in for the reference."""

    name: str
    kind: Kind
    about: str
    """What it is, in a few words; of a mutant, the change."""
    run: Callable[[Sample, Context], Outputs | None]
    """Its outputs on the arguments of a sample; None where it does not apply."""


def subjects_of(lab: Lab, sample: Sample) -> Iterator[Subject]:
    """Every subject of a spec, honest ones first. `sample` is any sample, from which counts of axes are read.

    Raises:
        SourceFailed: a variant of the spec cannot be executed.
    """
    yield _function(lab, "reference.float64", "float64", "the reference in float64", "reference_src", in_float64(lab))
    for name in lab.spec.alternates:
        field = f"alternates.{name}"
        yield _function(lab, field, "alternate", _doc(function := lab.variant(field)), field, function)
    for name in lab.spec.ablations:
        field = f"ablations.{name}"
        yield _function(lab, field, "ablation", _doc(function := lab.variant(field)), field, function)
    for name in (*NAMES, *(f"copy_{argument}" for argument in copied_arguments(lab, sample))):
        yield Subject(f"trivial.{name}", "trivial", name.replace("_", " of "), _trivial(lab, name))
    for name, about in precision_names(sample, lab.names):
        yield Subject(name, "precision", about, _precise(lab, name))
    for mutant in mutants_of(lab.spec.reference_src):
        yield Subject(f"mutants.{mutant.name}", "mutant", mutant.change, _Mutated(lab, mutant))
    for name, about in damage_names(lab, sample):
        yield Subject(f"mutants.{name}", "mutant", about, _damaged(lab, name))


def _doc(function: Callable[..., Any]) -> str:
    return " ".join((function.__doc__ or "").split("\n\n")[0].split())


def _function(lab: Lab, name: str, kind: Kind, about: str, field: str, function: Callable[..., Any]) -> Subject:
    return Subject(name, kind, about, lambda sample, _: lab.call(field, name, function, sample.args))


def _trivial(lab: Lab, name: str) -> Callable[[Sample, Context], Outputs | None]:
    return lambda sample, context: answer(lab, sample, name, context.previous, context.seed)


def _precise(lab: Lab, name: str) -> Callable[[Sample, Context], Outputs | None]:
    return lambda sample, _: rounded_outputs(lab, sample, name)


def _damaged(lab: Lab, name: str) -> Callable[[Sample, Context], Outputs | None]:
    return lambda sample, context: damaged(lab, sample, name, context.seed)


class _Mutated:
    """A mutant, executed when it is first called."""

    def __init__(self, lab: Lab, mutant: Mutant) -> None:
        self._lab, self._mutant = lab, mutant
        self._function: Callable[..., Any] | None = None

    def __call__(self, sample: Sample, _: Context) -> Outputs | None:
        lab = self._lab
        if self._function is None:
            parts = []
            for name in SHARED_SOURCES:
                source = lab.file.source(name)
                if source.text and name == "reference_src":
                    parts.append(Part(self._mutant.source, f"<{self._mutant.name}>"))
                elif source.text:
                    parts.append(Part(source.text, str(source.path), source.first_line))
            self._function = load_namespace(parts, lab.device)[lab.spec.func]
        return lab.call("reference_src", self._mutant.name, self._function, sample.args)
