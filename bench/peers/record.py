"""What a run beside the peers leaves behind, as JSON. Standard library only: pages are rendered where no torch is."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
ROLES = ("solution", "peer", "yardstick")
STATUSES = ("verified", "not verified", "wrong", "failed", "unavailable")
"""`not verified` is a yardstick's: it computes something else. `unavailable` is a peer that is not installed or does
not support the shape; `failed` is one that raised. A `wrong` one was timed, but stands in no ratio."""


class RecordError(ValueError):
    """A file is no record of this schema."""


@dataclass
class Entry:
    """One contestant at one shape."""

    name: str
    role: str
    note: str
    status: str
    message: str = ""
    error: float | None = None
    """Worst relative error E of its first and last output; None where nothing was compared."""
    work: float = 0.0
    """Bytes or FLOPs that its rate counts: the canonical work, or a yardstick's own traffic."""
    first_s: float = 0.0
    """Its first call with compilation, in seconds."""
    times_ms: list[float] = field(default_factory=list)
    """Raw event times in the order of the calls."""

    @property
    def counts(self) -> bool:
        """Whether its time may stand in a ratio."""
        return bool(self.times_ms) and self.status in ("verified", "not verified")

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)


@dataclass
class ShapeRecord:
    """All contestants of a task at one shape, on the same inputs."""

    task: str
    kind: str
    shape: list[int]
    unit: str
    work: float
    floor: list[float] | None
    """[bytes, FLOPs] that no implementation avoids."""
    limit_ms: float | None
    """Time of that floor at the run's measured ceilings."""
    entries: list[Entry] = field(default_factory=list)
    failure: str = ""
    """Why there are no entries: inputs or reference failed, or time was up."""

    def solution(self) -> Entry | None:
        return next((e for e in self.entries if e.role == "solution" and e.counts), None)

    def best(self, role: str) -> Entry | None:
        """The fastest contestant of a role: by time for a peer, by rate for a yardstick."""
        found = [e for e in self.entries if e.role == role and e.counts]
        return max(found, key=lambda e: e.work / e.median_ms, default=None)

    def rate(self, entry: Entry) -> float:
        """Its rate by its median time, in the task's unit."""
        return entry.work / entry.median_ms / (1e6 if self.unit == "GB/s" else 1e9)

    def of_limit(self, entry: Entry) -> float | None:
        return None if self.limit_ms is None else self.limit_ms / entry.median_ms

    def ratio(self, role: str) -> float | None:
        """Rate of the solution over that of the best contestant of `role`; None if either is missing."""
        ours, other = self.solution(), self.best(role)
        return None if ours is None or other is None else self.rate(ours) / self.rate(other)


@dataclass
class Run:
    """One run of `python bench/peers`."""

    started_at: str
    commit: str
    command: str
    environment: dict[str, Any]
    versions: dict[str, str | None]
    ceilings: dict[str, float]
    method: dict[str, Any]
    duration_s: float = 0.0
    shapes: list[ShapeRecord] = field(default_factory=list)
    schema: int = SCHEMA


def dumps(run: Run) -> str:
    """The run as JSON text."""
    return json.dumps(dataclasses.asdict(run), indent=1) + "\n"


def load(path: Path) -> Run:
    """Read a run back.

    Raises:
        RecordError: other schema, or a key that is missing or unknown, or a value out of its list.
    """
    data = json.loads(path.read_text("utf-8"))
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise RecordError(f"{path}: schema {SCHEMA} expected")
    try:
        shapes = []
        for found in data.pop("shapes"):
            entries = [Entry(**entry) for entry in found.pop("entries")]
            shapes.append(ShapeRecord(**found, entries=entries))
        run = Run(**data, shapes=shapes)
    except (TypeError, KeyError, AttributeError) as error:
        raise RecordError(f"{path}: {error}") from None
    for shape in run.shapes:
        for entry in shape.entries:
            _one_of(path, entry.role, ROLES)
            _one_of(path, entry.status, STATUSES)
    return run


def _one_of(path: Path, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise RecordError(f"{path}: {value!r} is none of {', '.join(allowed)}")
