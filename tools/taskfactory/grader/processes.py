"""Start children, watch what they print, and kill whole process trees until nothing is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
KEPT_OUTPUT_BYTES = 64 * 1024


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies.

    Args:
        parent: process id of the parent; if it is another one by now, the parent is dead and this process ends at once.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class Printing:
    """A process whose output is drained by a thread that keeps the last 64 KiB."""

    pid: int
    """Process id."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.kept = b""
        self._stream = stream
        self._drainer = threading.Thread(target=self._drain, args=(stream,), daemon=True)
        self._drainer.start()

    def _drain(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 65536):
            self.kept = (self.kept + piece)[-KEPT_OUTPUT_BYTES:]

    def finish(self) -> str:
        """Release everything and return what it printed last; call after its tree is dead."""
        self._drainer.join(timeout=2)
        self._stream.close()
        return self.kept.decode("utf-8", "replace")


class Child(Printing):
    """A started program."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, pass_fds: Sequence[int]) -> None:
        self.process = subprocess.Popen(
            argv, env=dict(env), cwd=cwd, pass_fds=pass_fds, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.pid = self.process.pid
        super().__init__(self.process.stdout)

    def finish(self) -> str:
        """As in `Printing`."""
        self.process.poll()  # reaped already by `kill_all`: lets subprocess notice
        return super().finish()


def descendants(root: int) -> set[int]:
    """All living or zombie descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry))
    found: set[int] = set()
    frontier = [root]
    while frontier:
        for pid in children.get(frontier.pop(), []):
            found.add(pid)
            frontier.append(pid)
    return found


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rsplit(")", 1)[1].split()[0] in "ZX"


def kill_all(spare: set[int], timeout_s: float = 20.0) -> bool:
    """Kill and reap every descendant of this process except `spare`, again and again until none is left.

    This process must be a subreaper. Returns False if some would not die in time.
    """
    deadline = time.monotonic() + timeout_s
    while left := descendants(os.getpid()) - spare:
        for pid in left:  # freeze first: a fork bomb cannot then outrun the list
            _signal(pid, signal.SIGSTOP)
        for pid in descendants(os.getpid()) - spare:
            _signal(pid, signal.SIGKILL)
        for pid in left:
            _reap(pid)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
