"""The broker's view of a worker, with a thread that plays the worker: every lie becomes a status."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.toy import write_task
from taskfactory.grader import memory
from taskfactory.grader.job import Job
from taskfactory.grader.protocol import MAX_OUTPUTS, OutputDescriptor, Reply, Request, WorkerEnd
from taskfactory.grader.result import Status
from taskfactory.grader.session import Arenas, Session, SessionFailed
from taskfactory.grader.task import load_task

Answer = Callable[[WorkerEnd, Any], None]


def fine(end: WorkerEnd, payload: Any) -> None:
    end.answer(Reply.OK)


class Played:
    """A link whose spawned worker is a thread of this process: `answers` says how it replies to each request."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = {"INIT": lambda end, _: end.answer(Reply.OK, text='{"landlock": 7}'), **answers}
        self.reply: dict[str, Any] = {"pid": os.getpid()}
        self.asked: list[tuple[Request, Any]] = []
        self.thread: threading.Thread | None = None

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        if message["op"] == "spawn":
            end = WorkerEnd([os.dup(fd) for fd in (descriptors or [])[:4]])
            self.thread = threading.Thread(target=self._serve, args=(end,))
            self.thread.start()

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        return self.reply, []

    def _serve(self, end: WorkerEnd) -> None:
        while True:
            request, payload = end.receive()
            self.asked.append((request, payload))
            if request is Request.QUIT:
                break
            self.answers.get(request.name, fine)(end, payload)
        for fd in end.descriptors:
            os.close(fd)


@pytest.fixture
def arenas() -> Iterator[Arenas]:
    made = Arenas.allocate("cpu", argument_bytes=10_000, output_bytes=8192)
    yield made
    made.free()


@pytest.fixture
def play(tmp_path: Path, arenas: Arenas) -> Iterator[Callable[..., Session]]:
    """Start a session with a played worker."""
    started: list[tuple[Session, Played]] = []
    task = load_task(write_task(tmp_path))

    def start(**answers: Answer) -> Session:
        played = Played(**answers)
        session = Session(played, task, Job(str(tmp_path), "", "", "grade", "cpu"), arenas, trusted=False)  # type: ignore[arg-type]
        started.append((session, played))
        return session

    yield start
    for session, played in started:
        session.end.send(Request.QUIT)
        assert played.thread is not None
        played.thread.join(timeout=30)
        played.reply = {}
        session.close()


def output(**changes: Any) -> OutputDescriptor:
    fields = {"handle": b"", "allocation_bytes": 0, "offset": 0, "dtype": "float32", "shape": (2, 3), "stride": (3, 1)}
    return OutputDescriptor(**{**fields, **changes})


def returns(*outputs: OutputDescriptor, claim_ms: float = 1.0) -> Answer:
    return lambda end, _: end.answer(Reply.OK, list(outputs), claim_ms)


def call(session: Session, timeout_s: float = 30.0) -> Any:
    return session.exchange([], 0, timeout_s)


# -- honest ------------------------------------------------------------------------------------------------------------


def test_arguments_are_revealed_between_prepare_and_go(play: Callable[..., Session], arenas: Arenas) -> None:
    seen: list[bytes] = []

    def look(end: WorkerEnd, _: Any) -> None:
        seen.append(bytes(arenas.shared.tensor[:16].numpy()))
        end.answer(Reply.OK)

    session = play(PREPARE=look, GO=look)
    arenas.private[:16] = 7
    session.exchange([], 16, 30.0)
    assert seen == [bytes(16), b"\7" * 16]
    assert arenas.unchanged(16)
    arenas.shared.tensor[11] = 0
    assert not arenas.unchanged(16)


def test_outputs_are_private_copies(play: Callable[..., Session], arenas: Arenas) -> None:
    assert arenas.outputs is not None
    arenas.outputs.tensor.view(torch.float32)[:6] = torch.arange(6.0)
    session = play(GO=returns(output(), output(dtype="int32", shape=(3,), stride=(2,), offset=4), claim_ms=0.5))
    exchange = call(session)
    arenas.outputs.tensor.zero_()  # what a worker does after DONE
    assert exchange.outputs[0].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert exchange.outputs[1].view(torch.float32).tolist() == [1.0, 3.0, 5.0]
    assert exchange.claim_ms == 0.5
    assert exchange.wall_ms > 0
    assert exchange.mapped


def test_layers_are_what_the_worker_said_before_it_saw_the_submission(play: Callable[..., Session]) -> None:
    assert play().layers == {"landlock": 7}


# -- liars -------------------------------------------------------------------------------------------------------------

LIES: dict[str, tuple[Answer, Status]] = {
    "an output outside its arena": (returns(output(offset=1 << 40)), Status.PROTOCOL_VIOLATION),
    "an unknown dtype": (returns(output(dtype="float31")), Status.PROTOCOL_VIOLATION),
    "a quantised dtype": (returns(output(dtype="quint8")), Status.PROTOCOL_VIOLATION),
    "a size that overflows": (returns(output(shape=(2**62, 2**62), stride=(0, 0))), Status.PROTOCOL_VIOLATION),
    "a negative stride": (returns(output(stride=(-3, 1))), Status.PROTOCOL_VIOLATION),
    "more than the contract's outputs": (returns(output(shape=(64, 64), stride=(64, 1))), Status.WRONG_SHAPE),
    "an expanded giant": (returns(output(shape=(1 << 40,), stride=(0,))), Status.WRONG_SHAPE),
    "many outputs": (returns(*[output(shape=(1024,), stride=(1,))] * MAX_OUTPUTS), Status.WRONG_SHAPE),
    "a nonce of its own": (
        lambda end, _: (setattr(end, "_nonce", end._nonce ^ 1), end.answer(Reply.OK))[1],
        Status.PROTOCOL_VIOLATION,
    ),
    "an answer from the future": (
        lambda end, _: end._done_sequence.__setitem__(0, 2**63),
        Status.PROTOCOL_VIOLATION,
    ),
    "nothing": (lambda end, _: None, Status.TIMEOUT),
    "an exception": (lambda end, _: end.answer(Reply.RUNTIME_ERROR, text="Trace\nValueError: x"), Status.RUNTIME_ERROR),
    "no memory": (lambda end, _: end.answer(Reply.OUT_OF_MEMORY, text="x"), Status.OUT_OF_MEMORY),
    "a wrong type": (lambda end, _: end.answer(Reply.WRONG_TYPE), Status.WRONG_TYPE),
    "a wrong count": (lambda end, _: end.answer(Reply.WRONG_COUNT), Status.WRONG_COUNT),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_a_failure_of_the_submission(play: Callable[..., Session], name: str) -> None:
    answer, status = LIES[name]
    session = play(GO=answer)
    with pytest.raises(SessionFailed) as caught:
        call(session, 0.05 if status is Status.TIMEOUT else 30.0)
    assert caught.value.status is status


def test_the_last_line_is_the_message_and_all_of_it_the_traceback(play: Callable[..., Session]) -> None:
    session = play(GO=LIES["an exception"][0])
    with pytest.raises(SessionFailed) as caught:
        call(session)
    assert (caught.value.message, caught.value.traceback) == ("ValueError: x", "Trace\nValueError: x")


@pytest.mark.parametrize("claim_ms", [math.nan, -math.inf, -1.0, 1e300])
def test_a_claim_is_passed_on_unbelieved(play: Callable[..., Session], claim_ms: float) -> None:
    got = call(play(GO=returns(claim_ms=claim_ms))).claim_ms
    assert got == claim_ms or math.isnan(claim_ms)
    assert isinstance(got, float)


def test_complex_outputs_reach_the_comparison(play: Callable[..., Session]) -> None:
    """They have a wrong dtype, which is the submission's fault, not the grader's."""
    exchange = call(play(GO=returns(output(dtype="complex128", shape=(2,), stride=(1,)))))
    assert exchange.outputs[0].dtype is torch.complex128


def test_a_worker_that_cannot_start_is_not_the_submissions_fault(play: Callable[..., Session]) -> None:
    session = play(PREPARE=lambda end, _: end.answer(Reply.SETUP_ERROR, text="no device"))
    with pytest.raises(SessionFailed) as caught:
        call(session)
    assert caught.value.status is Status.INFRASTRUCTURE_ERROR


def test_snapshots_do_not_overlap(arenas: Arenas, play: Callable[..., Session]) -> None:
    assert arenas.outputs is not None
    arenas.outputs.tensor[:8] = torch.arange(8, dtype=torch.uint8)
    parts = [output(dtype="uint8", shape=(1,), stride=(1,), offset=k) for k in (3, 5)]
    assert [int(copy) for copy in call(play(GO=returns(*parts))).outputs] == [3, 5]
    assert arenas.snapshot.numel() >= 2 * memory.ALIGNMENT
