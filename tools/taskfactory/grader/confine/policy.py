"""What the worker may see: its environment, and the files and devices granted to it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from .landlock import DEVICE, PRIVATE, READ, READ_DIR, READ_EXECUTE, READ_FILE, WRITE, Grant

_PROGRAM_DIRECTORIES = (
    "/usr/local/cuda/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
)  # fmt: skip
_PROGRAM_ROOTS = ("/usr/", "/opt/")

_PASSED_ON = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "TRITON_INTERPRET")

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# Of /etc only what loaders, name lookups and compilers read: a worker whose user is root could otherwise read shadow.
_ETC = (
    "alternatives", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
    "nsswitch.conf", "nvidia", "OpenCL", "os-release", "passwd", "timezone", "vulkan",
)  # fmt: skip
# Of /proc what describes the machine. Not kcore, kmsg, kallsyms, keys, sysrq-trigger, nor interrupts (which tell when
# the GPU works for somebody), and no process but our own.
_PROC = (
    "cpuinfo", "devices", "driver", "filesystems", "loadavg", "meminfo", "misc", "modules", "stat", "sys", "uptime",
    "version",
)  # fmt: skip
# Of /sys the devices and modules. Not control groups (whose statistics are those of others), debugfs or tracefs.
_SYS = (
    "block", "bus", "class", "dev", "devices", "firmware/devicetree", "hypervisor", "kernel/iommu_groups", "kernel/mm",
    "module",
)  # fmt: skip
_DEVICES_READ = ("/dev/random", "/dev/urandom")
_DEVICES = ("/dev/full", "/dev/null", "/dev/zero")
_NVIDIA_SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_NVIDIA_DIRECTORIES = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")


def worker_environment(scratch: str, base: Mapping[str, str]) -> dict[str, str]:
    """The worker's whole environment, from an allow-list; `base` is usually ``os.environ``.

    Caches and temporary files go below `scratch` (absolute, private to this grading, empty before it). Search paths
    keep only system directories that nobody but their owner (root or this user) can write. Nothing else of `base`
    gets through: no ``PYTHON*``, no ``LD_PRELOAD``, no tokens.
    """
    where = os.path.abspath(scratch)
    environment = {name: base[name] for name in _PASSED_ON if name in base}
    environment |= {
        "PATH": os.pathsep.join(program_directories(base.get("PATH", ""))),
        "HOME": where,
        "TMPDIR": os.path.join(where, "tmp"),
        "XDG_CACHE_HOME": os.path.join(where, "cache"),
        "TRITON_HOME": where,
        "TRITON_CACHE_DIR": os.path.join(where, "triton"),
        "CUDA_CACHE_PATH": os.path.join(where, "cuda"),
        # An empty directory of our own: a daemon of somebody else's would be a way out, and a way to be slowed down.
        "CUDA_MPS_PIPE_DIRECTORY": os.path.join(where, "mps"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(where, "inductor"),
        # Compile in this process: the pool of processes needs semaphores in /dev/shm, which is not granted.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": os.path.join(where, "extensions"),
        "LANG": "C.UTF-8",
        "USER": "worker",
    }
    libraries = library_directories(base)
    if libraries:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    return environment


def prepare_scratch(scratch: str) -> None:
    """Make the directories that :func:`worker_environment` names; call it before the worker starts."""
    for name in ("tmp", "cache", "triton", "cuda", "mps", "inductor", "extensions"):
        os.makedirs(os.path.join(scratch, name), mode=0o700, exist_ok=True)


def remove_scratch(scratch: str) -> bool:
    """Delete a scratch that a submission has had; True if it is gone. Call it when the worker's tree is dead.

    The system's own tools, because a hostile tree may be deeper than Python recurses and have directories without
    permissions; neither tool follows links.
    """
    for command in (["chmod", "-R", "u+rwX", "--", scratch], ["rm", "-rf", "--one-file-system", "--", scratch]):
        environment = {"PATH": "/usr/bin:/bin"}
        subprocess.run(command, check=False, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return not os.path.lexists(scratch)


def program_directories(search_path: str) -> list[str]:
    """The system's directories of programs, then those of `search_path` below /usr or /opt that are well kept."""
    chosen = [directory for directory in _PROGRAM_DIRECTORIES if os.path.isdir(directory)]
    for entry in search_path.split(os.pathsep):
        directory = os.path.realpath(entry) if os.path.isabs(entry) else ""
        if directory.startswith(_PROGRAM_ROOTS) and directory not in chosen and _well_kept(directory):
            chosen.append(directory)
    return chosen


def library_directories(environment: Mapping[str, str]) -> list[str]:
    """The directories of LD_LIBRARY_PATH that are absolute, exist and are well kept."""
    entries = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return [entry for entry in dict.fromkeys(entries) if os.path.isabs(entry) and _well_kept(entry)]


def _well_kept(directory: str) -> bool:
    """A directory of root's or ours which no one else may write."""
    try:
        facts = os.stat(directory)
    except OSError:
        return False
    owned = facts.st_uid in (0, os.geteuid())
    return stat.S_ISDIR(facts.st_mode) and owned and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def interpreter_readable() -> list[str]:
    """Where the running Python and its packages live: pass these to :func:`enter` as readable."""
    places = [sys.base_prefix, sys.prefix, sys.base_exec_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    places += [entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")]
    kept = sorted({os.path.realpath(place) for place in places if place and os.path.isdir(place)})
    return [place for place in kept if not place.startswith("/usr/") and place not in ("/", "/usr")]


def nvidia_devices(minors: Sequence[int] | None = None) -> list[str]:
    """The nodes that CUDA needs: the shared ones and those of the GPUs with these `minors` (None: every GPU here)."""
    nodes = [node for node in _NVIDIA_SHARED if os.path.exists(node)]
    nodes += [node for node in _NVIDIA_DIRECTORIES if os.path.isdir(node)]
    if minors is None:
        minors = sorted(int(name[6:]) for name in os.listdir("/dev") if name[:6] == "nvidia" and name[6:].isdigit())
    return nodes + [f"/dev/nvidia{minor}" for minor in minors]


def nvidia_minor(identity: str) -> int | None:
    """The device minor of the GPU with this UUID or PCI bus id (``0000:19:00.0``), from /proc/driver/nvidia."""
    root = "/proc/driver/nvidia/gpus"
    wanted = identity.lower()
    for bus in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        facts = {}
        with open(os.path.join(root, bus, "information"), encoding="utf-8", errors="replace") as information:
            for line in information:
                name, _, value = line.partition(":")
                facts[name.strip()] = value.strip()
        if wanted in (bus.lower(), facts.get("GPU UUID", "").lower()) and facts.get("Device Minor", "").isdigit():
            return int(facts["Device Minor"])
    return None


def grants(
    scratch: str,
    readable: Sequence[str],
    devices: Sequence[str],
    *,
    hidden: Sequence[str] = (),
    wide_proc: bool = False,
) -> list[Grant]:
    """The whole of what a worker may reach, most general first.

    `readable` may be read and executed; `scratch` is its own; `devices` may be opened, written and controlled (a
    directory such as /dev/nvidia-caps stands for what is in it; /dev/shm may be named, gives shared memory files, and
    costs the tier "confined"). In /proc it may read what describes the machine and its own directory, and write below
    its own ``task`` directory only (CUDA names its threads there). Processes it starts cannot read their own /proc
    directories; `wide_proc` grants reading all of /proc, which also shows the command lines and states of others.

    Nothing below a `hidden` path is granted: what lies above one is granted piece by piece instead. Names of hidden
    files can still be listed, since a right to list a directory holds for all below it.

    Raises ValueError for a path that would open everything ("/", "/proc", "/dev", "/tmp" itself and the like).
    """
    for path in (scratch, *readable, *devices):
        if os.path.realpath(path) in ("/", "/proc", "/sys", "/dev", "/etc", "/home", "/root", "/tmp", "/var", "/run"):
            raise ValueError(f"{path} is too much to grant to a worker")
    own = f"/proc/{os.getpid()}"
    result = [Grant(path, READ_EXECUTE) for path in _SYSTEM if os.path.exists(path)]
    result += [Grant(os.path.join("/etc", name), READ) for name in _ETC if os.path.exists(os.path.join("/etc", name))]
    result += [Grant("/proc", READ)] if wide_proc else _present("/proc", _PROC)
    result += _present("/sys", _SYS)
    result += [Grant(own, READ), Grant(f"{own}/task", READ | WRITE)]
    result += [Grant(path, READ_FILE) for path in _DEVICES_READ]
    result += [Grant(path, PRIVATE if path == "/dev/shm" else DEVICE) for path in (*_DEVICES, *devices)]
    result += [Grant(path, READ_EXECUTE) for path in readable]
    result.append(Grant(scratch, PRIVATE))
    secrets = [os.path.realpath(path) for path in hidden]
    return [piece for grant in result for piece in _around(grant, secrets)]


def _around(grant: Grant, hidden: Sequence[str]) -> Iterator[Grant]:
    """A grant, or the pieces of it that leave out what is hidden below it."""
    path = os.path.realpath(grant.path)
    if path in hidden:
        return
    if not any(secret.startswith(path.rstrip("/") + "/") for secret in hidden):
        yield grant
        return
    yield Grant(grant.path, grant.rights & READ_DIR)
    with os.scandir(path) as entries:
        for entry in entries:
            if not entry.is_symlink():  # what it points to is granted for itself, or is not
                yield from _around(Grant(entry.path, grant.rights), hidden)


def _present(root: str, names: Sequence[str]) -> list[Grant]:
    paths = [os.path.join(root, name) for name in names]
    return [Grant(path, READ) for path in paths if os.path.exists(path)]
