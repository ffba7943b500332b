"""Run every subject on every sample, in the process that executes the spec, and read off how far each is from a gate.

Samples are taken smallest shape first, all seeds of the small ones before the first of a large one. A mutant is dropped
at its first rejection, a precision once it is clearly rejected; the others are measured throughout.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from taskfactory.calibrate.figures import EPSILONS
from taskfactory.calibrate.subjects import KINDS, Context, Subject, subjects_of
from taskfactory.checks.inputs import Sample, copied
from taskfactory.checks.inputs import same as same_values
from taskfactory.checks.lab import Lab, Malformed, Outputs, Shape, Unsupported
from taskfactory.checks.record import SourceFailed
from taskfactory.grader.compare import FLOAT_DTYPES, TILE, compare_outputs

LARGE = 1 << 22
"""At shapes with more output entries, only the first seed is used, and cases are left to alternates and mutants."""
MUTANT_S = 5.0
"""What a mutant may take beyond twenty times the reference's time."""
CLEAR = 3.0
"""How far beyond a gate a wrong answer should be; a precision that is, is not measured further."""


class TooLong(BaseException):
    """A subject took longer than it may; not an Exception, so that no source catches it."""


@dataclass(frozen=True)
class Position:
    """Where a sample stands: one call that is verified."""

    index: int
    seed: int
    shape: Shape
    case: str
    large: bool


@dataclass
class Reading:
    """How one subject fared on one sample."""

    subject: str
    sample: int
    outcome: str
    """"values", or why there are none: "raised", "form", "hung", "crashed"."""
    note: str = ""
    use: float = 0.0
    """Largest share of a gate that was used up; 1.0 is at the gate, above it is a rejection."""
    gate: str = ""
    """The gate it came nearest to: "tolerance", "tile", "exact", "finite" or "region <name>", with the output."""
    error: float = 0.0
    """Largest E of a float output."""
    equal: bool = False
    """All outputs are those of the reference, bit for bit."""
    exact: bool = True
    """All outputs that are compared exactly agree."""
    outputs: dict[str, list[Any]] = field(default_factory=dict)
    """Output -> [E, tile ratio, {region: E}]."""
    epsilons: list[float] = field(default_factory=list)
    """Of honest subjects: the worst tile ratio at each of `EPSILONS`."""


def positions(
    lab: Lab, seeds: Sequence[int], extra: Sequence[Shape] = (), shapes: Sequence[Shape] = (), small: bool = False
) -> list[Position]:
    """Every sample of a calibration in order.

    Args:
        lab: the spec's sources.
        seeds: seeds of the inputs.
        extra: shapes that come last, with default inputs and the first seed only.
        shapes: which of the correct shapes to take; all if empty.
        small: leave large shapes out.
    """
    cases = ("", *lab.cases)
    chosen = [shape for shape in lab.smallest_first() if not shapes or shape in shapes]
    large = {shape: _entries(lab, shape, seeds[0]) > LARGE for shape in chosen}
    found: list[tuple[int, Shape, str, bool]] = []
    for seed in seeds:
        found += [(seed, shape, case, False) for shape in large if not large[shape] for case in cases]
    if small:
        large = {}
    found += [(seeds[0], shape, case, True) for shape in large if large[shape] for case in cases]
    found += [(seeds[0], shape, "", True) for shape in extra]
    return [Position(index, *entry) for index, entry in enumerate(found)]


def _entries(lab: Lab, shape: Shape, seed: int) -> int:
    """Entries of the largest tensor of a call, which stands for its outputs."""
    args = lab.inputs(shape, "", seed) or ()
    return max((value.numel() for value in args if isinstance(value, torch.Tensor)), default=0)


class Bench:
    """Runs subjects on samples and reports readings."""

    def __init__(
        self,
        lab: Lab,
        samples: Sequence[Position],
        skip: set[str],
        emit: Callable[[Reading], None],
        notice: Callable[[str, Position], None],
        kinds: Container[str] = KINDS,
    ) -> None:
        self.lab, self.skip, self.emit, self.notice = lab, skip, emit, notice
        self.positions, self.kinds = list(samples), kinds
        self._previous: dict[Shape, tuple[int, Outputs]] = {}
        self._seconds = 0.0
        self.subjects: list[Subject] = []

    def run(self, start: int = 0) -> None:
        """Measure from the sample of index `start` on.

        Raises:
            SourceFailed, Malformed: the spec's own reference or inputs fail.
        """
        first = self._sample(self.positions[0])
        if first is None:
            raise Malformed("has no default inputs")
        self.subjects = [subject for subject in subjects_of(self.lab, first) if subject.kind in self.kinds]
        for position in self.positions[start:]:
            sample = first if position.index == 0 else self._sample(position)
            if sample is None:
                continue
            context = Context(position.seed, self._earlier(position))
            for subject in self.subjects:
                if subject.name not in self.skip and _wanted(subject, position):
                    self.notice(subject.name, position)
                    reading = self._read(subject, position, sample, context)
                    if reading is not None:
                        self.emit(reading)
                        if _settled(subject, reading):
                            self.skip.add(subject.name)

    def _sample(self, position: Position) -> Sample | None:
        lab = self.lab
        self.notice("", position)
        args = lab.inputs(position.shape, position.case, position.seed)
        if args is None:
            return None
        sample = Sample(position.shape, position.case, [copied(value) for value in args], list(args))
        started = time.perf_counter()
        expected = lab.call("reference_src", f"the reference on {sample.where}", lab.reference, sample.args)
        self._seconds = time.perf_counter() - started
        sample.expected = tuple(output.clone() for output in expected)
        sample.restore()
        sample.regions = lab.regions(sample.args, sample.expected)
        return sample

    def _earlier(self, position: Position) -> Outputs | None:
        """What the reference says for the default inputs of another seed at the same shape."""
        if position.case or position.large:
            return None
        args = self.lab.inputs(position.shape, "", position.seed + 1)
        return None if args is None else self.lab.call("reference_src", "the reference", self.lab.reference, args)

    def _read(self, subject: Subject, position: Position, sample: Sample, context: Context) -> Reading | None:
        limit_s = MUTANT_S + 20.0 * self._seconds
        try:
            with _deadline(limit_s if subject.kind == "mutant" else 0.0):
                outputs = subject.run(sample, context)
        except Unsupported:
            return None
        except SourceFailed as error:
            hung = isinstance(error.__cause__, TooLong)
            return Reading(subject.name, position.index, "hung" if hung else "raised", error.message[:120])
        except Malformed as error:
            return Reading(subject.name, position.index, "form", str(error)[:120])
        except (TooLong, Exception) as error:
            outcome = "hung" if isinstance(error, TooLong) else "raised"
            return Reading(subject.name, position.index, outcome, f"{type(error).__name__}: {error}"[:120])
        finally:
            sample.restore(thorough=False)
        if outputs is None:
            return None
        return read(self.lab, sample, subject, position.index, outputs)


def _settled(subject: Subject, reading: Reading) -> bool:
    """Whether nothing more has to be known of a subject."""
    if subject.kind == "mutant":
        return reading.outcome != "values" or reading.use > 1.0
    return subject.kind == "precision" and reading.use > CLEAR


def _wanted(subject: Subject, position: Position) -> bool:
    """Whether a subject is measured at a position; see `LARGE`."""
    if subject.kind == "trivial":
        return not position.case and not position.large
    if subject.kind in ("alternate", "mutant"):
        return True
    return not position.large or (not position.case and subject.kind != "precision")


def read(lab: Lab, sample: Sample, subject: Subject, index: int, outputs: Outputs) -> Reading:
    """Compare outputs as the grader does, and say which gate they come nearest to."""
    reading = Reading(subject.name, index, "values")
    honest = subject.kind in ("float64", "alternate")
    if subject.kind == "float64":
        outputs = _returnable(lab, outputs)
    reading.equal = same_values(tuple(sample.expected), tuple(outputs))
    if reading.equal:
        reading.outputs = {name: [0.0, 0.0, {}] for name in lab.names}
        reading.epsilons = [0.0] * len(EPSILONS) if honest else []
        return reading
    gates = lab.gates
    reports = compare_outputs(sample.expected, outputs, lab.names, gates, lab.spec.output_dtypes, sample.regions)
    if any(report.failure in ("wrong_shape", "wrong_dtype") for report in reports):
        return Reading(subject.name, index, "form", "; ".join(r.message for r in reports if r.failure)[:120])
    limits = {region.name: region.tol for region in sample.regions}
    for report, expected in zip(reports, sample.expected, strict=True):
        if not expected.is_floating_point():
            reading.exact = reading.exact and report.error == 0.0
            shares = {"exact": math.inf if report.error else 0.0}
        elif report.failure == "not_finite":
            shares = {"finite": math.inf}
        else:
            reading.error = max(reading.error, _number(report.error))
            shares = {"tolerance": report.error / gates.tol, "tile": report.tile_ratio / gates.kappa}
            shares |= {f"region {name}": error / limits[name] for name, error in report.regions.items()}
        reading.outputs[report.name] = [_number(report.error), _number(report.tile_ratio),
                                        {name: _number(error) for name, error in report.regions.items()}]  # fmt: skip
        for gate, share in shares.items():
            if _number(share) > reading.use:
                reading.use, reading.gate = _number(share), f"{gate} of {report.name}" if len(reports) > 1 else gate
    if honest:
        reading.epsilons = _tile_ratios(sample.expected, outputs, gates.tol)
    return reading


def _returnable(lab: Lab, outputs: Outputs) -> Outputs:
    """float64 outputs, rounded once to the widest dtype in which a submission may return them."""
    declared = lab.spec.output_dtypes or (FLOAT_DTYPES,) * len(outputs)
    rounded = []
    for output, dtypes in zip(outputs, declared, strict=True):
        widest = max(dtypes, key=lambda name: getattr(torch, name).itemsize)
        rounded.append(output.to(getattr(torch, widest)) if output.is_floating_point() else output)
    return tuple(rounded)


def _tile_ratios(expected: Outputs, actual: Outputs, tol: float) -> list[float]:
    """The worst tile's ||o - r|| / (tol max(||r||, eps M)) of all float outputs, for each eps of `EPSILONS`."""
    worst = [0.0] * len(EPSILONS)
    for r, o in zip(expected, actual, strict=True):
        if not r.is_floating_point() or not r.numel():
            continue
        wide = r.double()
        finite = torch.isfinite(wide)
        wide = torch.where(finite, wide, 0.0)
        off = torch.where(finite, o.double() - wide, 0.0)
        d, n = _tile_norms(off), _tile_norms(wide)
        for place, epsilon in enumerate(EPSILONS):
            ratio = torch.where(d > 0, d / (tol * torch.clamp(n, min=epsilon * float(n.median()))), 0.0).max()
            worst[place] = max(worst[place], _number(float(ratio)))
    return worst


def _tile_norms(x: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % TILE)).view(-1, TILE).norm(dim=1)
    return norms


def _number(value: float) -> float:
    """NaN is as bad as infinity."""
    return math.inf if math.isnan(value) else float(value)


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in this thread after some seconds of wall time; 0 for no limit.

    Python runs the handler between two bytecodes, so one operation that never returns is left to the parent's limit.
    """
    if seconds <= 0:
        yield
        return

    def ring(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def as_message(reading: Reading) -> dict[str, Any]:
    """A reading as JSON may carry it, without what is empty."""
    return {key: value for key, value in asdict(reading).items() if value not in ("", [], {})}
