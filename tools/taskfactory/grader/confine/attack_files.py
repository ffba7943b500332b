"""Attacks on files outside the scratch, on inherited descriptors and on the sealed page."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Callable

from .attack_process import Attack, Blocked
from .target import Target


def _read(name: str) -> Attack:
    def attack(target: Target) -> object:
        with open(getattr(target, name), "rb") as file:
            return file.read()

    return attack


def _open(path: str, flags: int) -> Attack:
    return lambda target: os.open(path, flags)


def _write(target: Target) -> object:
    with open(target.result_file, "a", encoding="ascii") as file:
        return file.write("forged")


def _create(target: Target) -> object:
    return os.open(os.path.join(target.results, "reward.json"), os.O_CREAT | os.O_WRONLY)


def _replace(target: Target) -> None:
    mine = os.path.join(target.scratch, "forged")
    with open(mine, "w", encoding="ascii") as file:
        file.write("forged")
    os.replace(mine, os.path.join(target.results, "replaced"))


def _link_out(target: Target) -> None:
    os.link(target.hidden_file, os.path.join(target.scratch, "stolen"))


def _symlink_read(target: Target) -> object:
    link = os.path.join(target.scratch, f"link-{os.getpid()}")
    os.symlink(target.hidden_file, link)
    with open(link, "rb") as file:
        return file.read()


def _through(target: Target, change: Callable[[str], object], look: Callable[[os.stat_result], object]) -> object:
    """Make a change that may be pretended, and see whether it took place."""
    before = look(os.stat(target.result_file))
    change(target.result_file)
    if look(os.stat(target.result_file)) == before:
        raise Blocked(1, "nothing changed")
    return None


def _chmod(target: Target) -> object:
    return _through(target, lambda path: os.chmod(path, 0o604), lambda facts: stat.S_IMODE(facts.st_mode))


def _by_descriptor(change: Callable[[int], object]) -> Attack:
    """Through a descriptor of a file that may be read, and that this user owns."""

    def attack(target: Target) -> object:
        descriptor = os.open(target.public_file, os.O_RDONLY)
        before = os.fstat(descriptor).st_ctime_ns
        change(descriptor)
        if os.fstat(descriptor).st_ctime_ns == before:
            raise Blocked(1, "nothing changed")
        return None

    return attack


def _file_flags(descriptor: int) -> None:
    """FS_IOC_SETFLAGS: the owner may mark a file "not to be dumped" through a descriptor open for reading."""
    flags = struct.unpack("<q", fcntl.ioctl(descriptor, 0x80086601, bytes(8)))[0]
    fcntl.ioctl(descriptor, 0x40086602, struct.pack("<q", flags | 0x40))


def _chown(target: Target) -> object:
    # To ourselves, which needs no privilege: only the time of change tells whether it was done.
    return _through(target, lambda path: os.chown(path, os.getuid(), os.getgid()), lambda facts: facts.st_ctime_ns)


def _utime(target: Target) -> object:
    return _through(target, lambda path: os.utime(path, (1, 1)), lambda facts: facts.st_mtime_ns)


def _setxattr(target: Target) -> None:
    os.setxattr(target.result_file, "user.owned", b"1")


def _flock(target: Target) -> None:
    fcntl.flock(os.open(target.result_file, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _inherited(target: Target) -> object:
    """Search every descriptor for the secret."""
    for descriptor in range(3, 256):
        try:
            if target.secret.encode() in os.pread(descriptor, 4096, 0):
                return descriptor
        except OSError:
            continue
    raise Blocked(9, "no descriptor holds it")


def _environment(target: Target) -> object:
    """The secret is set in the supervisor's environment under the name of a token."""
    if target.secret in os.environ.values():
        return None
    raise Blocked(2, "not in the environment")


def _go_truncate(target: Target) -> None:
    os.ftruncate(target.go_descriptor, 0)


def _go_write(target: Target) -> object:
    return os.pwrite(target.go_descriptor, b"forged", 0)


def _go_map(target: Target) -> object:
    return mmap.mmap(target.go_descriptor, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def _go_reopen(target: Target) -> object:
    again = os.open(f"/proc/self/fd/{target.go_descriptor}", os.O_RDWR)
    return os.pwrite(again, b"forged", 0)


def _go_seal(target: Target) -> object:
    return fcntl.fcntl(target.go_descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def _shm(target: Target) -> None:
    path = f"/dev/shm/confine-probe-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    os.unlink(path)


def _shared_tmp(target: Target) -> None:
    path = f"/tmp/confine-probe-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    os.unlink(path)


def _rewrite(path: str) -> Attack:
    """Open a setting of the kernel for writing and write its present value back."""

    def attack(target: Target) -> object:
        descriptor = os.open(path, os.O_RDWR)
        return os.pwrite(descriptor, os.pread(descriptor, 4096, 0), 0)

    return attack


def _foreign_group(target: Target) -> object:
    """Join the root control group, where no limit of ours holds."""
    for path in ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/pids/cgroup.procs"):
        if os.path.exists(path):
            return os.write(os.open(path, os.O_WRONLY), b"0")
    raise Blocked(2, "no control groups here")


def _disk(target: Target) -> object:
    for name in sorted(os.listdir("/sys/class/block")):
        if os.path.exists(f"/dev/{name}"):
            return os.open(f"/dev/{name}", os.O_RDONLY)
    raise Blocked(2, "no disk here")


VERDICT: dict[str, Attack] = {
    "hidden_read": _read("hidden_file"),
    "hidden_list": lambda target: os.listdir(target.hidden),
    "hidden_link": _link_out,
    "hidden_symlink": _symlink_read,
    "result_read": _read("result_file"),
    "result_write": _write,
    "result_create": _create,
    "result_replace": _replace,
    "result_unlink": lambda target: os.unlink(os.path.join(target.results, "spare")),
    "result_rename": lambda target: os.rename(os.path.join(target.results, "renamed"), target.result_file + ".new"),
    "result_truncate": lambda target: os.truncate(os.path.join(target.results, "truncated"), 0),
    "result_mkdir": lambda target: os.mkdir(os.path.join(target.results, "directory")),
    "result_symlink": lambda target: os.symlink("/etc/passwd", os.path.join(target.results, "symlink")),
    "inherited_descriptor": _inherited,
    "inherited_environment": _environment,
    "go_truncate": _go_truncate,
    "go_write": _go_write,
    "go_map_writable": _go_map,
    "go_reopen": _go_reopen,
    "go_seal": _go_seal,
    "core_pattern": _rewrite("/proc/sys/kernel/core_pattern"),
    "modprobe_path": _rewrite("/proc/sys/kernel/modprobe"),
    "proc_sys_write": _rewrite("/proc/sys/vm/swappiness"),
    "sysrq_trigger": _open("/proc/sysrq-trigger", os.O_WRONLY),
    "system_write": _open("/usr/bin/env", os.O_WRONLY),
    "shadow_read": _open("/etc/shadow", os.O_RDONLY),
    "dev_mem": _open("/dev/mem", os.O_RDONLY),
    "disk_read": _disk,
    "kcore": _open("/proc/kcore", os.O_RDONLY),
}

DISTURB: dict[str, Attack] = {
    "chmod": _chmod,
    "fchmod": _by_descriptor(lambda descriptor: os.fchmod(descriptor, 0o604)),
    "fchown": _by_descriptor(lambda descriptor: os.fchown(descriptor, os.getuid(), os.getgid())),
    "futimens": _by_descriptor(lambda descriptor: os.utime(descriptor, (2, 2))),
    "fsetxattr": _by_descriptor(lambda descriptor: os.setxattr(descriptor, "user.owned", b"1")),
    "file_flags": _by_descriptor(_file_flags),
    "public_write": lambda target: os.open(target.public_file, os.O_WRONLY),
    "chown": _chown,
    "utime": _utime,
    "setxattr": _setxattr,
    "flock": _flock,
    "dev_shm": _shm,
    "shared_tmp": _shared_tmp,
    "cgroup_escape": _foreign_group,
    "kmsg": _open("/dev/kmsg", os.O_RDONLY),
    "tty": _open("/dev/tty", os.O_RDWR),
    "ptmx": _open("/dev/ptmx", os.O_RDWR),
}

OBSERVE: dict[str, Attack] = {
    "hidden_stat": lambda target: os.stat(target.hidden_file),
    "hidden_chdir": lambda target: os.chdir(target.hidden),
    "public_flock": lambda target: fcntl.flock(os.open(target.public_file, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB),
}
"""Neither Landlock nor seccomp can refuse these: sizes, times and guessed names of files outside are visible without
namespaces, and whatever may be read may be locked. They are recorded, and do not lower the tier."""
