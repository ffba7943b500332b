"""One grading on a GPU at a time, whoever starts it, the fleet or a person: a lock on a file named after its UUID.

The lock is `flock`'s, so it belongs to the open file, which driver and worker share: it outlives either of them and is
gone with both. It holds on one machine; containers that share a GPU must share the folder (`TASKFACTORY_LOCKS`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from taskfactory.errors import InfrastructureError, UsageError


@dataclass(frozen=True)
class Gpu:
    """A GPU by its UUID, which stays the same whatever CUDA_VISIBLE_DEVICES makes of its number."""

    uuid: str
    name: str


def locks_folder() -> Path:
    """Where the lock files are; made on first use, for all users of the machine.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(os.environ.get("TASKFACTORY_LOCKS") or Path(tempfile.gettempdir(), "taskfactory-locks"))
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):
            folder.chmod(0o1777)
    return folder


class Lease:
    """The right to use one GPU; not held until `acquire` says so."""

    def __init__(self, uuid: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", uuid):
            raise UsageError(f"{uuid!r} is not the UUID of a GPU")
        path = locks_folder() / f"{uuid}.lock"
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(PermissionError):
            os.fchmod(self.descriptor, 0o666)

    def acquire(self) -> bool:
        """Take the lock if nobody has it."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Take the lock as soon as nobody has it."""
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        """Give the lock back, also on behalf of the processes that inherited the file."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Forget the file; a process that inherited it keeps what it holds."""
        os.close(self.descriptor)


def find_gpus(wanted: tuple[str, ...] = ()) -> list[Gpu]:
    """The GPUs of this machine, restricted to `wanted` UUIDs or numbers, else to CUDA_VISIBLE_DEVICES.

    Raises:
        InfrastructureError: the driver's tool is missing or fails. UsageError: a wanted GPU is not there.
    """
    if shutil.which("nvidia-smi") is None:
        raise InfrastructureError("nvidia-smi is not there, so GPUs cannot be told apart; `--device cpu` only verifies")
    command = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise InfrastructureError(f"nvidia-smi: {(done.stderr or done.stdout).strip()}")
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in done.stdout.splitlines() if line.strip()]
    by_name = {name: Gpu(uuid, model) for index, uuid, model in rows for name in (index, uuid)}
    names = wanted or tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    missing = [name for name in names if name not in by_name]
    if missing:
        known = ", ".join(gpu.uuid for gpu in dict.fromkeys(by_name.values()))
        raise UsageError(f"no GPU {', '.join(missing)} here; there are: {known}")
    return list(dict.fromkeys(by_name[name] for name in names)) or list(dict.fromkeys(by_name.values()))


@contextlib.contextmanager
def first_gpu(wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the first GPU that CUDA_VISIBLE_DEVICES allows, which names that one alone until the block ends.

    Args:
        wait: until another grading is done with it.
        say: told that it waits, or that the GPU cannot be told apart and is used without a lock.

    Raises:
        InfrastructureError: it is in use and `wait` is false.
    """
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        gpu = find_gpus()[0] if before != "" else None  # empty: CUDA is to see none
    except (InfrastructureError, UsageError, IndexError) as error:
        say(f"the GPU is used without a lock, so other gradings may disturb this one: {error}")
        gpu = None
    if gpu is None:
        yield
        return
    lease = Lease(gpu.uuid)
    try:
        if not lease.acquire():
            if not wait:
                raise InfrastructureError(f"another grading is using {gpu.name} {gpu.uuid}")
            say(f"another grading is using {gpu.name} {gpu.uuid}; waiting for it")
            lease.wait()
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid
        yield
    finally:
        if before is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        lease.close()
