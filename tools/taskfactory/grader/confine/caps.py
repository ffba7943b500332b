"""Privileges: capabilities, the bounding set, securebits, no_new_privs.

A process whose user is root keeps the file ownership of root without them, which is why Landlock and seccomp are
needed as well; but it can no longer mount, load, trace, override modes, or regain anything by executing a program.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass

from . import libc

_VERSION_3 = 0x20080522
# SECBIT_NOROOT, NO_SETUID_FIXUP, KEEP_CAPS (off), NO_CAP_AMBIENT_RAISE, with their locks.
_SECUREBITS = 0b11101111
_CLEAR_ALL_AMBIENT = 4


@dataclass(frozen=True)
class Held:
    """The capability masks of the calling thread, as in /proc/self/status."""

    effective: int
    permitted: int
    inheritable: int
    bounding: int

    @property
    def none_usable(self) -> bool:
        return not (self.effective or self.permitted or self.inheritable)


def no_new_privileges() -> bool:
    """Set no_new_privs: no setuid bit or file capability has any effect from here on. True if it holds."""
    try:
        libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return libc.prctl(libc.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1
    except OSError:
        return False


def drop_all() -> Held:
    """Give up every capability that can be given up, and return what is left (bits set = still held).

    An ordinary user cannot empty the bounding set; with no_new_privs it is a limit on nothing, and the result says so.
    """
    with contextlib.suppress(OSError):  # needs CAP_SETPCAP; without it nothing could be regained anyway
        libc.prctl(libc.PR_SET_SECUREBITS, _SECUREBITS)
    for capability in range(64):
        try:
            libc.prctl(libc.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == 22:  # beyond the last one this kernel knows
                break
    with contextlib.suppress(OSError):  # what remains is read back below and reported
        libc.prctl(libc.PR_CAP_AMBIENT, _CLEAR_ALL_AMBIENT, 0, 0, 0)
        libc.syscall("capset", struct.pack("<Ii", _VERSION_3, 0), bytes(24))
    return held()


def held() -> Held:
    """What the calling thread has now."""
    masks = {}
    with open("/proc/thread-self/status", encoding="ascii") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name.startswith("Cap"):
                masks[name] = int(value, 16)
    return Held(masks["CapEff"], masks["CapPrm"], masks["CapInh"], masks["CapBnd"])
