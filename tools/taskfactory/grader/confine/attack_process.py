"""Attacks on the trusted process: its memory, descriptors, signals, schedule and limits."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Callable

from . import libc
from .target import Target

Attack = Callable[[Target], object]
"""Returns if it succeeded; raises OSError (or PermissionError) if it was blocked."""


class Blocked(OSError):
    """An attack that found nothing wrong with its call, only with its effect."""


def _iovec(address: int, length: int) -> bytes:
    return struct.pack("<QQ", address, length)


def _word() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(8)


def _proc_read(name: str, length: int = 4096) -> Attack:
    def attack(target: Target) -> object:
        with open(f"/proc/{target.pid}/{name}", "rb", 0) as file:
            return file.read(length)

    return attack


def _proc_write(name: str, text: bytes) -> Attack:
    def attack(target: Target) -> object:
        descriptor = os.open(f"/proc/{target.pid}/{name}", os.O_WRONLY)
        return os.write(descriptor, text)

    return attack


def _memory_file(flags: int) -> Attack:
    def attack(target: Target) -> object:
        descriptor = os.open(f"/proc/{target.pid}/mem", flags)
        if flags == os.O_RDONLY:
            return os.pread(descriptor, 8, target.address)
        return os.pwrite(descriptor, b"X", target.address)

    return attack


def _vm(name: str) -> Attack:
    def attack(target: Target) -> object:
        local = ctypes.create_string_buffer(b"Y", 1)
        here, there = _iovec(ctypes.addressof(local), 1), _iovec(target.address, 1)
        return libc.syscall(name, target.pid, here, 1, there, 1, 0)

    return attack


def _trace(request: int) -> Attack:
    def attack(target: Target) -> object:
        libc.syscall("ptrace", request, target.pid, 0, 0)
        if request == 16:  # ATTACH stops it; SEIZE ends with us
            os.waitpid(target.pid, 0x40000000)
            libc.syscall("ptrace", 17, target.pid, 0, 0)
        return None

    return attack


def _pidfd_getfd(target: Target) -> object:
    return libc.syscall("pidfd_getfd", libc.syscall("pidfd_open", target.pid, 0), target.descriptor, 0)


def _pidfd_signal(target: Target) -> object:
    return libc.syscall("pidfd_send_signal", libc.syscall("pidfd_open", target.pid, 0), 0, 0, 0)


def _descriptor(target: Target) -> object:
    return os.open(f"/proc/{target.pid}/fd/{target.descriptor}", os.O_RDONLY)


def _root_link(target: Target) -> object:
    with open(f"/proc/{target.pid}/root{target.hidden_file}", "rb") as file:
        return file.read()


def _process_madvise(target: Target) -> object:
    pidfd = libc.syscall("pidfd_open", target.pid, 0)
    return libc.syscall("process_madvise", pidfd, _iovec(target.address & ~4095, 4096), 1, 20, 0)


def _move_pages(target: Target) -> object:
    page, status = struct.pack("<Q", target.address & ~4095), ctypes.create_string_buffer(4)
    return libc.syscall("move_pages", target.pid, 1, page, 0, status, 0)


def _migrate_pages(target: Target) -> object:
    nodes = struct.pack("<Q", 1)
    return libc.syscall("migrate_pages", target.pid, 2, nodes, nodes)


def _stop(target: Target) -> None:
    os.kill(target.pid, signal.SIGSTOP)
    os.kill(target.pid, signal.SIGCONT)


def _own_signal_on_descriptor(target: Target) -> object:
    """Have the kernel send SIGUSR1 to the victim when a pipe of ours becomes readable."""
    import fcntl

    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETSIG, signal.SIGUSR1)
    fcntl.fcntl(reading, fcntl.F_SETOWN, target.pid)
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    return os.write(writing, b"x")


def _limit(target: Target) -> object:
    _, hard = resource.prlimit(target.pid, resource.RLIMIT_NOFILE)
    return resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (hard - 1, hard))


def _affinity(target: Target) -> None:
    os.sched_setaffinity(target.pid, {min(os.sched_getaffinity(target.pid))})


def _schedule(target: Target) -> None:
    os.sched_setscheduler(target.pid, os.SCHED_BATCH, os.sched_param(0))


def _sched_setattr(target: Target) -> object:
    return libc.syscall("sched_setattr", target.pid, struct.pack("<IIQiIQQQ", 48, 3, 0, 5, 0, 0, 0, 0), 0)


def _io_priority(target: Target) -> object:
    return libc.syscall("ioprio_set", 1, target.pid, (3 << 13))


VERDICT: dict[str, Attack] = {
    "mem_read": _memory_file(os.O_RDONLY),
    "mem_write": _memory_file(os.O_RDWR),
    "process_vm_readv": _vm("process_vm_readv"),
    "process_vm_writev": _vm("process_vm_writev"),
    "ptrace_attach": _trace(16),
    "ptrace_seize": _trace(0x4206),
    "pidfd_getfd": _pidfd_getfd,
    "proc_fd_open": _descriptor,
    "proc_root": _root_link,
    "proc_environ": _proc_read("environ"),
    "proc_maps": _proc_read("maps"),
    "proc_auxv": _proc_read("auxv"),
    "proc_pagemap": _proc_read("pagemap", 8),
    "proc_stack": _proc_read("stack"),
    "process_madvise": _process_madvise,
}
"""Whoever can do one of these can read what is hidden or change a verdict."""

DISTURB: dict[str, Attack] = {
    "kill_0": lambda target: os.kill(target.pid, 0),
    "kill_usr1": lambda target: os.kill(target.pid, signal.SIGUSR1),
    "kill_stop": _stop,
    "tgkill": lambda target: libc.syscall("tgkill", target.pid, target.pid, signal.SIGUSR1),
    "tkill": lambda target: libc.syscall("tkill", target.pid, signal.SIGUSR1),
    "sigqueue": lambda target: libc.syscall("rt_sigqueueinfo", target.pid, 10, struct.pack("<iii116x", 10, 0, -1)),
    "pidfd_send_signal": _pidfd_signal,
    "fcntl_setown": _own_signal_on_descriptor,
    "proc_cmdline": _proc_read("cmdline"),
    "proc_stat": _proc_read("stat"),
    "proc_status": _proc_read("status"),
    "proc_schedstat": _proc_read("schedstat"),
    "proc_fd_list": lambda target: os.listdir(f"/proc/{target.pid}/fd"),
    "proc_list": lambda target: os.listdir("/proc"),
    "proc_comm_write": _proc_write("comm", b"owned\n"),
    "proc_oom_score_adj": _proc_write("oom_score_adj", b"1000"),
    "proc_coredump_filter": _proc_write("coredump_filter", b"0x33"),
    "proc_clear_refs": _proc_write("clear_refs", b"1"),
    "proc_timerslack": _proc_write("timerslack_ns", b"1000000000"),
    "sched_setaffinity": _affinity,
    "sched_setscheduler": _schedule,
    "sched_setattr": _sched_setattr,
    "setpriority": lambda target: os.setpriority(os.PRIO_PROCESS, target.pid, 5),
    "setpriority_group": lambda target: os.setpriority(os.PRIO_PGRP, target.pid, 6),
    "ioprio_set": _io_priority,
    "prlimit_get": lambda target: resource.prlimit(target.pid, resource.RLIMIT_NOFILE),
    "prlimit_set": _limit,
    "move_pages": _move_pages,
    "migrate_pages": _migrate_pages,
    "kcmp": lambda target: libc.syscall("kcmp", os.getpid(), target.pid, 1, 0, 0),
    "get_robust_list": lambda target: libc.syscall("get_robust_list", target.pid, _word(), _word()),
}
"""These stop, slow or observe it."""
