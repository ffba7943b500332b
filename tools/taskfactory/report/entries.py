"""A stored result as the report sees it: few numbers, so that a hundred thousand of them fit into memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from taskfactory.fleet.conditions import flags
from taskfactory.grader.result import Status, from_json, geometric_mean
from taskfactory.report.words import without_times
from taskfactory.store.records import StoredResult


@dataclass(frozen=True)
class Span:
    """A number with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def overlaps(self, other: Span) -> bool:
        """Whether noise could turn the order of the two around."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Entry:
    """One result without its record."""

    id: int
    run_id: str
    attempt: int
    task: str
    task_sha256: str
    spec_digest: str
    metric: str
    submitter: str
    sample: str
    source_sha256: str
    status: Status
    timed: bool
    score: Span | None
    """In the task's metric."""
    fraction: Span | None
    """Of the limit; may exceed 1."""
    device: str
    ceilings: tuple[tuple[str, float], ...]
    limits_ms: tuple[tuple[int, float], ...]
    """(ordinal, limit) of each graded shape, in ms."""
    tier: str
    host: str
    slot: str
    duration_s: float
    started_at: str
    stored_at: str
    flags: tuple[str, ...]
    """What a reader should know of the circumstances."""

    @property
    def passed(self) -> bool:
        """Whether the verdict is that it passed."""
        return self.status is Status.PASSED

    @property
    def judged(self) -> bool:
        """Whether there is a verdict at all."""
        return self.status is not Status.INFRASTRUCTURE_ERROR

    @property
    def page(self) -> str:
        """Path of its page."""
        return f"result/{self.id}.html"


def entry_of(stored: StoredResult) -> Entry:
    """What the report keeps of a result."""
    record = json.loads(stored.record)
    graded = [shape for shape in record.get("shapes", []) if shape.get("kind") == "graded"]
    score = fraction = None
    if stored.score is not None:
        low, high = stored.score_low, stored.score_high
        score = Span(stored.score, low if low is not None else stored.score, high if high is not None else stored.score)
        parts = [shape["fraction_of_limit"] for shape in graded if shape.get("fraction_of_limit")]
        if parts:
            middle = geometric_mean(parts)
            fraction = Span(middle, middle * score.low / score.value, middle * score.high / score.value)
    circumstances = [*flags(stored.conditions), *record.get("warnings", [])]
    if stored.tier not in ("confined", "namespaced") and stored.status != Status.INFRASTRUCTURE_ERROR:
        circumstances.append(f"The submission ran {stored.tier}: it could have reached what it should not.")
    return Entry(
        id=stored.id, run_id=stored.run_id, attempt=stored.attempt, task=stored.task, task_sha256=stored.task_sha256,
        spec_digest=stored.spec_digest, metric=stored.metric, submitter=stored.submitter, sample=stored.sample,
        source_sha256=stored.source_sha256, status=Status(stored.status), timed=stored.timed, score=score,
        fraction=fraction, device=stored.device, ceilings=tuple(sorted(record.get("ceilings", {}).items())),
        limits_ms=tuple((s["ordinal"], s["limit_ms"]) for s in graded if s.get("limit_ms")), tier=stored.tier,
        host=stored.host, slot=stored.slot, duration_s=stored.duration_s, started_at=stored.started_at,
        stored_at=stored.stored_at, flags=tuple(circumstances),
    )  # fmt: skip


_PUBLIC_OF_GRADED = (
    "kind", "ordinal", "calls", "errors", "tile_ratios", "regions", "bounded", "metric", "fraction_of_limit",
)  # fmt: skip


def record_of(stored: StoredResult, *, private: bool) -> dict[str, Any] | None:
    """The record to show, or its public form; None where a record of another schema cannot be made public.

    Beyond what the grader makes of it, the public form keeps no time of a graded shape, whatever version wrote the
    record: a time and a metric give the work, and the work the shape. The uncertainty stays, as a part of the time
    ("delta_of_time").
    """
    data: dict[str, Any] = json.loads(stored.record)
    relative = [_relative(shape) for shape in data.get("shapes", [])]
    if not private:
        try:
            data = from_json(data).public_json()
        except (TypeError, ValueError):
            return None
        if data["status"] == Status.INFRASTRUCTURE_ERROR:
            data["message"] = without_times(data["message"])  # such as a limit, beside which the clock is too noisy
        data["shapes"] = [
            {name: shape[name] for name in _PUBLIC_OF_GRADED} if shape["kind"] == "graded" else shape
            for shape in data["shapes"]
        ]
    for shape, delta in zip(data["shapes"], relative, strict=True):
        shape["delta_of_time"] = delta
    return data


def _relative(shape: dict[str, Any]) -> float | None:
    delta, time = shape.get("delta_ms"), shape.get("score_ms")
    return delta / time if delta is not None and time else None
