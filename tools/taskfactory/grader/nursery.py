"""Processes forked from one that has torch already: importing it takes a second, and a grading has three to six.

A nursery imports the grader's modules and torch, starts no CUDA, runs nobody's code, and forks when told to. What it
forks is as good as new: a session, environment, descriptors and working directory of its own, and this process, not the
nursery, as its parent. Nothing comes back: a child has copies of the nursery's pages and no way to change them, so a
submission leaves nothing there for the next one. Brokers and workers come from different nurseries, and share no
layout of addresses.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from . import confine
from .job import Link, package_root
from .processes import Child, Printing

_BOOT = (
    "import sys; sys.path[:0] = {path!r}; from importlib import import_module; "
    "import_module({module!r}).main(sys.argv[1:])"
)
_START_S = 300.0
"""Time limit for importing torch and forking."""


class NurseryError(OSError):
    """No process could be had; the text says why, with what the nursery printed."""


class NurseryGone(NurseryError):
    """It has died."""


class Forked(Printing):
    """A process that a nursery has forked: our child, without a handle of `subprocess`."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        super().__init__(os.fdopen(output, "rb", buffering=0))


class Nursery:
    """The process that forks children of one role."""

    def __init__(self, role: str, environment: Mapping[str, str]) -> None:
        """Start it; it imports while the caller goes on.

        Args:
            role: "broker" or "worker", the module whose `main` the children run.
            environment: what libraries read when they are loaded; a child's own replaces it.
        """
        ours, theirs = socket.socketpair()
        ours.settimeout(_START_S)
        # A pool of BLAS threads would be lost in every fork.
        environment = {**environment, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with theirs:
            self._process = Child(_command([str(theirs.fileno()), role]), environment, "/", [theirs.fileno()])
        self._link = Link(ours)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def fork(self, arguments: Sequence[str], env: Mapping[str, str], cwd: str, pass_fds: Sequence[int]) -> Forked:
        """A new child of this process that runs the role's `main(arguments)`.

        Args:
            arguments: they may name descriptors by their numbers here.
            env: the whole environment.
            cwd: working directory.
            pass_fds: descriptors that it has, under the same numbers, beside standard input (empty) and output.

        Raises:
            NurseryGone: the nursery has died.
            NurseryError: it cannot fork.
        """
        reading, writing = os.pipe()
        try:
            order = {"arguments": list(arguments), "env": dict(env), "cwd": cwd, "numbers": [1, 2, *pass_fds]}
            self._link.send(order, [writing, writing, *pass_fds])
            reply, _ = self._link.receive()
        except (EOFError, OSError) as error:
            os.close(reading)
            raise NurseryGone(f"{error or 'it has ended'}\n{self.close()}".strip()) from None
        finally:
            os.close(writing)
        if "error" in reply:
            os.close(reading)
            raise NurseryError(reply["error"])
        return Forked(reply["pid"], reading)

    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.process.poll() is None

    def close(self) -> str:
        """End it; its children live on. Returns what it printed."""
        self._link.sock.close()
        self._process.process.kill()
        self._process.process.wait()
        return self._process.finish()


def _command(arguments: list[str]) -> list[str]:
    """A Python that reads no environment variables and no site configuration, with this process's path."""
    root, package = package_root()
    path = [root, *(entry for entry in sys.path if entry and entry != root)]
    boot = _BOOT.format(path=path, module=f"{package}.nursery")
    return [sys.executable, "-I", "-S", "-c", boot, *arguments]


_kept: dict[str, tuple[tuple[object, ...], Nursery]] = {}


def nursery(role: str, environment: Mapping[str, str]) -> Nursery:
    """This process's nursery for a role, started if there is none that is alive and as asked for."""
    asked = (os.getpid(), package_root(), tuple(sys.path), dict(environment))
    if role in _kept:
        had, found = _kept[role]
        if had == asked and found.alive():
            return found
        retire(role)
    _kept[role] = asked, Nursery(role, environment)
    return _kept[role][1]


def fork(
    role: str,
    base: Mapping[str, str],
    arguments: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    pass_fds: Sequence[int],
) -> Forked:
    """`Nursery.fork` from this process's nursery, which is replaced if it turns out to be gone.

    Raises:
        NurseryError: as there.
    """
    try:
        return nursery(role, base).fork(arguments, env, cwd, pass_fds)
    except NurseryGone:
        return nursery(role, base).fork(arguments, env, cwd, pass_fds)


def pids() -> set[int]:
    """Process ids of this process's nurseries, which stay between gradings and are no strays."""
    return {found.pid for (owner, *_), found in _kept.values() if owner == os.getpid()}


@atexit.register
def retire(*roles: str) -> None:
    """End this process's nurseries for these roles, or all; the next grading starts new ones."""
    for role in roles or tuple(_kept):
        (owner, *_), found = _kept.pop(role)
        if owner == os.getpid():
            found.close()


# -- in the nursery ----------------------------------------------------------------------------------------------------


def main(argv: list[str]) -> None:
    """Entry point: the descriptor of the link, and the role."""
    confine.harden_trusted()
    sys.dont_write_bytecode = True
    link, role = Link(socket.socket(fileno=int(argv[0]))), argv[1]
    package = package_root()[1]
    module = import_module(f"{package}.{role}")
    for name in ("torch", f"{package}.memory", f"{package}.compare"):
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child then leaves the shared pages alone
    owner = os.getppid()
    while True:
        try:
            order, descriptors = link.receive()
        except (EOFError, OSError):
            os._exit(0)  # our owner is gone
        reply: dict[str, Any]
        try:
            reply = {"pid": _fork(module, role, order, descriptors, owner)}
        except OSError as error:
            reply = {"error": f"cannot fork: {error}"}
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(reply)


def _fork(module: Any, role: str, order: dict[str, Any], descriptors: list[int], owner: int) -> int:
    """Fork twice: the child's parent ends, so that the child goes to the nearest subreaper above, our owner."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            middle = os.getpid()
            pid = os.fork()
            if pid == 0:
                _begin(module, role, order, descriptors, (middle, owner))
            os.write(writing, str(pid).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(between, 0)
    pid_text = os.read(reading, 32)  # an empty one means that the second fork failed
    os.close(reading)
    if not pid_text:
        raise OSError("the machine allows no further process")
    return int(pid_text)


def _begin(module: Any, role: str, order: dict[str, Any], descriptors: list[int], parents: tuple[int, int]) -> NoReturn:
    """Become what a new process would be, wait for the second of `parents` to be our parent, and run the role."""
    between, owner = parents
    try:
        _take(descriptors, order["numbers"])
        os.setsid()
        confine.resemble_new(f"grader.{role}")
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["env"])
        while (parent := os.getppid()) == between:
            time.sleep(0)
        if parent != owner:
            raise NurseryError("this process came to another parent: its owner is gone, or no subreaper")
        module.main(order["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _take(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give the descriptors their numbers, an empty standard input theirs, and close all others."""
    above = max(numbers) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    empty = fcntl.fcntl(os.open(os.devnull, os.O_RDONLY), fcntl.F_DUPFD, above)
    os.closerange(0, above)
    for source, number in zip((empty, *moved), (0, *numbers), strict=True):
        os.dup2(source, number)
    os.closerange(above, 1 << 20)
