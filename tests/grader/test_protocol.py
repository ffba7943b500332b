"""The channel between broker and worker: what each side can write, and what a liar can make the broker believe."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskfactory.grader import protocol
from taskfactory.grader.protocol import (
    DONE_BYTES,
    GO_BYTES,
    MAX_DIMS,
    MAX_OUTPUTS,
    MAX_TEXT,
    BrokerEnd,
    Done,
    OutputDescriptor,
    ProtocolViolation,
    Reply,
    Request,
    WorkerDied,
    WorkerEnd,
    WorkerTimeout,
    parse_done,
)

TOOLS = str(Path(protocol.__file__).parents[2])
SOME = OutputDescriptor(bytes(range(64)), 1 << 40, 4096, "bfloat16", (2, 3, 4), (12, 4, 1))


@pytest.fixture(params=[False, True], ids=["poll", "spin"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BrokerEnd, WorkerEnd]]:
    """Both ends in this process, which is also the process that the broker watches."""
    monkeypatch.setattr(protocol, "spin_is_affordable", lambda: request.param)
    broker = BrokerEnd()
    broker.attach(os.getpid())
    worker = WorkerEnd(broker.descriptors)
    yield broker, worker
    broker.close()


# -- honest talk -------------------------------------------------------------------------------------------------------


def test_requests_and_answers_go_round(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    payload = {"arguments": [{"value": None}, {"value": True}, {"value": 0.1}], "unicode": "ü"}
    for k, (request, sent) in enumerate([(Request.INIT, payload), (Request.GO, None), (Request.PREPARE, [])]):
        broker.send(request, sent)
        assert worker.receive() == (request, sent)
        worker.answer(Reply.OK, [SOME] * k, claim_ms=0.25 * k, text=f"text {k} ü")
        done = broker.receive(5.0)
        assert (done.reply, done.claim_ms, done.outputs, done.text) == (Reply.OK, 0.25 * k, (SOME,) * k, f"text {k} ü")


def test_staged_outputs_belong_to_the_next_answer_and_to_no_other(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    for staged in ([SOME], []):
        broker.send(Request.GO)
        worker.receive()
        if staged:
            worker.stage(staged)
        worker.answer(Reply.OK, claim_ms=1.0)
        broker.wait(5.0)
        assert list(broker.read().outputs) == staged
    broker.send(Request.GO)
    worker.receive()
    worker.stage([SOME])
    worker.answer(Reply.RUNTIME_ERROR, [], text="after staging")
    assert not broker.receive(5.0).outputs


def test_a_short_payload_after_a_long_one_is_not_mixed_with_it(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    for payload in ("x" * 1000, "y", None):
        broker.send(Request.INIT, payload)
        assert worker.receive()[1] == payload
        worker.answer(Reply.OK, text="" if payload is None else payload)
        assert broker.receive(5.0).text == (payload or "")


def test_every_request_has_another_random_nonce(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    nonces = set()
    for _ in range(200):
        broker.send(Request.GO)
        worker.receive()
        nonces.add(worker._nonce)
    assert len(nonces) == 200
    assert max(nonces) > 1 << 56  # all eight bytes are random


@pytest.mark.parametrize("text", ["z" * (MAX_TEXT + 50), "ü" * MAX_TEXT, "\ud800 lone", ""])
def test_text_keeps_its_end_and_always_decodes(ends: tuple[BrokerEnd, WorkerEnd], text: str) -> None:
    broker, worker = ends
    broker.send(Request.GO)
    worker.receive()
    worker.answer(Reply.RUNTIME_ERROR, text=text)
    done = broker.receive(5.0)
    assert len(done.text.encode()) <= MAX_TEXT + 8
    assert done.text[-5:] == text.encode("utf-8", "replace").decode()[-5:]


def test_a_payload_of_the_pages_size_passes_and_a_larger_one_does_not(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    room = GO_BYTES - 64 - 2  # two quotes
    broker.send(Request.INIT, "x" * room)
    assert worker.receive() == (Request.INIT, "x" * room)
    with pytest.raises(ValueError, match="exceeds the GO page"):
        broker.send(Request.INIT, "x" * (room + 1))


def test_as_many_outputs_and_dimensions_as_there_is_room_for(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    wide = OutputDescriptor(
        b"h" * 64, 2**64 - 1, 2**64 - 8, "float8_e4m3fnuz", (1,) * MAX_DIMS, (2**63 - 1,) * MAX_DIMS
    )
    scalar = OutputDescriptor(b"", 0, 0, "bool", (), ())
    broker.send(Request.GO)
    worker.receive()
    worker.answer(Reply.OK, [wide] * (MAX_OUTPUTS - 1) + [scalar], text="x" * MAX_TEXT)
    done = broker.receive(5.0)
    assert done.outputs[:-1] == (wide,) * (MAX_OUTPUTS - 1)
    assert done.outputs[-1].shape == ()
    assert done.text == "x" * MAX_TEXT


def test_closing_gives_every_descriptor_back() -> None:
    broker = BrokerEnd()
    broker.attach(os.getpid())
    held = [*broker.descriptors, broker._pidfd]
    broker.close()
    for fd in held:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


# -- no answer ---------------------------------------------------------------------------------------------------------


def test_no_answer_is_a_timeout(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, _ = ends
    broker.send(Request.GO)
    for timeout_s in (0.0, 0.02):
        with pytest.raises(WorkerTimeout):
            broker.receive(timeout_s)


def test_the_bell_alone_is_no_answer(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    broker.send(Request.GO)
    os.eventfd_write(worker._done_bell, 1 << 40)
    with pytest.raises(WorkerTimeout):
        broker.receive(0.02)


def test_the_last_answer_is_no_answer_to_the_next_request(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    broker.send(Request.GO)
    worker.receive()
    worker.answer(Reply.OK)
    broker.receive(5.0)
    broker.send(Request.GO)
    with pytest.raises(WorkerTimeout):
        broker.receive(0.02)


@pytest.mark.parametrize("spin", [False, True])
def test_a_death_ends_the_wait(monkeypatch: pytest.MonkeyPatch, spin: bool) -> None:
    monkeypatch.setattr(protocol, "spin_is_affordable", lambda: spin)
    broker = BrokerEnd()
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    broker.attach(child.pid)
    worker = WorkerEnd(broker.descriptors)
    broker.send(Request.GO)
    child.kill()
    with pytest.raises(WorkerDied):
        broker.receive(60.0)
    worker.receive()
    worker.answer(Reply.OK, text="last words")  # an answer given before the death still counts
    assert broker.receive(60.0).text == "last words"
    child.communicate()
    broker.close()


# -- lies --------------------------------------------------------------------------------------------------------------


def test_an_answer_to_a_request_that_was_not_made(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    broker.send(Request.GO)
    worker.receive()
    for sequence in (2, 2**64 - 1):
        worker._done_sequence[0] = sequence
        with pytest.raises(ProtocolViolation, match="not made"):
            broker.receive(1.0)


def test_an_answer_given_before_the_request_has_the_wrong_nonce(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    """A worker can guess the next sequence number, and have DONE waiting for GO; it cannot guess the nonce."""
    broker, worker = ends
    broker.send(Request.PREPARE)
    worker.receive()
    worker.answer(Reply.OK)
    broker.receive(5.0)
    worker._sequence += 1
    worker.answer(Reply.OK, [SOME], claim_ms=0.001)
    broker.send(Request.GO)
    with pytest.raises(ProtocolViolation, match="wrong nonce"):
        broker.receive(1.0)


def test_what_the_broker_holds_does_not_change_any_more(ends: tuple[BrokerEnd, WorkerEnd]) -> None:
    broker, worker = ends
    broker.send(Request.GO)
    worker.receive()
    worker.answer(Reply.OK, [SOME], claim_ms=1.5)
    done = broker.receive(5.0)
    worker._done[:] = b"\xff" * DONE_BYTES
    assert done == Done(Reply.OK, worker._nonce, 1.5, (SOME,), "")


def _record(reply: int = 0, count: int = 0, claim_ms: float = 1.0, length: int = 0, tail: bytes = b"") -> bytes:
    head = struct.pack("<QIIQdI", 1, reply, count, 7, claim_ms, length)
    return (head.ljust(64, b"\0") + tail).ljust(DONE_BYTES, b"\0")


@pytest.mark.parametrize(
    "record",
    {
        "no such reply": _record(reply=len(Reply)),
        "a reply of 32 bits": _record(reply=2**32 - 1),
        "too many outputs": _record(count=MAX_OUTPUTS + 1),
        "very many outputs": _record(count=2**32 - 1),
        "too much text": _record(length=MAX_TEXT + 1),
        "too many dimensions": _record(count=1, tail=struct.pack("<64sQQ16sI", b"", 0, 0, b"int8", MAX_DIMS + 1)),
    }.items(),
    ids=lambda item: item[0],
)
def test_malformed_records(record: tuple[str, bytes]) -> None:
    assert len(record[1]) == DONE_BYTES
    with pytest.raises(ProtocolViolation):
        parse_done(record[1])


word = st.one_of(st.integers(0, 10), st.integers(0, 2**32 - 1))


@settings(max_examples=300, deadline=None)
@given(
    reply=word, count=word, length=st.one_of(word, st.integers(MAX_TEXT - 2, MAX_TEXT + 2)),
    claim_ms=st.floats(width=64), tail=st.binary(max_size=1200),
)  # fmt: skip
@example(reply=0, count=MAX_OUTPUTS, length=MAX_TEXT, claim_ms=math.nan, tail=b"\xff" * 1200)
@example(
    reply=0, count=1, length=0, claim_ms=0.0, tail=b"\xff" * 80 + b"\x80" * 16 + struct.pack("<I", 8) + b"\xff" * 132
)
def test_any_record_is_parsed_within_bounds_or_is_a_violation(
    reply: int, count: int, length: int, claim_ms: float, tail: bytes
) -> None:
    try:
        done = parse_done(_record(reply, count, claim_ms, length, tail))
    except ProtocolViolation:
        return
    assert isinstance(done.reply, Reply)
    assert len(done.outputs) == count <= MAX_OUTPUTS
    assert len(done.text) <= MAX_TEXT
    for output in done.outputs:
        assert len(output.shape) == len(output.stride) <= MAX_DIMS
        assert isinstance(output.dtype, str)


# -- what the kernel guards --------------------------------------------------------------------------------------------


@pytest.fixture
def pages() -> Iterator[tuple[int, int]]:
    """(GO, DONE) as a worker holds them."""
    broker = BrokerEnd()
    yield broker.descriptors[0], broker.descriptors[1]
    broker.close()


def test_a_worker_cannot_write_the_go_page(pages: tuple[int, int]) -> None:
    go, done = pages
    reopened = os.open(f"/proc/self/fd/{go}", os.O_RDWR)
    for fd in (go, reopened):
        with pytest.raises(PermissionError):
            mmap.mmap(fd, GO_BYTES)
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        assert ctypes.CDLL(None, use_errno=True).fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096)) == -1
        assert ctypes.get_errno() == errno.EPERM  # a hole would be zeros
    os.close(reopened)
    mmap.mmap(done, DONE_BYTES)[0] = 1  # the same is possible where it should be


def test_a_readable_go_page_cannot_be_made_writable(pages: tuple[int, int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.mmap(None, GO_BYTES, mmap.PROT_READ, mmap.MAP_SHARED, pages[0], 0)
    assert address not in (None, ctypes.c_void_p(-1).value)
    assert libc.mprotect(address, GO_BYTES, mmap.PROT_READ | mmap.PROT_WRITE) == -1
    assert ctypes.get_errno() == errno.EACCES


def test_neither_page_can_be_resized_or_sealed_further(pages: tuple[int, int]) -> None:
    for fd, size in zip(pages, (GO_BYTES, DONE_BYTES), strict=True):
        for length in (0, size - 1, size + 4096):  # shrinking would kill the broker with SIGBUS
            with pytest.raises(PermissionError):
                os.ftruncate(fd, length)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert os.fstat(fd).st_size == size


# -- the sequence number -----------------------------------------------------------------------------------------------

_READER = """
import sys
sys.path.insert(0, {tools!r})
from taskfactory.grader import protocol
protocol.spin_is_affordable = lambda: True
end = protocol.WorkerEnd([int(fd) for fd in sys.argv[1:]])
print("ready", flush=True)
last = 0
while last < {count}:
    seen = end._go_sequence[0]
    if seen < last:
        sys.exit(f"{{seen}} after {{last}}")
    last = seen
"""


def test_a_spinning_reader_never_sees_half_a_sequence_number() -> None:
    """A number that is cleared before it is set, as `struct.pack_into` does, looks like a new request."""
    count = 150_000
    broker = BrokerEnd()
    code = _READER.format(tools=TOOLS, count=count)
    reader = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, broker.descriptors)],
        pass_fds=broker.descriptors, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    for _ in range(count):
        broker.send(Request.GO)
    _, said = reader.communicate(timeout=60)
    assert reader.returncode == 0, said
    broker.close()
