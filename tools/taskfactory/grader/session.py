"""One worker's life as the broker sees it: start, prepare, the timed exchange, the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import memory
from .compare import OutputReport, dtype_name
from .job import Job, Link
from .protocol import BrokerEnd, Done, OutputDescriptor, ProtocolViolation, Reply, Request, WorkerDied, WorkerTimeout
from .result import Status
from .task import Task

START_S = 180.0
"""Time limit for a worker to import torch and start CUDA."""

_STATUS = {
    Reply.IMPORT_ERROR: Status.IMPORT_ERROR,
    Reply.RUNTIME_ERROR: Status.RUNTIME_ERROR,
    Reply.OUT_OF_MEMORY: Status.OUT_OF_MEMORY,
    Reply.WRONG_TYPE: Status.WRONG_TYPE,
    Reply.WRONG_COUNT: Status.WRONG_COUNT,
    Reply.SETUP_ERROR: Status.INFRASTRUCTURE_ERROR,
}


class SessionFailed(Exception):
    """The worker ended the grading; `status` says how."""

    def __init__(self, status: Status, message: str, traceback: str = "", outputs: Sequence[OutputReport] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.traceback, self.outputs = status, message, traceback, outputs


@dataclass
class Arenas:
    """Memory shared with workers and its private counterparts, sized once for all calls of a grading."""

    device: str
    shared: memory.SharedArena
    """Where workers read their arguments."""
    private: torch.Tensor
    """The same bytes before they are revealed; the reference reads these."""
    outputs: memory.SharedArena | None
    """CPU only: where workers put their outputs."""
    snapshot: torch.Tensor
    """Private copy of the returned outputs (uint8)."""
    junk: torch.Tensor | None
    """CUDA only: four times the L2, streamed through before each call."""

    @classmethod
    def allocate(cls, device: str, argument_bytes: int, output_bytes: int) -> Arenas:
        """Allocate everything, the shared blocks first."""
        shared = memory.SharedArena(argument_bytes, device)
        outputs = None if device == "cuda" else memory.SharedArena(output_bytes, device)
        junk = None
        if device == "cuda":
            l2 = torch.cuda.get_device_properties(0).L2_cache_size
            junk = torch.zeros(4 * l2 // 8, dtype=torch.int64, device=device)
        return cls(
            device, shared, torch.zeros(shared.nbytes, dtype=torch.uint8, device=device), outputs,
            torch.empty(max(output_bytes, 8), dtype=torch.uint8, device=device), junk,
        )  # fmt: skip

    def settle(self, duration_ms: float) -> None:
        """Stream through the junk for a while, so that each timed call finds clocks and caches in the same state."""
        if self.junk is None:
            return
        deadline = time.perf_counter() + duration_ms / 1e3
        while time.perf_counter() < deadline:
            for _ in range(8):
                self.junk.add_(1)
            torch.cuda.synchronize()

    def words(self, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The shared block's first bytes and their private counterparts, as int64."""
        count = -(-nbytes // 8)
        return self.shared.tensor.view(torch.int64)[:count], self.private.view(torch.int64)[:count]

    def stream(self) -> None:
        """Push everything out of the L2."""
        if self.junk is not None:
            self.junk.add_(1)

    def unchanged(self, nbytes: int) -> bool:
        """Whether the shared arguments still are what was revealed."""
        return torch.equal(*self.words(nbytes))

    def free(self) -> None:
        """Give shared memory back; no worker may be alive."""
        self.shared.free()
        if self.outputs is not None:
            self.outputs.free()


@dataclass
class Exchange:
    """One finished call: raw times in ms, the private copies of the outputs, and whether they lay in known memory."""

    wall_ms: float
    """From before the reveal to after the snapshot: by the broker's own events, on the CPU by its clock."""
    claim_ms: float
    reveal_ms: float = 0.0
    """What the broker's own events say of revealing and flushing."""
    snapshot_ms: float = 0.0
    """... and of the switch back to its context and the snapshot."""
    outputs: list[torch.Tensor] = field(default_factory=list)
    mapped: bool = True


class _Clock:
    """Four marks of one exchange: events on the broker's stream, on the CPU the time.

    The device's clock knows nothing of how late the host queued a mark behind work that was running anyway.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(4)] if self._cuda else []
        self._times = [0] * 4
        for event in self._events:
            event.record()  # torch makes the event itself at its first use

    def mark(self, number: int) -> None:
        """Take one time."""
        if self._cuda:
            self._events[number].record()
        else:
            self._times[number] = time.perf_counter_ns()

    def wait(self) -> None:
        """Until the device has come here."""
        if self._cuda:
            torch.cuda.synchronize()

    def between(self, first: int, second: int) -> float:
        """Milliseconds from one mark to another."""
        if self._cuda:
            return float(self._events[first].elapsed_time(self._events[second]))
        return (self._times[second] - self._times[first]) / 1e6


class _Place:
    """A returned tensor where the worker has it, and where its private copy goes."""

    def __init__(self, returned: torch.Tensor, copy: torch.Tensor, nbytes: int) -> None:
        self.returned, self.copy = returned, copy
        self.nbytes = nbytes
        """Bytes of private memory, gap included."""
        self._from, self._to = memory.bits(returned), memory.bits(copy)

    def take(self) -> None:
        """Make the copy."""
        torch.bitwise_or(self._from, 0, out=self._to)  # `memory.copy_bits`, with nothing left to prepare


class Session:
    """A running worker."""

    def __init__(self, link: Link, task: Task, job: Job, arenas: Arenas, trusted: bool) -> None:
        self.task, self.job, self.arenas = task, job, arenas
        self.link = link
        self.trusted = trusted
        self.settle_ms = job.settle_ms
        self._believed = True  # until the submission's code runs in the worker
        self.end = BrokerEnd()
        self._mapped: dict[bytes, torch.Tensor] = {}
        self._places: dict[tuple[OutputDescriptor, int], _Place] = {}
        self._last: list[torch.Tensor] = []
        shared_fds = [arena.fd for arena in (arenas.shared, arenas.outputs) if arena is not None and arena.fd >= 0]
        link.send({"op": "spawn", "trusted": trusted}, [*self.end.descriptors, *shared_fds])
        reply, _ = link.receive()
        if "error" in reply:
            raise SessionFailed(Status.INFRASTRUCTURE_ERROR, reply["error"])
        self.end.attach(reply["pid"])
        # Said before any of the submission was read, hence believed; the tier is what the supervisor's probe observed.
        self.layers: dict[str, Any] = json.loads(self._ask(Request.INIT, START_S, self._setup()).text)

    def _setup(self) -> dict[str, Any]:
        arenas = self.arenas
        return {
            "device": arenas.device,
            "handle": arenas.shared.handle.hex(),
            "arena_bytes": arenas.shared.nbytes,
            "output_bytes": arenas.outputs.nbytes if arenas.outputs else 0,
            "trusted": self.trusted,
            "submission": "" if self.trusted else self.job.submission,
            "func": self.task.func,
            "compare": self.task.compare,
            "count": len(self.task.outputs),
        }

    def load_submission(self) -> None:
        """Let the worker import the submission.

        Raises:
            SessionFailed: it does not import.
        """
        self._believed = False
        self._ask(Request.IMPORT, self.job.first_call_s)

    def _ask(self, request: Request, timeout_s: float, payload: Any = None) -> Done:
        self.end.send(request, payload)
        return self._receive(timeout_s)

    def _receive(self, timeout_s: float, answered: Callable[[], None] | None = None) -> Done:
        """The answer to the last request; `answered` is called when it is there and nothing is known of it yet."""
        try:
            self.end.wait(timeout_s)
            if answered is not None:
                answered()
            done = self.end.read()
        except WorkerTimeout:
            raise SessionFailed(Status.TIMEOUT, f"no answer within {timeout_s:g} s") from None
        except WorkerDied:
            raise SessionFailed(Status.WORKER_DIED, "the worker process ended without an answer") from None
        except ProtocolViolation as error:
            raise SessionFailed(Status.PROTOCOL_VIOLATION, str(error)) from None
        if done.reply is not Reply.OK:
            last_line = done.text.strip().rsplit("\n", 1)[-1]
            status = _STATUS[done.reply]
            if status is Status.INFRASTRUCTURE_ERROR and not self._believed:
                status = Status.PROTOCOL_VIOLATION
            raise SessionFailed(status, last_line, done.text)
        return done

    def exchange(
        self, arguments: list[dict[str, Any]], nbytes: int, timeout_s: float, probe: dict[str, Any] | None = None
    ) -> Exchange:
        """Reveal the private arena's arguments, let the worker compute, and snapshot what it returned.

        Args:
            arguments: the call's layout; the private arena holds its content.
            nbytes: bytes of the arena in use.
            timeout_s: limit for the call.
            probe: what a trusted worker shall run.

        Raises:
            SessionFailed: anything but outputs came back.
        """
        for output in self._last:
            memory.poison(output)
        self.arenas.settle(self.settle_ms)
        payload = {"arguments": arguments} if probe is None else {"arguments": arguments, "probe": probe}
        self._ask(Request.PREPARE, START_S, payload)
        shared, private = self.arenas.words(nbytes)
        clock = _Clock(self.arenas.device)
        self.arenas.stream()  # the device is in this process's context and busy until the next three are queued
        clock.mark(0)
        memory.copy_bits(shared, private)
        self.arenas.stream()
        clock.mark(1)
        clock.wait()
        self.end.send(Request.GO)
        done = self._receive(timeout_s, lambda: clock.mark(2))  # the switch back begins while the answer is read
        try:
            known = all(output.handle in self._mapped for output in done.outputs)
            places = self._snapshot(done.outputs)
        except ProtocolViolation as error:
            raise SessionFailed(Status.PROTOCOL_VIOLATION, str(error)) from None
        clock.mark(3)
        clock.wait()
        cuda = self.arenas.device == "cuda"
        self._last = [place.returned for place in places] if cuda else []
        reveal_ms, snapshot_ms, wall_ms = clock.between(0, 1), clock.between(2, 3), clock.between(0, 3)
        copies = [place.copy for place in places]
        return Exchange(wall_ms, done.claim_ms, reveal_ms, snapshot_ms, copies, known or not cuda)

    def _storage(self, output: OutputDescriptor) -> torch.Tensor:
        """The mapped allocation a descriptor refers to, mapping it if it is new."""
        if self.arenas.outputs is not None:
            return self.arenas.outputs.tensor
        if output.handle not in self._mapped:
            if output.handle == self.arenas.shared.handle:
                raise ProtocolViolation("an output inside the inputs' memory")
            try:
                address = memory.open_handle(output.handle)
                base, nbytes = memory.allocation_of(address)
            except memory.DriverError as error:
                raise ProtocolViolation(f"an output whose memory cannot be mapped ({error})") from None
            self._mapped[output.handle] = memory.bytes_at(base, nbytes)
        return self._mapped[output.handle]

    def _snapshot(self, outputs: Sequence[OutputDescriptor]) -> list[_Place]:
        """Copy what the descriptors name, one behind the other, into private memory.

        Most calls return what an earlier one did, and then there is nothing left to work out but the copy itself.
        """
        places, at = [], 0
        for output in outputs:
            place = self._places.get((output, at))
            if place is None:
                place = self._places[output, at] = self._place(output, at)
            place.take()
            places.append(place)
            at += place.nbytes
        return places

    def _place(self, output: OutputDescriptor, at: int) -> _Place:
        returned = memory.resolve(output, self._storage(output))
        nbytes = returned.numel() * returned.element_size()
        if at + nbytes > self.arenas.snapshot.numel():
            what = f"{tuple(returned.shape)} of {dtype_name(returned.dtype)}"
            raise SessionFailed(Status.WRONG_SHAPE, f"returned {what}, more than any output of the contract holds")
        copy = self.arenas.snapshot[at : at + nbytes].view(returned.dtype).view(returned.shape)
        return _Place(returned, copy, -(-nbytes // memory.ALIGNMENT) * memory.ALIGNMENT)

    def close(self) -> None:
        """Have the supervisor kill the worker's whole tree, unmap its memory and wait until the device has it back.

        Raises:
            SessionFailed: processes or GPU memory would not go away.
        """
        self._last = []
        self._places.clear()
        self.link.send({"op": "reap"})
        reply, _ = self.link.receive()
        addresses = [tensor.data_ptr() for tensor in self._mapped.values()]
        self._mapped.clear()
        for address in addresses:
            memory.close_handle(address)
        self.end.close()
        if "error" in reply:
            raise SessionFailed(Status.INFRASTRUCTURE_ERROR, reply["error"])
