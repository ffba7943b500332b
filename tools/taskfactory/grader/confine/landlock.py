"""Landlock: what the process may do with files, TCP ports, signals and abstract sockets, decided by the kernel.

A ruleset handles every right the running ABI knows; what no rule grants is refused, for the process and everything it
starts, for good. Unlike file modes it also binds a process whose user is root. Two protections come with it: a process
inside may not ptrace one outside (nor read its ``/proc/<pid>/mem``, ``environ``, ``maps`` or ``fd``), and it may not
change mounts.

What Landlock does not see, and seccomp therefore has to refuse: chmod, chown, utime, extended attributes, pathname
sockets. ``stat``, ``chdir`` and ``readlink`` stay possible everywhere.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .libc import syscall

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE = 1 << 4, 1 << 5
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

READ = READ_FILE | READ_DIR
"""Read files and list directories."""
READ_EXECUTE = READ | EXECUTE
WRITE = WRITE_FILE | TRUNCATE
DEVICE = READ | WRITE | IOCTL_DEV
"""Everything a device node needs: open for both, ioctl."""
PRIVATE = READ_EXECUTE | WRITE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_FIFO | MAKE_SYM | REFER
"""All that ordinary programs do in a directory of their own: no device nodes, no sockets."""

_FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_NET = 0b11  # bind and connect over TCP
_SCOPES = {"abstract_sockets": 1 << 0, "signals": 1 << 1}
_QUERY_VERSION = 1
_RULE_PATH = 1


@dataclass(frozen=True)
class Grant:
    """`rights` for `path` and everything below it."""

    path: str
    rights: int


@dataclass(frozen=True)
class Applied:
    """What the kernel took: `abi` 0 means no Landlock at all, and then nothing else is set."""

    abi: int
    files: bool
    truncate: bool
    device_ioctl: bool
    tcp: bool
    scopes: tuple[str, ...]
    skipped: tuple[str, ...]
    """Granted paths that do not exist here."""


def abi() -> int:
    """The Landlock ABI of the running kernel, 0 where it has none or refuses to say."""
    try:
        return syscall("landlock_create_ruleset", 0, 0, _QUERY_VERSION)
    except OSError:
        return 0


def handled_rights(version: int) -> int:
    """All file-system rights that ABI `version` knows."""
    bits = 13 + (version >= 2) + (version >= 3) + (version >= 5)
    return int((1 << bits) - 1)


def restrict(grants: Sequence[Grant]) -> Applied:
    """Confine the calling thread to `grants`; no_new_privs must be set. Raises OSError if the kernel refuses halfway.

    Threads that exist already stay free, so call this while the process has only one.
    """
    version = abi()
    if version == 0:
        return Applied(0, False, False, False, False, (), ())
    handled = handled_rights(version)
    attributes = [handled]
    if version >= 4:
        attributes.append(_NET)
    if version >= 6:
        attributes.append(sum(_SCOPES.values()))
    packed = struct.pack(f"<{len(attributes)}Q", *attributes)
    ruleset = syscall("landlock_create_ruleset", packed, len(packed), 0)
    skipped = []
    try:
        for grant in grants:
            if not _add(ruleset, grant, handled):
                skipped.append(grant.path)
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return Applied(
        abi=version,
        files=True,
        truncate=version >= 3,
        device_ioctl=version >= 5,
        tcp=version >= 4,
        scopes=tuple(_SCOPES) if version >= 6 else (),
        skipped=tuple(skipped),
    )


def _add(ruleset: int, grant: Grant, handled: int) -> bool:
    """Add one rule; False where the path does not exist or cannot be reached."""
    try:
        where = os.open(grant.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        rights = grant.rights & handled
        if not stat.S_ISDIR(os.fstat(where).st_mode):
            rights &= _FOR_FILES
        if rights:
            syscall("landlock_add_rule", ruleset, _RULE_PATH, struct.pack("<Qi", rights, where), 0)
        return True
    finally:
        os.close(where)
