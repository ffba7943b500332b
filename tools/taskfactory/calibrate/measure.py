"""Run every subject on every sample, in the process that executes the spec, and read off how far each is from a gate.

Samples are taken smallest shape first, all seeds of the small ones before the first of a large one. A mutant is dropped
at its first rejection, a precision once it is clearly rejected; the others are measured throughout.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import torch

from taskfactory.calibrate.beyond import BEYOND_S, NO_ALTERNATE, Beyond
from taskfactory.calibrate.deadline import TooLong, deadline
from taskfactory.calibrate.reading import Reading, read
from taskfactory.calibrate.subjects import KINDS, Context, Subject, subjects_of
from taskfactory.checks.inputs import Sample, copied
from taskfactory.checks.lab import Lab, Malformed, Outputs, Shape, Unsupported
from taskfactory.checks.record import SourceFailed
from taskfactory.grader.task import MIXED

LARGE = 1 << 22
"""At shapes with more output entries, only the first seed is used, and cases are left to alternates and mutants."""
_POISON = ("device-side assert", "CUDA error", "illegal memory access")
MUTANT_S = 5.0
"""What a mutant may take beyond twenty times the reference's time."""
CLEAR = 3.0
"""How far beyond a gate a wrong answer should be; a precision that is, is not measured further."""


class Poisoned(BaseException):
    """The GPU refuses all further work of this process, which has to be replaced."""


@dataclass(frozen=True)
class Position:
    """Where a sample stands: one call that is verified."""

    index: int
    seed: int
    shape: Shape
    case: str
    large: bool


def positions(
    lab: Lab, seeds: Sequence[int], extra: Sequence[Shape] = (), shapes: Sequence[Shape] = (), small: bool = False
) -> list[Position]:
    """Every sample of a calibration in order.

    Args:
        lab: the spec's sources.
        seeds: seeds of the inputs.
        extra: shapes that come last, with the inputs of timed calls and the first seed only.
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
    found += [(seeds[0], shape, lab.timed_case, True) for shape in extra]
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
        beyond: Beyond | None = None,
    ) -> None:
        self.lab, self.skip, self.emit, self.notice = lab, skip, emit, notice
        self.beyond = beyond or Beyond()
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
        sample: Sample | None
        for position in self.positions[start:]:
            sample = None  # the last one's memory, before the next is made
            sample = first if position.index == 0 else self._taken(position)
            if sample is None:
                continue
            context = Context(position.seed, self._earlier(position))
            compared = False
            for subject in self.subjects:
                if subject.name not in self.skip and _wanted(subject, position):
                    if self._left_out(subject, position, compared=compared):
                        continue
                    self.notice(subject.name, position)
                    started = time.perf_counter()
                    reading = self._read(subject, position, sample, context)
                    if self._is_beyond(position):
                        if reading is None:
                            self._free()
                        spent_s = self.beyond.spent_s.get(subject.name, 0.0) + time.perf_counter() - started
                        self.beyond.spent_s[subject.name] = spent_s
                    if reading is not None:
                        compared = compared or (subject.kind == "alternate" and reading.outcome == "values")
                        self.emit(reading)
                        if _settled(subject, reading):
                            self.skip.add(subject.name)

    def _taken(self, position: Position) -> Sample | None:
        """A sample; None where there is none, and a gap where a measure or graded shape does not let it be made."""
        if not self._is_beyond(position):
            return self._sample(position)
        reason = self.beyond.refuses("reference", position.index)
        if reason:
            self.beyond.gap("reference", position.index, reason)
            return None
        self._free()
        try:
            return self._sample(position)
        except (SourceFailed, Malformed) as error:
            memory = self._cannot_judge(str(error), position)
            reason = "out of memory" if memory else str(error)[:160]
        self._free()
        self.beyond.gap("reference", position.index, reason)
        return None

    def _left_out(self, subject: Subject, position: Position, *, compared: bool) -> bool:
        """Whether a subject is a gap at a measure or graded shape without being run."""
        if not self._is_beyond(position):
            return False
        reason = self.beyond.refuses(subject.name, position.index)
        if not reason and subject.kind == "mutant" and not compared and self.lab.spec.alternates:
            reason = NO_ALTERNATE  # what is below resolution could not be told from what survives
        if reason:
            self.beyond.gap(subject.name, position.index, reason)
        return bool(reason)

    def _is_beyond(self, position: Position) -> bool:
        return position.shape not in self.lab.spec.correct_shapes

    def _wait(self) -> None:
        """Until the GPU is done, so that a failure is met where it belongs."""
        if self.lab.device != "cpu":
            torch.cuda.synchronize()

    def _free(self) -> None:
        """Give back what nobody uses, to the other processes on the device too.

        The tensors of a call that failed hang on its traceback, in a cycle that only the collector breaks.
        """
        if self.lab.device != "cpu":
            gc.collect()
            torch.cuda.empty_cache()

    def _sample(self, position: Position) -> Sample | None:
        lab = self.lab
        self.notice("", position)
        args = lab.inputs(position.shape, position.case, position.seed)
        if args is None:
            return None
        sample = Sample(position.shape, position.case, [copied(value) for value in args], list(args))
        started = time.perf_counter()
        expected = lab.call("reference_src", f"the reference on {sample.where}", lab.reference, sample.args)
        self._wait()
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
        beyond = self._is_beyond(position)
        limit_s = MUTANT_S + 20.0 * self._seconds if subject.kind == "mutant" else BEYOND_S if beyond else 0.0
        if subject.kind == "mutant" and position.index == 0 and (note := self.beyond.screened(subject.name)):
            return Reading(subject.name, position.index, "raised", note[:120])
        try:
            with deadline(limit_s):
                outputs = subject.run(sample, context)
                self._wait()
        except Unsupported:
            return None
        except SourceFailed as error:
            if self._cannot_judge(error.message, position):
                return self._gap(subject, position, "out of memory")
            hung = isinstance(error.__cause__, TooLong)
            if hung and beyond and subject.kind != "mutant":
                return self._gap(subject, position, f"out of time: it takes more than {BEYOND_S:g} s")
            return Reading(subject.name, position.index, "hung" if hung else "raised", error.message[:120])
        except Malformed as error:
            return Reading(subject.name, position.index, "form", str(error)[:120])
        except (TooLong, Exception) as error:
            if self._cannot_judge(f"{type(error).__name__}: {error}", position):
                return self._gap(subject, position, "out of memory")
            if isinstance(error, TooLong) and beyond and subject.kind != "mutant":
                return self._gap(subject, position, f"out of time: it takes more than {BEYOND_S:g} s")
            outcome = "hung" if isinstance(error, TooLong) else "raised"
            return Reading(subject.name, position.index, outcome, f"{type(error).__name__}: {error}"[:120])
        finally:
            sample.restore(thorough=False)
        if outputs is None:
            return None
        try:
            return read(self.lab, sample, subject, position.index, outputs)
        except torch.OutOfMemoryError:
            if not beyond:
                raise
            return self._gap(subject, position, "out of memory when it is compared")

    def _gap(self, subject: Subject, position: Position, reason: str) -> Reading | None:
        """Tell a gap; there is no reading."""
        self.beyond.gap(subject.name, position.index, reason)
        return None

    def _cannot_judge(self, message: str, position: Position) -> bool:
        """Whether a failure is the machine's: no memory for a shape that is not meant for correctness.

        Raises:
            Poisoned: an invalid access has ended the GPU's context.
        """
        if self.lab.device != "cpu" and any(words in message for words in _POISON):
            raise Poisoned(message)
        return position.shape not in self.lab.spec.correct_shapes and "OutOfMemoryError" in message


def _settled(subject: Subject, reading: Reading) -> bool:
    """Whether nothing more has to be known of a subject."""
    if subject.kind == "mutant":
        return reading.outcome != "values" or reading.use > 1.0
    return subject.kind == "precision" and reading.use > CLEAR


def _wanted(subject: Subject, position: Position) -> bool:
    """Whether a subject is measured at a position; see `LARGE`."""
    usual = position.case in ("", MIXED)
    if subject.kind == "trivial":
        return usual and not position.large
    if subject.kind in ("alternate", "mutant"):
        return True
    return not position.large or (usual and subject.kind != "precision")
