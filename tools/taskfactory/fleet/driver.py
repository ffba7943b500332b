"""Driving a run: give out what is left to do, store what comes back, try infrastructure errors again."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from taskfactory.errors import InfrastructureError
from taskfactory.fleet.orders import Delivered, Delivery, Executor, Lost, Order, Step, grader_sha256
from taskfactory.grader.result import Result, Status, dumps
from taskfactory.store.records import Job, NewResult, Run
from taskfactory.store.store import Store

LOSSES = 3
"""How often the worker of one grading may die before an infrastructure error is recorded for it."""
BROKEN_AFTER = 3
"""A slot with this many infrastructure errors in a row gets nothing more."""
POLL_S = 1.0


class Watcher(Protocol):
    """Somebody who looks on."""

    def begin(self, run: Run, total: int, done: int, slots: int) -> None:
        """The run starts or goes on."""

    def step(self, event: Step) -> None:
        """A grading started or went on."""

    def finished(self, order: Order, status: str, slot: str) -> None:
        """A result was stored."""

    def note(self, text: str) -> None:
        """Something unusual."""


class Quiet:
    """A watcher that says nothing."""

    def begin(self, run: Run, total: int, done: int, slots: int) -> None:
        pass

    def step(self, event: Step) -> None:
        pass

    def finished(self, order: Order, status: str, slot: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass
class _Open:
    """A job that is not done."""

    job: Job
    attempt: int
    last_attempt: int
    losses: int = 0
    avoid: set[str] = field(default_factory=set)


def drive(
    store: Store,
    run: Run,
    executor: Executor,
    watcher: Watcher | None = None,
    *,
    retry_infra: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Counter[str]:
    """Grade what a run has left to grade, and close the executor, whatever happens.

    Args:
        store: where the run is and its results go.
        run: a stored run; `settings` has device, options of the grader, and retries.
        executor: who grades.
        watcher: who is told.
        retry_infra: also take up jobs that ended in an infrastructure error with all their retries used.
        stop: asked between events; True ends the driving, and the run can be resumed.

    Returns:
        How often each status is the last one of a job.

    Raises:
        InfrastructureError: every slot is broken, or the store stays away. KeyboardInterrupt as it comes.
    """
    return _Driver(store, run, executor, watcher or Quiet()).drive(retry_infra, stop)


class _Driver:
    def __init__(self, store: Store, run: Run, executor: Executor, watcher: Watcher) -> None:
        self.store, self.run, self.executor, self.watcher = store, run, executor, watcher
        self.waiting: deque[_Open] = deque()
        self.running: dict[str, _Open] = {}
        self.in_a_row: Counter[str] = Counter()

    def drive(self, retry_infra: bool, stop: Callable[[], bool]) -> Counter[str]:
        try:
            for delivery in self.executor.leftovers():
                self._keep(delivery)
            jobs = self.store.jobs(self.run.id)
            self.waiting.extend(self._left(jobs, retry_infra))
            done = len(jobs) - len(self.waiting)
            self.watcher.begin(self.run, len(jobs), done, len(self.executor.slots()))
            while (self.waiting or self.running) and not stop():
                self._give_out()
                for event in self.executor.events(POLL_S):
                    self._handle(event)
        finally:
            self.executor.close()
            for delivery in self.executor.leftovers():
                self._keep(delivery)
        return Counter(job.status or "not graded" for job in self.store.jobs(self.run.id))

    def _left(self, jobs: list[Job], retry_infra: bool) -> list[_Open]:
        retries = int(self.run.settings.get("retries", 0))
        left = []
        for job in jobs:
            broken = job.status == Status.INFRASTRUCTURE_ERROR
            if job.status is None or (broken and (retry_infra or job.attempts <= retries)):
                last = job.attempts + 1 + retries if retry_infra and broken else 1 + retries
                left.append(_Open(job, job.attempts + 1, last))
        return left

    def _give_out(self) -> None:
        while self.waiting and self.executor.free():
            entry = self.waiting.popleft()
            order = self._order(entry)
            self.running[order.key] = entry
            self.executor.submit(order, frozenset(entry.avoid))
        if self.waiting and not self.executor.slots() and not self.running:
            raise InfrastructureError(
                f"every slot had {BROKEN_AFTER} infrastructure errors in a row; mend the machine, then "
                f"`taskfactory run --resume {self.run.id} --retry infra`"
            )

    def _order(self, entry: _Open) -> Order:
        job, settings = entry.job, self.run.settings
        label = f"{job.task} {job.submitter} #{job.sample}"
        return Order(
            job.id, entry.attempt, label, job.task_sha256, job.source_sha256,
            str(settings.get("device", "auto")), dict(settings.get("options", {})),
        )  # fmt: skip

    def _handle(self, event: Step | Delivered | Lost) -> None:
        if isinstance(event, Step):
            self.watcher.step(event)
            return
        entry = self.running.pop(event.order.key)
        if isinstance(event, Lost):
            entry.losses += 1
            entry.avoid.add(event.slot)
            self.watcher.note(f"{event.order.label}: {event.reason}; this grading is done again")
            if entry.losses < LOSSES:
                self.waiting.appendleft(entry)
                return
            delivery = self._lost_record(event.order, event)
        else:
            delivery = event.delivery
        status = self._keep(delivery)
        self.watcher.finished(event.order, status, event.slot)
        self._judge_slot(event.slot, status)
        if status == Status.INFRASTRUCTURE_ERROR and entry.attempt < entry.last_attempt:
            entry.attempt += 1
            entry.losses = 0
            entry.avoid.add(event.slot)
            self.waiting.append(entry)

    def _judge_slot(self, slot: str, status: str) -> None:
        self.in_a_row[slot] = self.in_a_row[slot] + 1 if status == Status.INFRASTRUCTURE_ERROR else 0
        if self.in_a_row[slot] == BROKEN_AFTER:
            self.executor.retire(slot)
            self.watcher.note(f"{slot}: {BROKEN_AFTER} infrastructure errors in a row; it gets nothing more")

    def _keep(self, delivery: Delivery) -> str:
        """Store a delivery, then have the executor forget it. In this order nothing is lost, and the store's key on
        (job, attempt) keeps anything from being doubled."""
        self.store.add_result(
            NewResult(
                delivery.job_id, delivery.attempt, delivery.record, delivery.printed, delivery.host, delivery.slot,
                delivery.grader_sha256, delivery.conditions,
            )
        )  # fmt: skip
        self.executor.acknowledge(delivery.key)
        return _status(delivery)

    def _lost_record(self, order: Order, lost: Lost) -> Delivery:
        task = self.store.task(order.task_sha256)
        message = f"{LOSSES} times the process that graded this ended without a result: {lost.reason}"
        result = Result(
            task.name, task.version, task.spec_digest, task.metric, f"sha256:{order.source_sha256}", "grade",
            Status.INFRASTRUCTURE_ERROR, message,
        )  # fmt: skip
        conditions: dict[str, Any] = {"record_by": "fleet"}
        return Delivery(
            order.job_id, order.attempt, dumps(result.to_json()), "", "", lost.slot, grader_sha256(), conditions
        )


def _status(delivery: Delivery) -> str:
    return str(json.loads(delivery.record)["status"])
