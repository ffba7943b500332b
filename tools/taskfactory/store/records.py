"""What goes into the store and what comes out of it, as frozen records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


def sha256(data: bytes) -> str:
    """Hex digest, without a prefix."""
    return hashlib.sha256(data).hexdigest()


def utc_now() -> str:
    """The time, ISO 8601 with milliseconds, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class StoredTask:
    """A task as it is graded: its hidden directory, and what a reader wants to know of it."""

    name: str
    title: str
    version: str
    spec_digest: str
    metric: str
    readme: str
    files: dict[str, str] = field(repr=False)
    """File name -> text of the hidden task directory, without a copy of the grader."""

    @property
    def content_sha256(self) -> str:
        """Hash of everything that a grading depends on."""
        return sha256(self.files_json.encode())

    @property
    def files_json(self) -> str:
        """The files as canonical JSON."""
        return json.dumps(self.files, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class Run:
    """One `taskfactory run` or `taskfactory regrade`."""

    id: str
    kind: str
    started_at: str
    host: str
    taskfactory_version: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class NewJob:
    """One submission that a run is to grade."""

    task_sha256: str
    source_sha256: str
    submitter: str
    sample: str


@dataclass(frozen=True)
class Job:
    """A stored job and where it stands."""

    id: int
    run_id: str
    ordinal: int
    task_sha256: str
    task: str
    source_sha256: str
    submitter: str
    sample: str
    attempts: int
    """Results stored so far."""
    status: str | None
    """Status of the last of them, None before the first."""


@dataclass(frozen=True)
class NewResult:
    """One finished grading, as delivered by an executor."""

    job_id: int
    attempt: int
    record: str
    """The grader's private JSON, byte for byte."""
    printed: str
    host: str
    slot: str
    grader_sha256: str
    conditions: dict[str, Any]


@dataclass(frozen=True)
class StoredResult:
    """A result with its job; the record stays text until someone asks for it."""

    id: int
    job_id: int
    run_id: str
    attempt: int
    task: str
    task_sha256: str
    spec_digest: str
    metric: str
    source_sha256: str
    submitter: str
    sample: str
    record: str = field(repr=False)
    printed: str = field(repr=False)
    status: str
    timed: bool
    score: float | None
    score_low: float | None
    score_high: float | None
    reward: float | None
    device: str
    tier: str
    started_at: str
    duration_s: float
    host: str
    slot: str
    grader_sha256: str
    conditions: dict[str, Any]
    stored_at: str


@dataclass(frozen=True)
class Tally:
    """How far a run is."""

    run: Run
    jobs: int
    done: int
    """Jobs whose last result is a verdict."""
    broken: int
    """Jobs whose last result is an infrastructure error."""
    last_stored_at: str | None
