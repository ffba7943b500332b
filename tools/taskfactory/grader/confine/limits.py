"""How much the worker may use: resource limits on itself, and a control group where the machine lends one."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass, field

GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """Limits a worker sets on itself. There is none on address space: CUDA reserves hundreds of GiB of it."""

    file_bytes: int = 2 * GIB
    """Largest file it may write (RLIMIT_FSIZE); compiled caches are far smaller."""
    open_files: int = 4096
    processes: int = 4096
    """RLIMIT_NPROC: threads and processes of this user, counted over the machine. The kernel exempts root."""


def apply(limits: Limits) -> tuple[str, ...]:
    """Set them, hard and soft, on the calling process; returns notes on those that cannot bind here."""
    notes = []
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_RTPRIO": 0,
        "RLIMIT_NICE": 0,
    }
    for name, value in wanted.items():
        which = getattr(resource, name)
        _, hard = resource.getrlimit(which)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(which, (bound, bound))
        except (OSError, ValueError) as error:
            notes.append(f"{name} not set: {error}")
    if os.getuid() == 0:
        notes.append("the number of processes is not limited by RLIMIT_NPROC, which the kernel does not apply to root")
    return tuple(notes)


def prefer_for_oom(score: int = 1000) -> bool:
    """Make this process the first to be ended when memory runs out. With privilege, it cannot be lowered again."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        return False
    return True


@dataclass
class ControlGroup:
    """One control group holding a worker's tree, made by :func:`control_group`; `close` kills what is in it."""

    directories: tuple[str, ...]
    limits: dict[str, int] = field(default_factory=dict)
    """What is limited: "processes" and perhaps "memory_bytes"."""

    def add(self, pid: int) -> None:
        """Move the process `pid` (and all it starts from now on) into the group. Raises OSError."""
        for directory in self.directories:
            _write(os.path.join(directory, "cgroup.procs"), str(pid))

    def members(self) -> list[int]:
        """The processes in the group now."""
        with open(os.path.join(self.directories[0], "cgroup.procs"), encoding="ascii") as file:
            return [int(line) for line in file]

    def kill(self, patience_s: float = 5.0) -> bool:
        """Kill until nothing is left; True if nothing is left within `patience_s`."""
        deadline = time.monotonic() + patience_s
        while True:
            members = self.members()
            if not members:
                return True
            with contextlib.suppress(OSError):
                _write(os.path.join(self.directories[0], "cgroup.kill"), "1")
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)

    def close(self) -> bool:
        """Kill what is left and remove the group; False if something would not go."""
        emptied = self.kill()
        for directory in self.directories:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        return emptied


def control_group(name: str, processes: int = 4096, memory_bytes: int | None = None) -> ControlGroup | str:
    """A new group for at most `processes` threads and `memory_bytes`, or the reason why there is none.

    Needs a writable cgroup v2 with the pids controller (memory too if asked for), or, for processes alone, a writable
    v1 pids hierarchy. Containers usually lend neither; then the deadline and the kernel's OOM killer are what is left.
    """
    reasons = []
    places = _own_groups()
    if "" in places:
        made = _version_2(places[""], name, processes, memory_bytes)
        if isinstance(made, ControlGroup):
            return made
        reasons.append(made)
    if "pids" in places:
        made = _version_1(places["pids"], name, processes)
        if isinstance(made, ControlGroup):
            return made
        reasons.append(made)
    return "; ".join(reasons) or "no control groups are mounted"


def _version_2(parent: str, name: str, processes: int, memory_bytes: int | None) -> ControlGroup | str:
    wanted = {"pids.max": processes} | ({"memory.max": memory_bytes} if memory_bytes else {})
    controllers = {file.partition(".")[0] for file in wanted}
    directory = os.path.join(parent, name)
    try:
        offered = set(_read(os.path.join(parent, "cgroup.controllers")).split())
        if not controllers <= offered:
            return f"cgroup v2 at {parent} offers no {' or '.join(sorted(controllers - offered))} controller"
        enabled = set(_read(os.path.join(parent, "cgroup.subtree_control")).split())
        if not controllers <= enabled:
            _write(os.path.join(parent, "cgroup.subtree_control"), " ".join(f"+{each}" for each in controllers))
        os.mkdir(directory)
    except OSError as error:
        return f"cgroup v2 at {parent}: {error.strerror}"
    return _filled(directory, {key: value for key, value in wanted.items() if value is not None})


def _version_1(parent: str, name: str, processes: int) -> ControlGroup | str:
    directory = os.path.join(parent, name)
    try:
        os.mkdir(directory)
    except OSError as error:
        return f"cgroup v1 at {parent}: {error.strerror}"
    return _filled(directory, {"pids.max": processes})


def _filled(directory: str, wanted: dict[str, int]) -> ControlGroup | str:
    names = {"pids.max": "processes", "memory.max": "memory_bytes"}
    try:
        for file, value in wanted.items():
            _write(os.path.join(directory, file), str(value))
    except OSError as error:
        with contextlib.suppress(OSError):
            os.rmdir(directory)
        return f"{directory}: {error.strerror}"
    return ControlGroup((directory,), {names[file]: value for file, value in wanted.items()})


def _own_groups() -> dict[str, str]:
    """Controller -> directory of this process's own group; "" is cgroup v2."""
    mounts: dict[str, tuple[str, str]] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            left, right = before.split(), after.split()
            if right and right[0] == "cgroup2":
                mounts[""] = (left[3], left[4])
            elif right and right[0] == "cgroup":
                for controller in right[-1].split(","):
                    mounts[controller] = (left[3], left[4])
    found = {}
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                if controller in mounts:
                    root, mounted = mounts[controller]
                    inside = os.path.relpath(path, root) if path.startswith(root) else "."
                    found[controller] = os.path.normpath(os.path.join(mounted, inside))
    return found


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
