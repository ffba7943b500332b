"""What a driver asks of an executor and what it hears back. Standard library only: this crosses process boundaries."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Order:
    """One grading to be done."""

    job_id: int
    attempt: int
    label: str
    """For people: task, submitter, sample."""
    task_sha256: str
    source_sha256: str
    device: str
    """"auto", "cuda" or "cpu"."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further fields of the grader's `Job`, such as `calls` and `require_tier`."""

    @property
    def key(self) -> str:
        """Names this attempt at this job, in file names too."""
        return f"{self.job_id}-{self.attempt}"


@dataclass(frozen=True)
class Delivery:
    """One grading that was done."""

    job_id: int
    attempt: int
    record: str
    """The grader's private JSON, byte for byte."""
    printed: str
    host: str
    slot: str
    """UUID of the GPU, or the name of the CPU worker."""
    grader_sha256: str
    conditions: dict[str, Any]

    @property
    def key(self) -> str:
        """As `Order.key`."""
        return f"{self.job_id}-{self.attempt}"

    def dumps(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self))


def delivery_from_json(text: str) -> Delivery:
    """Inverse of `Delivery.dumps`.

    Raises:
        TypeError, ValueError: not a delivery.
    """
    return Delivery(**json.loads(text))


@dataclass(frozen=True)
class Step:
    """A grading started or went on."""

    order: Order
    slot: str
    step: str
    done: int
    total: int


@dataclass(frozen=True)
class Delivered:
    """A grading ended with a record, whatever it says."""

    order: Order
    slot: str
    delivery: Delivery


@dataclass(frozen=True)
class Lost:
    """A grading ended without a record: its worker or its machine died."""

    order: Order
    slot: str
    reason: str


Event = Step | Delivered | Lost


class Contents(Protocol):
    """Where an executor gets tasks and sources by hash; the store is one."""

    def task_files(self, content_sha256: str) -> dict[str, str]:
        """File name -> text of a hidden task directory."""

    def source(self, digest: str) -> bytes:
        """A submission."""


class Executor(Protocol):
    """Something that grades. One thread talks to it."""

    def slots(self) -> Sequence[str]:
        """What can grade at the same time: one entry for each GPU, or CPU worker, that is not retired."""

    def free(self) -> int:
        """How many orders it would start now."""

    def submit(self, order: Order, avoid: frozenset[str]) -> None:
        """Start an order, if possible on another slot (for Ray: another machine) than those in `avoid`."""

    def events(self, timeout_s: float) -> list[Event]:
        """What happened; waits up to `timeout_s` for the first thing."""

    def leftovers(self) -> Iterator[Delivery]:
        """What was graded for an earlier driver of this run and never stored."""

    def acknowledge(self, key: str) -> None:
        """The delivery of this key is stored and may be forgotten."""

    def retire(self, slot: str) -> None:
        """Give this slot nothing more."""

    def close(self) -> None:
        """End everything that runs; returns when it is dead."""


@lru_cache(maxsize=1)
def grader_sha256() -> str:
    """Hash of the grader's own sources, so that a result says what produced it."""
    package = Path(__file__).resolve().parents[1] / "grader"
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
