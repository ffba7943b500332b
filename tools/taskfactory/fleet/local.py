"""The executor for one machine: a process for each GPU, or for each core where there is none."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from taskfactory.fleet.leases import Gpu, Lease
from taskfactory.fleet.orders import Delivered, Event, Lost, Order, Step
from taskfactory.fleet.pool import Place, Pool
from taskfactory.fleet.spool import Spool
from taskfactory.grader import confine
from taskfactory.grader.processes import descendants

GRADE = "taskfactory.grading:grade_submission"
CLOSE_S = 30.0
"""How long workers may take to end what they do."""
LOCK_POLL_S = 0.25
"""How often a GPU that somebody else uses is asked for again."""


class Slot(Place):
    """A worker process and what it works on; the process is started with its first order, and again if it dies."""

    def __init__(self, name: str, grade: str, *, gpu: bool) -> None:
        super().__init__(name)
        self.grade = grade
        self.lease = Lease(name) if gpu else None
        self.process: subprocess.Popen[bytes] | None = None
        self.running = False
        """Whether the order was handed over; before that the slot waits for its GPU."""
        self.pending = b""

    def acquire(self) -> bool:
        """Take the GPU, if it has one and nobody else uses it."""
        return self.lease is None or self.lease.acquire()

    def release(self) -> None:
        """Give the GPU back."""
        if self.lease is not None:
            self.lease.release()

    def start(self, log: IO[bytes]) -> None:
        """Start the process."""
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, "-P", "-m", "taskfactory.fleet.worker", "--slot", self.name, "--grade", self.grade]
        inherited = []
        if self.lease is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.name
            command += ["--gpu", self.name]
            inherited = [self.lease.descriptor]  # so that the lock lives as long as the worker does
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            pass_fds=inherited, start_new_session=True,  # Ctrl-C is for the driver alone
        )  # fmt: skip

    def send(self, message: dict[str, Any]) -> None:
        """Give the worker an order; that it is dead is noticed by the end of its answers."""
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """What the worker said since the last time, and whether its output has ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        ended = False
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.process.stdout.fileno(), 65536):
                self.pending += piece
            ended = True
        *lines, self.pending = self.pending.split(b"\n")
        return [json.loads(line) for line in lines], ended


class LocalExecutor(Pool[Slot]):
    """A pool of workers on this machine."""

    def __init__(self, spool: Spool, *, gpus: Sequence[Gpu] = (), workers: int = 1, grade: str = GRADE) -> None:
        places = [Slot(gpu.uuid, grade, gpu=True) for gpu in gpus]
        super().__init__(spool, places or [Slot(f"cpu-{k}", grade, gpu=False) for k in range(workers)])
        self.selector = selectors.DefaultSelector()
        self.log = (spool.folder / "workers.log").open("ab")
        confine.harden_trusted(subreaper=True, no_new_privileges=False)
        self.spare = descendants(os.getpid())  # children that were there before are none of our business

    def submit(self, order: Order, avoid: frozenset[str]) -> None:
        idle = self.idle()
        slot = next((slot for slot in idle if slot.name not in avoid), idle[0])
        slot.order = order
        self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        """Hand the order over, if the GPU is free; `events` tries again where it is not."""
        if slot.order is None or not slot.acquire():
            return
        if slot.process is None:
            slot.start(self.log)
            assert slot.process is not None
            assert slot.process.stdout is not None
            os.set_blocking(slot.process.stdout.fileno(), False)
            self.selector.register(slot.process.stdout, selectors.EVENT_READ, slot)
        slot.send(
            {
                "key": slot.order.key, "job_id": slot.order.job_id, "attempt": slot.order.attempt,
                "device": slot.order.device, "options": slot.order.options, "source_sha256": slot.order.source_sha256,
                "task_dir": str(self.spool.task_dir(slot.order.task_sha256)),
                "submission": str(self.spool.submission(slot.order)), "delivery": str(self.spool.path(slot.order.key)),
            }
        )  # fmt: skip
        slot.running = True

    def events(self, timeout_s: float) -> list[Event]:
        blocked = [slot for slot in self.places if slot.order is not None and not slot.running]
        for slot in blocked:
            self._begin(slot)
        if any(not slot.running for slot in blocked):
            timeout_s = min(timeout_s, LOCK_POLL_S)
        found: list[Event] = []
        for key, _ in self.selector.select(timeout_s):
            found += self._heard(key.data)
        return found

    def _heard(self, slot: Slot) -> Iterator[Event]:
        """What a worker has just said; the end of its output means that it is dead."""
        messages, ended = slot.receive()
        for message in messages:
            order = slot.order
            if order is None or message["key"] != order.key:
                continue
            if message["event"] == "step":
                yield Step(order, slot.name, message["step"], message["done"], message["total"])
            else:
                yield self._finished(slot, order, "the worker left no result")
        if ended:
            order, code = slot.order, self._bury(slot)
            if order is not None:
                yield self._finished(slot, order, f"the worker died ({code})")
            slot.release()

    def _finished(self, slot: Slot, order: Order, otherwise: str) -> Event:
        slot.order, slot.running = None, False
        if slot.process is not None:
            slot.release()
        delivery = self.spool.read(order.key)
        return Lost(order, slot.name, otherwise) if delivery is None else Delivered(order, slot.name, delivery)

    def _bury(self, slot: Slot) -> str:
        """Reap a dead worker and kill what it left behind, before its GPU is given to anyone."""
        assert slot.process is not None
        assert slot.process.stdout is not None
        assert slot.process.stdin is not None
        self.selector.unregister(slot.process.stdout)
        with contextlib.suppress(OSError):
            slot.process.kill()
        code = slot.process.wait()
        slot.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            slot.process.stdin.close()
        slot.process, slot.pending = None, b""
        self._sweep()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _sweep(self) -> None:
        """Kill descendants that belong to no living worker."""
        deadline = time.monotonic() + CLOSE_S
        while time.monotonic() < deadline:
            everyone = descendants(os.getpid()) - self.spare
            living = {slot.process.pid for slot in self.places if slot.process is not None}
            # In this order: a process that starts in between is in neither set.
            strangers = everyone - living - {pid for worker in living for pid in descendants(worker)}
            if not strangers:
                return
            for pid in strangers:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.005)

    def close(self) -> None:
        running = [slot for slot in self.places if slot.process is not None]
        for slot in running:
            assert slot.process is not None
            assert slot.process.stdin is not None
            with contextlib.suppress(OSError):
                slot.process.stdin.close()  # tells it to kill what it started, and to end
        deadline = time.monotonic() + CLOSE_S
        for slot in running:
            assert slot.process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                slot.process.wait(max(0.0, deadline - time.monotonic()))
            self._bury(slot)
        for slot in self.places:
            if slot.lease is not None:
                slot.lease.release()
                slot.lease.close()
        self.selector.close()
        self.log.close()
