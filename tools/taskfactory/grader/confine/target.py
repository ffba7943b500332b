"""What the probe attacks: a stand-in for the broker, and files which a worker must neither read nor touch."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """What the attacker is told, far more than a submission would know; all paths lie outside its scratch."""

    pid: int
    address: int
    """Where the victim's secret stands in its memory."""
    secret: str
    descriptor: int
    """The victim's open descriptor of `hidden_file`."""
    hidden: str
    """Directory of the hidden tests, holding `hidden_file` with the secret."""
    hidden_file: str
    results: str
    """Directory of results, holding `result_file`."""
    result_file: str
    public_file: str
    """A file that the worker may read, owned by its user, and must not change."""
    socket_path: str
    datagram_path: str
    abstract_name: str
    go_descriptor: int
    """The attacker's own descriptor of a sealed GO page, which it may read and must not change."""
    scratch: str


def victim() -> None:
    """Play a broker: hold a secret, be hardened, and report one's state for each line on stdin, until it ends."""
    from .confinement import harden_trusted

    setup = json.loads(sys.stdin.readline())
    notes = harden_trusted()
    held = ctypes.create_string_buffer(setup["secret"].encode())
    descriptor = os.open(setup["hidden_file"], os.O_RDONLY)
    arrived: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: arrived.append(number))
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.bind(setup["socket_path"])
    stream.listen(8)
    abstract = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    abstract.bind(b"\0" + setup["abstract_name"].encode())
    abstract.listen(8)
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(setup["datagram_path"])
    datagrams.setblocking(False)
    where = {"pid": os.getpid(), "address": ctypes.addressof(held), "descriptor": descriptor, "notes": notes}
    print(json.dumps(where), flush=True)
    for _ in sys.stdin:
        print(json.dumps(_state(held, setup["secret"], arrived, datagrams)), flush=True)


def _state(held: Any, secret: str, arrived: list[int], datagrams: socket.socket) -> dict[str, Any]:
    try:
        message = len(datagrams.recv(64))
    except BlockingIOError:
        message = 0
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:
        oom = int(file.read())
    return {
        "secret_intact": held.value.decode(errors="replace") == secret,
        "signals": len(arrived),
        "datagram_bytes": message,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "policy": os.sched_getscheduler(0),
        "open_files": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "oom_score_adj": oom,
    }
