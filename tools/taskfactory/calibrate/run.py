"""Calibrate specs: one child after the other executes a spec; readings are collected here, where nothing of it runs.

A subject that hangs or takes the child along counts as rejected; the next child goes on behind it.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskfactory.calibrate.quality import large_shapes
from taskfactory.checks.watch import Ending, Limits, run_child
from taskfactory.errors import InfrastructureError, SpecError
from taskfactory.findings import Finding
from taskfactory.load import SpecFile

SEEDS = (20_260, 20_261)
"""Seeds of the inputs."""
LIMITS = Limits(step_s=120.0, total_s=1800.0)
_RESTARTS = 100
"""Subjects that may end a child before the calibration is given up."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Budget:
    """What measure and graded shapes of one spec may take on a GPU; what is left then is a gap."""

    beyond_s: float = 42.0
    """Seconds for alternates, ablations and mutants there."""
    timing_s: float = 18.0
    """Seconds for the stopwatch."""
    memory_share: float = 1.0
    """Share of the device's usable memory, for several specs at a time."""


@dataclass(frozen=True)
class SampleKey:
    """One call that was measured."""

    seed: int
    shape: tuple[int, ...]
    case: str
    large: bool

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.case or 'default inputs'} at {self.shape}, seed {self.seed}"


@dataclass
class Readings:
    """Everything that was read off one spec."""

    device: str
    seeds: tuple[int, ...]
    samples: list[SampleKey] = field(default_factory=list)
    subjects: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (kind, description)."""
    readings: list[dict[str, Any]] = field(default_factory=list)
    """See `taskfactory.calibrate.reading.Reading`."""
    beyond_s: float = 0.0
    """What measure and graded shapes took."""
    gaps: dict[tuple[str, int], str] = field(default_factory=dict)
    """(subject, sample) at a measure or graded shape -> why it was not measured there."""

    def gaps_by_subject(self) -> list[dict[str, Any]]:
        """One entry a subject and reason, with its shapes; mutants together."""
        grouped: dict[tuple[str, str], list[list[int]]] = {}
        for (subject, sample), reason in self.gaps.items():
            name = "a mutant" if subject.startswith("mutants.") else subject
            shapes = grouped.setdefault((name, reason), [])
            if (shape := list(self.samples[sample].shape)) not in shapes:
                shapes.append(shape)
        return [{"subject": name, "why": reason, "shapes": shapes} for (name, reason), shapes in grouped.items()]


def measure(
    file: SpecFile,
    *,
    device: str = "cpu",
    seeds: Sequence[int] = SEEDS,
    shapes: Sequence[tuple[int, ...]] = (),
    small: bool = False,
    skip: Sequence[str] = (),
    limits: Limits = LIMITS,
    budget: Budget | None = None,
    progress: Progress | None = None,
) -> Readings:
    """Run every subject of a spec on its samples.

    Args:
        file: a spec without errors in its static checks.
        device: "cpu": correct shapes and cases; "cuda": measure and graded shapes with default inputs too.
        seeds: seeds of the inputs.
        shapes: which of the correct shapes to take; all if empty.
        small: leave out shapes with more than `measure.LARGE` entries.
        skip: names of subjects that are not wanted.
        limits: what a child may use.
        budget: what measure and graded shapes may take.
        progress: called with what is being done.

    Raises:
        InfrastructureError: children cannot be started here, torch is missing, or they keep ending.
        SpecError: the spec's own reference or inputs fail.
    """
    if os.name != "posix":
        raise InfrastructureError("calibration needs Linux or macOS")
    if importlib.util.find_spec("torch") is None:
        raise InfrastructureError("calibration needs torch, which is not installed here")
    spec = file.spec
    extra = [shape for _, shape in large_shapes(spec)] if device == "cuda" else []
    job: dict[str, Any] = {"path": str(file.path), "spec": spec.as_dict(), "lines": dict(file.lines), "text": file.text}
    job |= {"device": device, "seeds": list(seeds), "shapes": [list(s) for s in shapes], "small": small}
    budget = budget or Budget()
    job |= {"extra": [list(s) for s in extra], "memory_share": budget.memory_share}
    listener = _Listener(file, Readings(device, tuple(seeds)), set(skip), budget, progress or (lambda _: None))
    for _ in range(_RESTARTS):
        ending = run_child(job | listener.resume(), limits, listener.hear, entry="taskfactory.calibrate.child")
        if listener.failure is not None:
            raise listener.failure
        if listener.done:
            listener.result.beyond_s = listener.beyond_s()
            return listener.result
        listener.conclude(ending)
    raise InfrastructureError(f"{spec.name}: {_RESTARTS} subjects ended the process they ran in")


class _Listener:
    """Takes in what children say."""

    def __init__(self, file: SpecFile, result: Readings, skip: set[str], budget: Budget, progress: Progress) -> None:
        self.file, self.result, self.skip, self.budget, self.progress = file, result, skip, budget, progress
        self._lost: set[tuple[str, int]] = set()
        self._beyond_since: float | None = None
        self.done = False
        self.failure: SpecError | None = None
        self._doing: tuple[str, int] = ("", 0)
        self._read: set[tuple[str, int]] = set()

    def resume(self) -> dict[str, Any]:
        """What the next child leaves out."""
        resumed = {"skip": sorted(self.skip), "start": self._doing[1], "lost": sorted(self._lost)}
        return resumed | {"beyond_s": max(0.0, self.budget.beyond_s - self.beyond_s())}

    def beyond_s(self) -> float:
        """Seconds since the first measure or graded shape."""
        return 0.0 if self._beyond_since is None else time.monotonic() - self._beyond_since

    def _is_beyond(self, sample: int) -> bool:
        """Whether a sample is at a measure or graded shape."""
        known = self.result.samples
        return sample < len(known) and known[sample].shape not in self.file.spec.correct_shapes

    def hear(self, message: dict[str, Any]) -> bool:
        """Take in a message; whether it was the last one."""
        result = self.result
        if "doing" in message:
            self._doing = (str(message["doing"][0]), int(message["doing"][1]))
            if self._beyond_since is None and self._is_beyond(self._doing[1]):
                self._beyond_since = time.monotonic()
            self.progress(f"{self.file.spec.name}: sample {self._doing[1] + 1} of {len(result.samples)}")
        elif "gap" in message:
            subject, sample, reason = message["gap"]
            result.gaps[str(subject), int(sample)] = str(reason)
        elif "reading" in message:
            self._keep(message["reading"])
        elif "subject" in message:
            name, kind, about = map(str, message["subject"])
            result.subjects[name] = (kind, about)
        elif "samples" in message:
            result.samples = [SampleKey(int(s), tuple(shape), str(c), bool(l)) for s, shape, c, l in message["samples"]]
        elif "failed" in message:
            text, name, line = message["failed"]
            line = line or self.file.lines.get(name, 0)
            said = f"{text} (when it is calibrated)"
            self.failure = SpecError([Finding("TF601", "error", said, self.file.path, line, name)])
            return True
        else:
            self.done = True
            return True
        return False

    def _keep(self, reading: dict[str, Any]) -> None:
        key = (reading["subject"], reading["sample"])
        if key in self._read:  # a sample that a second child has begun again
            return
        self._read.add(key)
        self.result.readings.append(reading)
        kind = self.result.subjects[reading["subject"]][0]
        if kind == "mutant" and (reading["outcome"] != "values" or reading["use"] > 1.0):
            self.skip.add(reading["subject"])

    def conclude(self, ending: Ending) -> None:
        """Note which subject ended the child.

        Raises:
            InfrastructureError: it was none.
        """
        name, sample = self._doing
        kind = self.result.subjects[name][0] if name else ""
        if self._is_beyond(sample) and kind != "mutant":
            # Larger than the machine can do is no verdict on the subject; what it was is told by the gap.
            self.result.gaps[name or "reference", sample] = f"its process ended ({ending.kind})"
            self._lost.add((name or "reference", sample))
            return
        if not name:
            said = f"{ending.kind}: {ending.printed.strip().split(chr(10))[-1][:300]}"
            raise InfrastructureError(f"{self.file.spec.name}: calibration ended in the reference ({said})")
        outcome = "hung" if ending.kind in ("step", "total") else "crashed"
        self._keep({"subject": name, "sample": sample, "outcome": outcome, "use": 0.0})
        self.skip.add(name)
