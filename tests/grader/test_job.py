"""What supervisor and broker tell each other."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from taskfactory.grader.job import Job, Link, job_from_json, package_root


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Link(ours), Link(theirs)


def test_a_job_goes_through_json_unchanged() -> None:
    plain = Job("/task", "/copy/rows.py", "sha256:1", "grade", "cpu")
    rich = Job("/t", "/s", "d", "measure", "cuda", kinds=("quick", "correct"), shapes=((1, 2), (3, 4)), calls=7, seed=9,
               keep_going=True, first_call_s=1.5, call_s=2.5, require_tier="partial", deadline_s=3.5)  # fmt: skip
    for job in (plain, rich):
        assert job_from_json(json.loads(json.dumps(job.to_json()))) == job


def test_messages_arrive_in_order_and_whole(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    messages = [{"op": "progress", "step": "ü" * k, "done": k} for k in (0, 1, 5000)]
    for message in messages:
        ours.send(message)
    assert [theirs.receive() for _ in messages] == [(message, []) for message in messages]


def test_a_message_larger_than_the_sockets_buffer(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    message = {"text": "x" * (4 << 20)}
    sender = threading.Thread(target=ours.send, args=(message,))
    sender.start()
    assert theirs.receive()[0] == message
    sender.join()


def test_descriptors_belong_to_their_message(links: tuple[Link, Link]) -> None:
    ours, theirs = links
    there, here = os.pipe()
    ours.send({"op": "plain"})
    ours.send({"op": "spawn"}, [there, here])
    os.close(there)
    os.close(here)
    assert theirs.receive() == ({"op": "plain"}, [])
    message, (received_there, received_here) = theirs.receive()
    assert message == {"op": "spawn"}
    os.write(received_here, b"!")
    assert os.read(received_there, 1) == b"!"
    os.close(received_there)
    os.close(received_here)


@pytest.mark.parametrize("half", [b"", b"\x05\0", b"\x05\0\0\0", b'\x05\0\0\0{"a'])
def test_a_sender_that_dies_in_between_is_the_end(links: tuple[Link, Link], half: bytes) -> None:
    ours, theirs = links
    ours.sock.sendall(half)
    ours.sock.close()
    with pytest.raises(EOFError):
        theirs.receive()


def test_the_package_knows_how_it_was_imported() -> None:
    root, package = package_root()
    assert package == "taskfactory.grader"
    assert os.path.isfile(os.path.join(root, "taskfactory", "grader", "job.py"))
