"""The process above broker and worker: no CUDA, no torch. It starts them, holds the deadline, kills until nothing is
left, and only then lets a result exist.

What the worker prints and how it exits mean nothing; what the broker cannot finish is an infrastructure error.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import select
import site
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import confine, nursery
from .job import Job, Link
from .nursery import Forked, NurseryError
from .processes import descendants, kill_all
from .result import Result, Status, from_json
from .task import TaskError, load_task, read_submission

Progress = Callable[[str, int, int], None]

_BROKER_DIED = "the broker process died"


def cuda_is_there() -> bool:
    """Whether an NVIDIA device node exists; asking torch would start CUDA in this process."""
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")


def grade(
    task_dir: Path,
    submission: Path,
    mode: str = "grade",
    device: str = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Result, str]:
    """Grade or measure one submission.

    Args:
        task_dir: a bundle's `tests/` (with graded shapes) or `environment/app/`.
        submission: the file; it is read once, hashed, and executed from a copy of those bytes.
        mode: "grade" or "measure".
        device: "cuda", "cpu" or "auto".
        progress: called with (step, done, total).
        **options: further fields of `job.Job`.

    Returns:
        The result, which always exists, and the last 64 KiB that the submission printed.

    Raises:
        TaskError: the task directory or the submission file cannot be used.
    """
    task = load_task(task_dir)
    for shape in options.get("shapes", ()):
        if len(shape) != len(task.shape_names):
            names = ", ".join(task.shape_names)
            raise TaskError(f"{shape} is no shape of {task.name}, which has {len(task.shape_names)} numbers: {names}")
    data = read_submission(submission)
    with _scratch() as scratch:
        copy = scratch / "submission" / task.module
        copy.parent.mkdir()
        copy.write_bytes(data)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        job = Job(str(task_dir.resolve()), str(copy), digest, mode, resolve_device(device), **options)
        confine.harden_trusted(subreaper=True, no_new_privileges=False)
        result, printed = Supervision(job, scratch, progress).run()
        if result.clock.get("disagree"):
            result, printed = Supervision(job, scratch, progress).run()
            result.clock["repeated"] = True
            if result.clock.get("disagree"):
                result.warnings.append("twice the wall clock held more than claims and trusted launches explain")
        if result.clock.get("broker_cuda_error"):
            result = _blame(result, study_clock(task_dir, device, launches=1))
    return result, printed


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder that goes away whatever a submission has put there."""
    folder = tempfile.mkdtemp(prefix="taskfactory-")
    try:
        yield Path(folder)
    finally:
        confine.remove_scratch(folder)


def _blame(result: Result, control: Result) -> Result:
    """A CUDA error in the broker while a submission ran is the submission's doing if the device still works."""
    if control.status is not Status.PASSED:
        return replace(result, message=f"{result.message}; the device fails a control run too: {control.message}")
    return replace(result, status=Status.PROTOCOL_VIOLATION, message=f"broke the broker's CUDA: {result.message}")


def study_clock(task_dir: Path, device: str = "auto", progress: Progress | None = None, launches: int = 3) -> Result:
    """Run trusted work of known duration under both clocks; no submission. The figures are in `Result.clock`.

    Raises:
        TaskError: the task directory cannot be used.
    """
    load_task(task_dir)
    with _scratch() as scratch:
        job = Job(str(task_dir.resolve()), "", "", "clock", resolve_device(device), kinds=("measure",), calls=launches)
        confine.harden_trusted(subreaper=True, no_new_privileges=False)
        return Supervision(job, scratch, progress).run()[0]


def resolve_device(device: str) -> str:
    """ "auto" becomes "cuda" where there is one, else "cpu"."""
    if device == "auto":
        return "cuda" if cuda_is_there() else "cpu"
    return device


class Supervision:
    """One run of broker and workers."""

    def __init__(self, job: Job, scratch: Path, progress: Progress | None) -> None:
        self.job, self.progress = job, progress
        self.scratch = Path(tempfile.mkdtemp(prefix="run-", dir=scratch))
        self.result_path = self.scratch / "result.json"
        self.deadline = time.monotonic() + job.deadline_s
        self.bases = {"worker": _worker_environment(job, Path("/nonexistent")), "broker": _trusted_environment(job)}
        for role, base in self.bases.items():
            nursery.nursery(role, base)  # it imports torch while the confinement is tried
        self.spare = descendants(os.getpid())  # a caller's other children are none of our business
        self.observed = observe(job.device)
        self.group = confine.control_group(f"taskfactory-{os.getpid()}")
        self.worker: Forked | None = None
        self.printed = ""
        self.finished = False
        self.submission_started = False

    def run(self) -> tuple[Result, str]:
        """Run to the end; processes are gone when this returns."""
        ours, theirs = socket.socketpair()
        broker, broker_output = None, ""
        try:
            with theirs:
                broker = self._fork(
                    "broker", [str(theirs.fileno())], self.bases["broker"], self.scratch, [theirs.fileno()]
                )
            message = self._serve(Link(ours), broker)
        except NurseryError as error:
            message = f"the broker could not be started: {error}"
        finally:  # an interrupt, or a `progress` that raises, must not leave processes either
            ours.close()
            gone = kill_all(self.spare | nursery.pids())
            if self.worker is not None:
                self.printed = self.worker.finish()
            if isinstance(self.group, confine.ControlGroup):
                self.group.close()
            if broker is not None:
                broker_output = broker.finish()
            if not confine.at_least(self.observed.tier, "confined"):
                nursery.retire()  # nothing has lived beside an unconfined submission and is used again
        result = self._result(message, broker_output)
        result.confinement |= {"tier": self.observed.tier, "probe": self.observed.to_json()}
        result.confinement["control_group"] = self.group if isinstance(self.group, str) else "pids"
        if not gone:
            result = self._infrastructure("processes of the submission could not be killed", result)
        confine.remove_scratch(str(self.scratch))
        return result, self.printed

    def _fork(self, role: str, arguments: list[str], env: dict[str, str], cwd: Path, descriptors: list[int]) -> Forked:
        return nursery.fork(role, self.bases[role], arguments, env, str(cwd), descriptors)

    def _serve(self, link: Link, broker: Forked) -> str:
        """Do what the broker asks until it is finished; returns why it is not, or an empty string."""
        if not _sent(link, {"job": self.job.to_json(), "result_path": str(self.result_path)}):
            return _BROKER_DIED
        while True:
            left_s = self.deadline - time.monotonic()
            ready, _, _ = select.select([link.sock], [], [], max(0.0, min(left_s, 1.0)))
            if left_s <= 0:
                return f"not finished within {self.job.deadline_s:g} s"
            if not ready:
                continue
            try:
                message, descriptors = link.receive()
            except (EOFError, OSError):
                return _BROKER_DIED
            if message["op"] == "finished":
                self.finished = True
                return ""
            if message["op"] == "progress":
                if self.progress is not None:
                    self.progress(message["step"], message["done"], message["total"])
                continue
            if message["op"] == "spawn":
                reply = self._spawn(message["trusted"], descriptors)
                for fd in descriptors:
                    os.close(fd)
            else:
                reply = self._reap(broker)
            if not _sent(link, reply):
                return _BROKER_DIED

    def _spawn(self, trusted: bool, descriptors: list[int]) -> dict[str, Any]:
        if not trusted and not confine.at_least(self.observed.tier, self.job.require_tier):
            return {"error": self._too_weak()}
        scratch = Path(tempfile.mkdtemp(prefix="worker-", dir=self.scratch))
        confine.prepare_scratch(str(scratch))
        granted = {
            "supervisor": os.getpid(),
            "confine": self.observed.tier != "unconfined",
            "scratch": str(scratch),
            "readable": [*_readable(), str(Path(self.job.submission).parent)],
            "hidden": [*_hidden(), *(str(path) for path in Path(self.job.task_dir).iterdir() if path.name != "grader")],
            "devices": _devices(self.job.device),
        }
        arenas = descriptors[4:] or [-1, -1]
        arguments = [*(str(fd) for fd in (*descriptors[:4], *arenas)), json.dumps(granted)]
        try:
            environment = _worker_environment(self.job, scratch)
            self.worker = self._fork("worker", arguments, environment, scratch, descriptors)
            if isinstance(self.group, confine.ControlGroup):
                self.group.add(self.worker.pid)
        except OSError as error:
            return {"error": f"the worker could not be started: {error}"}
        self.submission_started = self.submission_started or not trusted
        return {"pid": self.worker.pid}

    def _too_weak(self) -> str:
        reason = self.observed.error or f"the probe succeeded with: {', '.join(self.observed.succeeded)}"
        return (
            f"the worker would be {self.observed.tier}, required is {self.job.require_tier} ({reason}); "
            "grade on a Linux with Landlock and seccomp, or allow an unconfined run and trust the submission"
        )

    def _reap(self, broker: Forked) -> dict[str, Any]:
        gone = kill_all(self.spare | nursery.pids() | {broker.pid})
        if self.worker is not None:
            self.printed = self.worker.finish() or self.printed
            self.worker = None
        return {} if gone else {"error": "processes of the submission could not be killed"}

    def _result(self, message: str, broker_output: str) -> Result:
        try:
            result = from_json(json.loads(self.result_path.read_text("utf-8"))) if self.finished else None
        except (OSError, ValueError, TypeError) as error:
            result, message = None, f"the result could not be read: {error}"
        if result is not None:
            return result
        return self._infrastructure(f"{message}\n{broker_output}".strip(), None)

    def _infrastructure(self, message: str, result: Result | None) -> Result:
        if result is None:
            task = load_task(Path(self.job.task_dir))
            result = Result(
                task.name, task.version, task.spec_digest, task.metric, self.job.submission_sha256, self.job.mode,
                Status.INFRASTRUCTURE_ERROR,
            )  # fmt: skip
        return replace(
            result, status=Status.INFRASTRUCTURE_ERROR, message=message, score=None, reward=None,
            score_interval=None, timed=False,
        )  # fmt: skip


def _sent(link: Link, message: dict[str, Any]) -> bool:
    """Send to the broker; False if it has died."""
    try:
        link.send(message)
    except OSError:
        return False
    return True


def _trusted_environment(job: Job) -> dict[str, str]:
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    if job.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def _worker_environment(job: Job, scratch: Path) -> dict[str, str]:
    """What a submission needs to compile and run, with private caches that are empty before and gone after."""
    environment = confine.worker_environment(str(scratch), os.environ)
    if job.device == "cpu":
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return environment


def _readable() -> tuple[str, ...]:
    """What a worker may read beside the system and its submission: interpreter, packages, this package."""
    return (*confine.interpreter_readable(), str(Path(__file__).resolve().parent))


def _hidden() -> tuple[str, ...]:
    """Specs and solutions that installed packages carry where a worker has to read modules.

    Not only those of this package: an editable installation leaves copies beside the other packages.
    """
    places = {*sys.path, *site.getsitepackages(), *site.getsitepackages([sys.base_prefix])}
    packages = {Path(__file__).resolve().parent.parent, *(Path(place, "taskfactory") for place in places if place)}
    return tuple(sorted(str(package / "_data") for package in packages if (package / "_data").is_dir()))


def _devices(device: str) -> tuple[str, ...]:
    """Device nodes of the leased GPU; of all GPUs if CUDA_VISIBLE_DEVICES does not name one by UUID."""
    if device != "cuda":
        return ()
    leased = [confine.nvidia_minor(name) for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    minors = [minor for minor in leased if minor is not None]
    return tuple(confine.nvidia_devices(minors or None))


@functools.cache
def observe(device: str) -> confine.Observed:
    """Run the attack matrix from a probe that is confined like a worker; once per process and device."""
    return confine.probe_worker(_readable(), _devices(device), hidden=_hidden())


__all__ = ["Progress", "TaskError", "cuda_is_there", "grade", "observe", "study_clock"]
