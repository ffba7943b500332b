"""The allow-list of system calls, and its installation.

Two filters. The first goes in before anything untrusted or large is imported; the second, :func:`seal_rules`, when the
start-up is over (CUDA initialised, buffers mapped), just before the submission is imported. A call is made only if both
allow it, and no filter can be taken off again.

Anything not named here is refused. Names that an architecture or an old kernel does not know are skipped.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from . import libc
from .bpf import Rule, Ruleset, Test, assemble
from .syscalls import Machine, machine

_FILES = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat openat2 creat close close_range
stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getcwd chdir fchdir lseek dup dup2
dup3 pipe pipe2 getdents getdents64 rename renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat symlink
symlinkat truncate ftruncate fallocate fadvise64 readahead fsync fdatasync sync_file_range statfs fstatfs umask flock
sendfile copy_file_range getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr memfd_create
"""
_MEMORY = """
brk mmap munmap mremap mprotect madvise msync mincore mlock mlock2 munlock mlockall munlockall membarrier mbind
set_mempolicy get_mempolicy set_mempolicy_home_node pkey_alloc pkey_free pkey_mprotect mseal map_shadow_stack
"""
_WAITING = """
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2
timerfd_create timerfd_settime timerfd_gettime signalfd signalfd4 nanosleep clock_nanosleep pause
futex futex_waitv futex_wake futex_wait futex_requeue set_robust_list sched_yield restart_syscall
"""
_PROCESSES = """
fork vfork execve exit exit_group wait4 waitid set_tid_address rseq arch_prctl getpid getppid gettid
getpgid getpgrp getsid setsid setpgid getuid geteuid getgid getegid getresuid getresgid getgroups getrusage times
getrlimit setrlimit getpriority ioprio_get sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_get_priority_max sched_get_priority_min sched_rr_get_interval getcpu capget
"""
_SIGNALS = """
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack
alarm setitimer getitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete
"""
_FACTS = "uname sysinfo getrandom time gettimeofday clock_gettime clock_getres"
# A connected stream pair: Python's and CUDA's own plumbing. Addresses play no part in any of these.
_CONNECTED = """
sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown getsockopt setsockopt getsockname getpeername accept accept4
"""

_PRETENDED = """
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat
"""
"""Answered with success and not done. Landlock does not see these calls and seccomp cannot see their paths, so they
must not be done anywhere; but linkers and copy functions make them on their own files as a matter of course."""

_ABSENT = """
clone3 pidfd_open pidfd_getfd pidfd_send_signal io_uring_setup io_uring_enter io_uring_register splice tee vmsplice
inotify_init inotify_init1 memfd_secret userfaultfd cachestat
"""
"""Answered with ENOSYS, upon which callers fall back. For clone3 it is the only right answer: its flags are behind a
pointer, and the C library then uses clone, whose flags the filter can read."""

_UNSUPPORTED = "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr setxattrat removexattrat"
"""Answered with ENOTSUP, as by a file system without extended attributes."""

_NEW_NAMESPACES = 0x7E020000
_CLONE_PTRACE, _CLONE_PARENT, _CLONE_UNTRACED = 0x2000, 0x8000, 0x800000
_FORBIDDEN_CLONE = _NEW_NAMESPACES | _CLONE_PTRACE | _CLONE_PARENT | _CLONE_UNTRACED

# F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY: signals for others, and leases on files of others.
_FORBIDDEN_FCNTL = frozenset({8, 10, 15, 1024, 1026})
# FIOSETOWN, SIOCSPGRP (signals for others), TIOCSTI, TIOCLINUX (typing into the terminal).
_FORBIDDEN_IOCTL = frozenset({0x8901, 0x8902, 0x5412, 0x541C})
# Groups of ioctl (second byte) that change what a file is, for which a descriptor open for reading is enough: "f" and
# "X" (flags, verity, encryption, project), "v" (generation), 0x94 (extents shared between files).
_FORBIDDEN_IOCTL_GROUPS = frozenset({0x6600, 0x5800, 0x7600, 0x9400})
# PDEATHSIG, DUMPABLE, NAME, TIMERSLACK, THP (set and get), CAPBSET_READ, GET_SECCOMP, SECUREBITS (get), NO_NEW_PRIVS,
# SET_VMA (names of memory areas).
_PRCTL = frozenset({1, 2, 3, 4, 15, 16, 21, 23, 27, 29, 30, 38, 39, 41, 42, 0x53564D41})
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF

_SET_MODE_FILTER = 1
_FLAG_TSYNC, _FLAG_SPEC_ALLOW, _FLAG_NEW_LISTENER = 1, 4, 8


def _named(here: Machine, names: str) -> Iterable[int]:
    return (here.numbers[name] for name in names.split() if name in here.numbers)


def _one(argument: int, *values: int) -> tuple[Test, ...]:
    return (Test(argument, frozenset(value & 0xFFFFFFFF for value in values)),)


def seal_rules(here: Machine, pid: int, signals_scoped: bool) -> Ruleset:
    """What the submission may call.

    `pid` is the worker's own: where a call takes a process, 0 and `pid` are the only ones accepted. With
    `signals_scoped` Landlock decides who may be signalled; without it only the worker's own process may be.
    """
    rules: dict[int, Rule] = {}
    for names in (_FILES, _MEMORY, _WAITING, _PROCESSES, _SIGNALS, _FACTS, _CONNECTED):
        rules.update(dict.fromkeys(_named(here, names), Rule()))
    rules.update(dict.fromkeys(_named(here, _PRETENDED), Rule((), 0)))
    rules.update(dict.fromkeys(_named(here, _ABSENT), Rule((), errno.ENOSYS)))
    rules.update(dict.fromkeys(_named(here, _UNSUPPORTED), Rule((), errno.ENOTSUP)))

    def only(name: str, *alternatives: tuple[Test, ...]) -> None:
        if name in here.numbers:
            rules[here.numbers[name]] = Rule(alternatives, errno.EPERM)

    only("clone", (Test(0, frozenset({0}), mask=_FORBIDDEN_CLONE),))
    only("fcntl", (Test(1, _FORBIDDEN_FCNTL, member=False),))
    only(
        "ioctl",
        (
            Test(1, _FORBIDDEN_IOCTL, member=False),
            Test(1, _FORBIDDEN_IOCTL_GROUPS, member=False, mask=0xFF00),
        ),
    )
    only("prctl", _one(0, *_PRCTL))
    only("personality", _one(0, 0xFFFFFFFF, 0))
    only("socketpair", (*_one(0, _AF_UNIX), Test(1, frozenset({_SOCK_STREAM}), mask=_SOCK_TYPE_MASK)))
    for name in ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        only(name, _one(0, 0, pid))
    for name in ("setpriority", "ioprio_set"):
        which = 0 if name == "setpriority" else 1  # PRIO_PROCESS, IOPRIO_WHO_PROCESS: not groups, not users
        only(name, (*_one(0, which), *_one(1, 0, pid)))
    if signals_scoped:
        rules.update(dict.fromkeys(_named(here, "kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo"), Rule()))
    else:
        only("kill", _one(0, pid))
        only("tgkill", _one(0, pid))
    return Ruleset(here, rules, errno.EPERM)


def startup_rules(here: Machine, pid: int, signals_scoped: bool, local_sockets: bool) -> Ruleset:
    """What the trusted start-up may call besides: threads placed on processors, the second filter, and, for CUDA's
    driver, a local socket of its own (`local_sockets`)."""
    sealed = seal_rules(here, pid, signals_scoped)
    rules = dict(sealed.rules)
    rules.update(dict.fromkeys(_named(here, "seccomp sched_setaffinity"), Rule()))
    if local_sockets:
        rules.update(dict.fromkeys(_named(here, "bind listen connect"), Rule()))
        rules.update(dict.fromkeys(_named(here, "socket"), Rule((_one(0, _AF_UNIX),))))
    return Ruleset(here, rules, sealed.refusal)


def install(ruleset: Ruleset, *, all_threads: bool, listener: bool = False) -> int:
    """Put the filter on this thread, or on all threads of the process at once. Raises OSError.

    Returns the listener's descriptor if asked for one, else 0. no_new_privs must be set.
    """
    program = assemble(ruleset)
    held = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("<H6xQ", len(program) // 8, ctypes.addressof(held))
    # Older kernels slow a filtered process down to protect it from itself, which would tax every launch it is timed by.
    flags = _FLAG_SPEC_ALLOW | (_FLAG_TSYNC if all_threads else 0) | (_FLAG_NEW_LISTENER if listener else 0)
    answer = libc.syscall("seccomp", _SET_MODE_FILTER, flags, fprog)
    if answer and not listener:
        raise OSError(errno.ESRCH, f"thread {answer} could not take the filter")
    return answer


def mode() -> int:
    """How this thread is filtered: 0 not at all, 2 by a program (from /proc/thread-self/status)."""
    with open("/proc/thread-self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("Seccomp:"):
                return int(line.split()[1])
    return 0


def own_rules(*, sealed: bool, signals_scoped: bool, local_sockets: bool) -> Ruleset | None:
    """The ruleset of a stage for this machine and process; None where the architecture is not known."""
    here = machine()
    if here is None:
        return None
    if sealed:
        return seal_rules(here, os.getpid(), signals_scoped)
    return startup_rules(here, os.getpid(), signals_scoped, local_sockets)
