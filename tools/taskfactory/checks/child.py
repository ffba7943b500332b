"""The process in which a spec's sources run: it limits itself, examines one spec, and writes JSON lines to a pipe.

    {"doing": [what, field, line]}   before each step, so that the parent can say where it hung or died
    {"finding": {...}}               as soon as it is made
    {"figures": {...}}               at the end; without it the run did not come to its end
    {"broken": "..."}                instead of it, if the checks themselves failed on what the sources made

What the sources can do to this process they can also do to its messages; the parent uses them for nothing but telling
the author.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from taskfactory.findings import Finding

FILE_BYTES = 1 << 30
"""Largest file that may be written."""


class Channel:
    """Writes messages, from the process that was started and from no fork of it."""

    def __init__(self, fd: int) -> None:
        self.fd, self._pid = fd, os.getpid()

    def send(self, **message: Any) -> None:
        """Write one message."""
        if os.getpid() != self._pid:
            os._exit(1)  # a fork that came back from its source: two of us must not report
        data = (json.dumps(message) + "\n").encode()
        while data:
            data = data[os.write(self.fd, data) :]


Work = Callable[[Channel, dict[str, Any], IO[str]], None]


def limit(memory_bytes: int, device: str) -> None:
    """Bound memory, file sizes and core dumps, and end with the parent."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    if device == "cpu":  # CUDA reserves more address space than there is memory
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    if sys.platform == "linux":
        from taskfactory.grader.processes import die_with_parent

        die_with_parent()


def confine(kept: list[int]) -> None:
    """Shut this process off as the grader does a submission, as far as the machine can: it reads what Python and torch
    consist of, writes in its working directory, and reaches no network."""
    from taskfactory.grader import confine as walls

    found = [importlib.util.find_spec(name) for name in ("taskfactory", "pydantic", "torch")]
    packages = {str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin}
    with contextlib.suppress(walls.ConfinementError, ValueError, OSError):
        walls.enter(os.getcwd(), [*walls.interpreter_readable(), *sorted(packages)], keep=kept)


def forbid_forks(file: IO[str]) -> None:
    """Make `os.fork` raise where it is called, and have `os._exit` leave a trace of where it was called in `file`."""

    def hook(event: str, args: Any) -> None:
        if event in ("os.fork", "os.forkpty"):
            raise RuntimeError("embedded sources must not start processes")

    def traced_exit(status: int) -> None:
        faulthandler.dump_traceback(file)
        leave(status)

    leave = os._exit
    sys.addaudithook(hook)
    os._exit = traced_exit  # type: ignore[assignment]


def enter(arguments: list[str], work: Work, confined: bool = False) -> None:
    """Become a child of a check: open the pipe, read the job, take limits, write faults down, and do the work.

    Args:
        arguments: the number of the pipe's descriptor and the path of the job, a JSON file.
        work: called with the channel, the job and the file that faults are written to.
        confined: whether the files and the network are closed to it, where that can be done on the CPU.
    """
    channel = Channel(int(arguments[0]))
    job = json.loads(Path(arguments[1]).read_text("utf-8"))
    limit(job["memory_bytes"], job["device"])
    with open(job["faults"], "w", encoding="utf-8") as faults:
        faulthandler.enable(faults)
        faulthandler.register(signal.SIGUSR1, faults)
        if confined and sys.platform == "linux" and job["device"] == "cpu":
            confine([channel.fd, faults.fileno()])
        work(channel, job, faults)


def main(arguments: list[str]) -> None:
    """Run as a child of `validate --run`."""
    enter(arguments, _examine, confined=True)


def _examine(channel: Channel, job: dict[str, Any], faults: IO[str]) -> None:
    import torch

    from taskfactory.checks.experiments import examine
    from taskfactory.load import SpecFile
    from taskfactory.spec import TaskSpec

    torch.set_num_threads(1)
    file = SpecFile(Path(job["path"]), TaskSpec(**job["spec"]), job["lines"], job["text"])
    forbid_forks(faults)

    def tell(finding: Finding) -> None:
        channel.send(finding=finding.as_dict())

    try:
        _, figures = examine(
            file,
            device=job["device"],
            seed=job["seed"],
            budget_gb=job["budget_gb"],
            emit=tell,
            notice=lambda what, field, line: channel.send(doing=[what, field, line]),
        )
    except Exception as error:
        traceback.print_exc()
        channel.send(broken=f"{type(error).__name__}: {error}")
    else:
        channel.send(figures=figures)


if __name__ == "__main__":
    main(sys.argv[1:])
