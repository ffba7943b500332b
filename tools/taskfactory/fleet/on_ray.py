"""The executor for a Ray cluster: an actor for each GPU (or CPU), which runs the same worker process as the local pool.

Tasks travel as Ray objects, once per content hash; sources with their orders. Each machine has its own GPU locks, so a
cluster and a local run do not meet on a GPU. Every machine needs this package in the same version, with torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskfactory.errors import InfrastructureError
from taskfactory.fleet.leases import find_gpus
from taskfactory.fleet.local import GRADE, LocalExecutor
from taskfactory.fleet.orders import Delivered, Event, Lost, Order, Step
from taskfactory.fleet.pool import Place, Pool
from taskfactory.fleet.spool import Spool

STEP_POLL_S = 0.5
REACH_S = 10.0


@dataclass(frozen=True)
class _Shipped:
    """`Contents` of a single order, as it arrived on a machine."""

    files: dict[str, str]
    content: bytes

    def task_files(self, content_sha256: str) -> dict[str, str]:
        return self.files

    def source(self, digest: str) -> bytes:
        return self.content


class Grader:
    """What runs as an actor: one slot of a machine, with a local pool of one worker under it."""

    def __init__(self, name: str, grade: str, *, cuda: bool) -> None:
        self.name, self.grade = name, grade
        self.gpus = find_gpus()[:1] if cuda else []  # Ray shows the actor only its own, by CUDA_VISIBLE_DEVICES
        self.folder = tempfile.mkdtemp(prefix="taskfactory-ray-")
        self.executor: LocalExecutor | None = None
        self.spool: Spool | None = None

    def run(self, order: Order, files: dict[str, str], content: bytes) -> str | None:
        """Grade one order; its delivery as JSON, or None if the worker died."""
        if self.spool is None or self.executor is None:
            self.spool = Spool(Path(self.folder), _Shipped(files, content))
            self.executor = LocalExecutor(self.spool, gpus=self.gpus, grade=self.grade)
        self.spool.contents = _Shipped(files, content)
        self.executor.submit(order, frozenset())
        while True:
            for event in self.executor.events(STEP_POLL_S):
                if isinstance(event, Delivered):
                    self.executor.acknowledge(order.key)
                    return event.delivery.dumps()
                if isinstance(event, Lost):
                    return None


def _reach(address: str) -> None:
    """Raise InfrastructureError if nothing answers at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto", "local"
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise InfrastructureError(f"Ray at {address}: {error.strerror or error}") from None


class _Slot(Place):
    def __init__(self, name: str, actor: Any) -> None:
        super().__init__(name)
        self.actor = actor
        self.machine = ""
        """Host of its last delivery."""


class RayExecutor(Pool[_Slot]):
    """A Ray cluster's GPUs or CPUs, each a slot.

    Raises:
        InfrastructureError: Ray is not installed or the cluster cannot be reached or has nothing to grade on.
    """

    def __init__(
        self, spool: Spool, address: str, *, cuda: bool, workers: int | None = None, grade: str = GRADE,
        forward: Sequence[str] = ("PYTHONPATH", "TASKFACTORY_LOCKS"),
    ) -> None:  # fmt: skip
        try:
            import ray
        except ImportError:
            raise InfrastructureError("Ray is not installed: pip install 'taskfactory[ray]'") from None
        self.ray, self.cuda, self.grade = ray, cuda, grade
        # Packages travel by installation, not by upload: a grader must be the same everywhere, and is hashed.
        _reach(address)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        environment = {name: os.environ[name] for name in forward if name in os.environ}
        try:
            ray.init(
                address=address, namespace="taskfactory", log_to_driver=False, configure_logging=False,
                runtime_env={"env_vars": environment},
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InfrastructureError(f"Ray at {address}: {error}") from None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)  # Ray puts its own in their place
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        count = int(resources.get("GPU" if cuda else "CPU", 0))
        if workers is not None:
            count = min(count, workers)
        if count < 1:
            ray.shutdown()
            raise InfrastructureError(f"the Ray cluster at {address} has no {'GPU' if cuda else 'CPU'}")
        super().__init__(spool, [self._start(f"ray-{k}") for k in range(count)])
        self.tasks: dict[str, Any] = {}
        self.pending: dict[Any, _Slot] = {}
        self.news: list[Event] = []

    def _start(self, name: str) -> _Slot:
        options: dict[str, Any] = {"num_gpus": 1} if self.cuda else {"num_cpus": 1}
        # SPREAD: a slot that comes back after its machine died may come back on another one.
        actor = self.ray.remote(Grader).options(
            max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD", **options
        )  # fmt: skip
        return _Slot(name, actor.remote(name, self.grade, cuda=self.cuda))

    def _task(self, digest: str) -> Any:
        """A task as a Ray object, shipped once; sources are small and mostly used once, so they go with the order."""
        if digest not in self.tasks:
            self.tasks[digest] = self.ray.put(self.spool.contents.task_files(digest))
        return self.tasks[digest]

    def submit(self, order: Order, avoid: frozenset[str]) -> None:
        machines = {slot.machine for slot in self.places if slot.name in avoid}
        slot = min(self.idle(), key=lambda slot: (slot.machine in machines, slot.name in avoid))
        slot.order = order
        content = self.spool.contents.source(order.source_sha256)
        self.pending[slot.actor.run.remote(order, self._task(order.task_sha256), content)] = slot
        self.news.append(Step(order, slot.name, "grading", 0, 1))

    def events(self, timeout_s: float) -> list[Event]:
        found, self.news = self.news, []
        if self.pending:
            ready, _ = self.ray.wait(list(self.pending), num_returns=1, timeout=0 if found else timeout_s)
            found += [self._ended(reference) for reference in ready]
        elif not found:
            time.sleep(timeout_s)
        return found

    def _ended(self, reference: Any) -> Event:
        slot = self.pending.pop(reference)
        order, slot.order = slot.order, None
        assert order is not None
        try:
            text = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return Lost(order, slot.name, f"the actor or its machine died ({type(error).__name__})")
        if text is None:
            return Lost(order, slot.name, "the worker died")
        # Into the spool before anyone hears of it, as a local worker does.
        self.spool.path(order.key).write_text(text, encoding="utf-8")
        delivery = self.spool.read(order.key)
        assert delivery is not None
        slot.machine = delivery.host
        return Delivered(order, slot.name, delivery)

    def close(self) -> None:
        for slot in self.places:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.kill(slot.actor)  # its worker notices the end of its input and ends what it started
        self.ray.shutdown()
