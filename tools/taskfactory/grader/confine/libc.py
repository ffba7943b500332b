"""The few system calls that Python's standard library has no wrapper for."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from .syscalls import machine

PR_SET_PDEATHSIG = 1
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47

_libc: Any = None


def _library() -> Any:
    global _libc
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
        _libc.syscall.restype = ctypes.c_long
    return _libc


def syscall(name: str | int, *arguments: object) -> int:
    """Make one system call by name (or number); raises OSError with its errno.

    Integers are passed as 64-bit words, bytes and ctypes objects as pointers.
    """
    if isinstance(name, str):
        here = machine()
        if here is None or name not in here.numbers:
            raise OSError(38, f"no number known for {name}")
        number = here.numbers[name]
    else:
        number = name
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    words += [ctypes.c_long(0)] * (6 - len(words))
    answer = int(_library().syscall(ctypes.c_long(number), *words))
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(name))
    return answer


def prctl(option: int, *arguments: int) -> int:
    """``prctl(2)``; raises OSError."""
    return syscall("prctl", option, *arguments)
