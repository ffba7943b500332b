"""What a grading is asked to do, and how supervisor and broker tell each other."""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Job:
    """One grading or measurement."""

    task_dir: str
    submission: str
    """Path of the copy that is executed, made from the hashed bytes; empty for a control run."""
    submission_sha256: str
    mode: str
    """"grade": correct shapes and cases, then the graded shapes. "measure": only what `kinds` and `shapes` say."""
    device: str
    """"cuda" or "cpu"."""
    kinds: tuple[str, ...] = ()
    """Kinds to run in mode "measure": "correct" is verified with its cases; the others are timed too."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes beyond the task's own to time in mode "measure"."""
    calls: int | None = None
    """Timed calls per shape instead of the number that follows from the floor."""
    seed: int | None = None
    """First of consecutive input seeds in mode "measure", for repeatable debugging; None draws fresh ones."""
    keep_going: bool = False
    """In mode "measure", go on after a failure and report every failing shape."""
    first_call_s: float = 300.0
    """Time limit of import and of each shape's first call, which may compile and tune."""
    call_s: float = 60.0
    """Time limit of every other call."""
    settle_ms: float = 2.0
    """How long the device is kept busy in one steady way before each call, in ms."""
    require_tier: str = "confined"
    """The weakest confinement (`confine.TIERS`) in which the submission may run."""
    deadline_s: float = 1800.0
    """Time limit of everything."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


def job_from_json(data: dict[str, Any]) -> Job:
    """Inverse of `Job.to_json`."""
    return Job(**{**data, "kinds": tuple(data["kinds"]), "shapes": tuple(tuple(shape) for shape in data["shapes"])})


class Link:
    """A stream of JSON messages with file descriptors between supervisor and broker, both trusted."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Send one message; `descriptors` are duplicated into the receiver."""
        data = json.dumps(message).encode()
        socket.send_fds(self.sock, [_LENGTH.pack(len(data))], descriptors or [])
        self.sock.sendall(data)

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Receive one message and its descriptors.

        Raises:
            EOFError: the other side is gone.
        """
        head, descriptors, _, _ = socket.recv_fds(self.sock, _LENGTH.size, 16, socket.MSG_CMSG_CLOEXEC)
        if len(head) < _LENGTH.size:
            raise EOFError
        (length,) = _LENGTH.unpack(head)
        data = b""
        while len(data) < length:
            piece = self.sock.recv(length - len(data))
            if not piece:
                raise EOFError
            data += piece
        return json.loads(data), list(descriptors)


def package_root() -> tuple[str, str]:
    """(directory to put on sys.path, package name): the grader runs as `grader` in bundles, else as part of ours."""
    package = __package__ or "grader"
    root = Path(__file__).resolve().parent
    for _ in package.split("."):
        root = root.parent
    return str(root), package
