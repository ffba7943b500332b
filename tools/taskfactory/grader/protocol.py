"""How broker and worker talk: two sealed shared pages with fixed records, a doorbell each way, no pickle.

The GO page can be written by the broker alone, the DONE page by both; neither can be resized or sealed further. A
record is complete when its sequence number changes, which is written last. The broker copies a DONE record out of
the page before it looks at it, so a worker that keeps writing changes nothing. Payloads from the broker are JSON;
from the worker come numbers, fixed-size descriptors and bounded text.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import math
import mmap
import os
import select
import struct
import time
from dataclasses import dataclass
from typing import Any

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h; in the fcntl module only from Python 3.13 on

_SEQUENCE_BYTES = 8
_GO_HEAD = struct.Struct("<IIQ")  # kind, payload length, nonce
_GO_PAYLOAD_AT = 64
GO_BYTES = 256 * 1024

_DONE_HEAD = struct.Struct("<IIQdI")  # reply, output count, nonce, claim in ms, text length
_DONE_OUTPUTS_AT = 64
MAX_OUTPUTS = 8
MAX_DIMS = 8
_OUTPUT = struct.Struct(f"<64sQQ16sI4x{MAX_DIMS}q{MAX_DIMS}q")  # handle, allocation bytes, offset, dtype, ndim, ...
_DONE_TEXT_AT = _DONE_OUTPUTS_AT + MAX_OUTPUTS * _OUTPUT.size
MAX_TEXT = 32 * 1024
DONE_BYTES = _DONE_TEXT_AT + MAX_TEXT


def seal_size(fd: int) -> None:
    """Fix the size of a memfd for good, for every process."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


class Request(enum.IntEnum):
    """What the broker asks. `PREPARE` announces a call's arguments before they are revealed; `GO` starts the clock."""

    INIT = 1
    IMPORT = 2
    PREPARE = 3
    GO = 4
    QUIT = 5


class Reply(enum.IntEnum):
    """How the worker answers. Everything but `OK` ends the grading with the status of that name."""

    OK = 0
    IMPORT_ERROR = 1
    RUNTIME_ERROR = 2
    OUT_OF_MEMORY = 3
    WRONG_TYPE = 4
    WRONG_COUNT = 5
    SETUP_ERROR = 6
    """The worker could not start before any of the submission ran: an infrastructure error."""


class WorkerDied(Exception):
    """The worker's process ended without an answer."""


class WorkerTimeout(Exception):
    """The worker did not answer in time."""


class ProtocolViolation(Exception):
    """The worker answered what no honest worker answers."""


@dataclass(frozen=True)
class OutputDescriptor:
    """Where one returned tensor lies: an allocation (IPC handle, empty on the CPU), an offset and a strided view."""

    handle: bytes
    allocation_bytes: int
    offset: int
    """Bytes from the allocation's start to the tensor's first entry."""
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In entries, as torch counts."""

    def pack(self) -> bytes:
        """The fixed-size record."""
        pad = (0,) * (MAX_DIMS - len(self.shape))
        return _OUTPUT.pack(
            self.handle, self.allocation_bytes, self.offset, self.dtype.encode(), len(self.shape),
            *self.shape, *pad, *self.stride, *pad,
        )  # fmt: skip


@dataclass(frozen=True)
class Done:
    """One answer of the worker, parsed and bounded but otherwise unbelieved."""

    reply: Reply
    nonce: int
    claim_ms: float
    outputs: tuple[OutputDescriptor, ...]
    text: str


def _parse_output(record: bytes) -> OutputDescriptor:
    handle, size, offset, dtype, ndim, *rest = _OUTPUT.unpack(record)
    if ndim > MAX_DIMS:
        raise ProtocolViolation(f"an output of {ndim} dimensions")
    name = dtype.rstrip(b"\0").decode("ascii", "replace")
    return OutputDescriptor(handle, size, offset, name, tuple(rest[:ndim]), tuple(rest[MAX_DIMS : MAX_DIMS + ndim]))


def parse_done(record: bytes) -> Done:
    """Parse a copy of the DONE page.

    Raises:
        ProtocolViolation: a field is out of its range.
    """
    reply, count, nonce, claim_ms, length = _DONE_HEAD.unpack_from(record, _SEQUENCE_BYTES)
    if count > MAX_OUTPUTS or length > MAX_TEXT or reply not in Reply.__members__.values():
        raise ProtocolViolation("a malformed record in the DONE page")
    outputs = tuple(
        _parse_output(record[at : at + _OUTPUT.size])
        for at in range(_DONE_OUTPUTS_AT, _DONE_OUTPUTS_AT + count * _OUTPUT.size, _OUTPUT.size)
    )
    text = record[_DONE_TEXT_AT : _DONE_TEXT_AT + length].decode("utf-8", "replace")
    return Done(Reply(reply), nonce, claim_ms, outputs, text)


def spin_is_affordable() -> bool:
    """Whether waiting may burn a core: with two cores or fewer it would starve the other side."""
    return len(os.sched_getaffinity(0)) > 4


def _sequence_of(page: mmap.mmap) -> memoryview:
    """A page's sequence number as element 0 of a view that reads and writes all its 8 bytes at once.

    `struct` would not do: it clears a field before it fills it, and a spinning reader sees the zero.
    """
    return memoryview(page)[:_SEQUENCE_BYTES].cast("Q")


def _clear(bell: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(bell)


class BrokerEnd:
    """The broker's side of one channel. `descriptors` go to the worker, in the order `WorkerEnd` takes them."""

    def __init__(self) -> None:
        self._go_fd = os.memfd_create("go", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._done_fd = os.memfd_create("done", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._go_fd, GO_BYTES)
        os.ftruncate(self._done_fd, DONE_BYTES)
        self._go = mmap.mmap(self._go_fd, GO_BYTES)
        self._done = mmap.mmap(self._done_fd, DONE_BYTES)
        fcntl.fcntl(self._go_fd, fcntl.F_ADD_SEALS, _SEALS | _SEAL_FUTURE_WRITE)
        seal_size(self._done_fd)
        self._go_bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._done_bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._go_sequence, self._done_sequence = _sequence_of(self._go), _sequence_of(self._done)
        self._sequence = 0
        self._nonce = 0
        self._spin = spin_is_affordable()
        self._pidfd = -1

    @property
    def descriptors(self) -> list[int]:
        """File descriptors for the worker: GO page, DONE page, GO bell, DONE bell."""
        return [self._go_fd, self._done_fd, self._go_bell, self._done_bell]

    def attach(self, pid: int) -> None:
        """Watch the worker's process, so that its death ends a wait."""
        self._pidfd = os.pidfd_open(pid)

    def send(self, request: Request, payload: Any = None) -> None:
        """Publish one request with a fresh random nonce."""
        data = b"" if payload is None else json.dumps(payload).encode()
        if len(data) > GO_BYTES - _GO_PAYLOAD_AT:
            raise ValueError(f"a payload of {len(data)} bytes exceeds the GO page")
        self._nonce = int.from_bytes(os.urandom(8), "little")
        self._sequence += 1
        self._go[_GO_PAYLOAD_AT : _GO_PAYLOAD_AT + len(data)] = data
        _GO_HEAD.pack_into(self._go, _SEQUENCE_BYTES, request, len(data), self._nonce)
        self._go_sequence[0] = self._sequence
        os.eventfd_write(self._go_bell, 1)

    def receive(self, timeout_s: float) -> Done:
        """Wait for the answer to the last request and read it; raises what `wait` and `read` raise."""
        self.wait(timeout_s)
        return self.read()

    def read(self) -> Done:
        """Parse the answer that `wait` saw.

        Raises:
            ProtocolViolation: it is malformed or has another request's nonce.
        """
        _clear(self._done_bell)
        done = parse_done(bytes(self._done))
        if done.nonce != self._nonce:
            raise ProtocolViolation("DONE with a wrong nonce")
        return done

    def _answered(self) -> bool:
        sequence = self._done_sequence[0]
        if sequence > self._sequence:
            raise ProtocolViolation("DONE for a request that was not made")
        return bool(sequence == self._sequence)

    def wait(self, timeout_s: float) -> None:
        """Return as soon as the last request has an answer, which is not looked at yet.

        Raises:
            WorkerTimeout, WorkerDied, ProtocolViolation: no answer, no worker, or an answer to no request.
        """
        deadline = time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        if not self._spin:
            poller.register(self._done_bell, select.POLLIN)
        while True:
            for _ in range(2000 if self._spin else 1):
                if self._answered():
                    return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise WorkerTimeout
            ready = {fd for fd, _ in poller.poll(0 if self._spin else math.ceil(left_s * 1000))}
            _clear(self._done_bell)
            if self._pidfd in ready and not self._answered():
                raise WorkerDied

    def close(self) -> None:
        """Release pages and descriptors; the worker must be dead."""
        self._go_sequence.release()
        self._done_sequence.release()
        self._go.close()
        self._done.close()
        for fd in (*self.descriptors, self._pidfd):
            if fd >= 0:
                os.close(fd)


class WorkerEnd:
    """The worker's side of the channel."""

    def __init__(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors
        go_fd, done_fd, self._go_bell, self._done_bell = descriptors
        self._go = mmap.mmap(go_fd, GO_BYTES, prot=mmap.PROT_READ)
        self._done = mmap.mmap(done_fd, DONE_BYTES)
        self._go_sequence, self._done_sequence = _sequence_of(self._go), _sequence_of(self._done)
        self._sequence = 0
        self._nonce = 0
        self._staged = 0
        self._spin = spin_is_affordable()

    def receive(self) -> tuple[Request, Any]:
        """Wait for the next request and return it with its payload."""
        poller = select.poll()
        poller.register(self._go_bell, select.POLLIN)
        spins = 0
        while self._go_sequence[0] == self._sequence:
            spins += 1
            if not self._spin or spins > 200_000:  # about 0.1 s: longer waits need no speed
                poller.poll()
                _clear(self._go_bell)
        self._sequence = self._go_sequence[0]
        kind, length, self._nonce = _GO_HEAD.unpack_from(self._go, _SEQUENCE_BYTES)
        payload = bytes(self._go[_GO_PAYLOAD_AT : _GO_PAYLOAD_AT + length])
        return Request(kind), json.loads(payload) if payload else None

    def stage(self, outputs: list[OutputDescriptor]) -> None:
        """Put the next answer's outputs into the page, which nobody reads before its sequence number says so."""
        for index, output in enumerate(outputs):
            at = _DONE_OUTPUTS_AT + index * _OUTPUT.size
            self._done[at : at + _OUTPUT.size] = output.pack()
        self._staged = len(outputs)

    def answer(
        self, reply: Reply, outputs: list[OutputDescriptor] | None = None, claim_ms: float = 0.0, text: str = ""
    ) -> None:
        """Publish the answer to the current request, with these outputs or those that were staged."""
        if outputs is not None:
            self.stage(outputs)
        data = text.encode("utf-8", "replace")[-MAX_TEXT:]
        self._done[_DONE_TEXT_AT : _DONE_TEXT_AT + len(data)] = data
        _DONE_HEAD.pack_into(self._done, _SEQUENCE_BYTES, reply, self._staged, self._nonce, claim_ms, len(data))
        self._staged = 0
        self._done_sequence[0] = self._sequence
        os.eventfd_write(self._done_bell, 1)
