"""Start the child that runs a spec's sources, listen to it, and end it with everything it started.

Nothing of the spec runs here, and torch is not imported. How a child ended is told by an `Ending`, not an exception.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import taskfactory
from taskfactory.grader.processes import KEPT_OUTPUT_BYTES, Child, descendants, kill_all

_BOOT = "import sys; sys.path[:] = {path!r}; from {entry} import main; main(sys.argv[1:])"
_KEPT_ENVIRONMENT = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")
_MESSAGE_BYTES = 8 << 20
"""All messages of a child together; progress and findings of a spec take some hundred kilobytes."""
_PROCESSES = 32
_START_S = 120.0
"""Wall time until the first step: importing torch on a busy machine."""
_TRACE_S = 0.5
"""How long a child that is to be ended has to write down where it is."""
_LOOK_S = 0.3
"""Time between two looks at the process table."""

Kind = Literal["finished", "step", "total", "printed", "processes", "left", "garbled", "exit"]


@dataclass(frozen=True)
class Limits:
    """What one child may use."""

    step_s: float = 60.0
    """Wall time of one step: a call of a source, a comparison."""
    total_s: float = 600.0
    """Wall time of everything."""
    printed_bytes: int = 4 << 20
    """What it may print before it is ended."""
    memory_bytes: int = 0
    """Private memory of each process on the CPU; 0 is four fifths of the machine's."""


@dataclass(frozen=True)
class Ending:
    """How a child ended.

    "finished": by itself, after its last message; "left": likewise, but processes it had started were still there;
    "step", "total", "printed", "processes": it was ended for exceeding that limit; "garbled": for a message that is
    none; "exit": by itself and too early, with `status` as `subprocess` has it.
    """

    kind: Kind
    status: int = 0
    printed: str = ""
    """The last of what it printed."""
    trace: str = ""
    """Python frames at the time, innermost first, as `faulthandler` writes them; empty if it could not."""


class _Counted(Child):
    """A child whose output is counted."""

    seen = 0

    def _drain(self, stream: IO[bytes]) -> None:
        while piece := os.read(stream.fileno(), 65536):
            self.seen += len(piece)
            self.kept = (self.kept + piece)[-KEPT_OUTPUT_BYTES:]


def run_child(
    job: dict[str, Any],
    limits: Limits,
    hear: Callable[[dict[str, Any]], bool],
    entry: str = "taskfactory.checks.child",
) -> Ending:
    """Run a module such as `taskfactory.checks.child` on a job to its end; no process of it is left when this returns.

    Args:
        job: see `child.main`; what concerns the machine is added here.
        limits: what the child may use.
        hear: called with each message; returns whether it was the last one, and raises ValueError if it makes no sense.
        entry: the module whose `main` is run with the pipe's descriptor and the path of the job.
    """
    linux = sys.platform == "linux"
    if linux:
        from taskfactory.grader.confine import harden_trusted

        harden_trusted(subreaper=True, no_new_privileges=False)  # so that nothing escapes by a double fork
    spare = descendants(os.getpid()) if linux else set()
    with tempfile.TemporaryDirectory(prefix="taskfactory-", ignore_cleanup_errors=True) as scratch:
        watched = _Watched(Path(scratch), job, limits, hear, spare, entry)
        try:
            kind = watched.watch()
            if kind not in ("finished", "left", "exit"):
                watched.ask_where()
        finally:
            if linux:
                gone = kill_all(spare)
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(watched.child.pid, signal.SIGKILL)
                watched.child.process.wait()
                gone = True
            watched.close()
        printed = watched.child.finish()
        return Ending(kind if gone else "left", watched.status, printed, watched.trace())


class _Watched:
    """A running child and its pipe."""

    def __init__(
        self,
        scratch: Path,
        job: dict[str, Any],
        limits: Limits,
        hear: Callable[[dict[str, Any]], bool],
        spare: set[int],
        entry: str,
    ) -> None:
        self.limits, self.hear, self.spare = limits, hear, spare
        self._faults = scratch / "faults"
        work = scratch / "work"
        work.mkdir()
        path = scratch / "job.json"
        memory_bytes = limits.memory_bytes or _machine_memory() * 4 // 5
        path.write_text(json.dumps(job | {"faults": str(self._faults), "memory_bytes": memory_bytes}), "utf-8")
        self._reader, writer = os.pipe()
        root = str(Path(taskfactory.__file__).resolve().parents[1])
        boot = _BOOT.format(entry=entry, path=[root, *(place for place in sys.path if place and place != root)])
        argv = [sys.executable, "-I", "-S", "-c", boot, str(writer), str(path)]
        try:
            self.child = _Counted(argv, _environment(work, job["device"]), str(work), [writer])
        finally:
            os.close(writer)
        self.status = 0
        self._buffer = b""
        self._received = 0
        self._last = False

    def watch(self) -> Kind:
        """Listen until the child is finished, ends, or exceeds a limit."""
        started = stepped = time.monotonic()
        looked = started
        step_s = max(_START_S, self.limits.step_s)
        while True:
            ready, _, _ = select.select([self._reader], [], [], 0.05)
            now = time.monotonic()
            if ready:
                data = os.read(self._reader, 65536)
                try:
                    heard = self._feed(data)
                except (ValueError, TypeError, KeyError, RecursionError):
                    return "garbled"
                if heard:
                    stepped, step_s = now, self.limits.step_s
                if self._last:
                    return "left" if self._others() else "finished"
                if not data and self._ended(wait_s=self.limits.step_s):
                    return "exit"
                if not data:
                    return "step"
            elif self._ended():
                return "exit"
            if self.child.seen > self.limits.printed_bytes:
                return "printed"
            if now - stepped > step_s:
                return "step"
            if now - started > self.limits.total_s:
                return "total"
            if now - looked > _LOOK_S:
                looked = now
                if len(self._others()) > _PROCESSES:
                    return "processes"

    def _feed(self, data: bytes) -> bool:
        """Take in bytes from the pipe; whether there was a whole message among them."""
        self._received += len(data)
        if self._received > _MESSAGE_BYTES:
            raise ValueError("too many messages")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("not a message")
            self._last = self.hear(message) or self._last
        return bool(lines)

    def _ended(self, wait_s: float = 0.0) -> bool:
        """Whether the child is gone and its pipe empty; waits for its exit if told to."""
        deadline = time.monotonic() + wait_s
        while (status := self.child.process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if status is None:
            return False
        self.status = status
        return not select.select([self._reader], [], [], 0)[0] or wait_s > 0

    def _others(self) -> set[int]:
        """Processes that the child has started."""
        if sys.platform != "linux":
            return set()
        return descendants(os.getpid()) - self.spare - {self.child.pid}

    def ask_where(self) -> None:
        """Have the child write down what it is executing, if it still can."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _TRACE_S
        while not self.trace() and time.monotonic() < deadline:
            time.sleep(0.02)

    def trace(self) -> str:
        """What the child has written down so far."""
        try:
            with open(self._faults, encoding="utf-8", errors="replace") as file:
                return file.read(65536)
        except OSError:
            return ""

    def close(self) -> None:
        """Close our end of the pipe."""
        os.close(self._reader)


def _environment(work: Path, device: str) -> dict[str, str]:
    """No secrets of the caller's, no home, one thread."""
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    own = {"HOME": str(work), "TMPDIR": str(work), "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    # glibc gives each large block back at once, to take it anew page by page; keeping them saves a fifth of the time.
    keep = str(1 << 32)
    own |= {"MALLOC_MMAP_THRESHOLD_": keep, "MALLOC_TRIM_THRESHOLD_": keep}
    return kept | own | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
