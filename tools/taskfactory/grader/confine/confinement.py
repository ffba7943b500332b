"""Entering confinement, sealing it, and hardening those outside it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import resource
from collections.abc import Sequence

from . import caps, debug, landlock, libc, limits, policy, seccomp
from .report import ConfinementError, Report

_entered: Report | None = None
_logger: debug.Logger | None = None


def enter(
    scratch: str,
    readable: Sequence[str],
    devices: Sequence[str] = (),
    *,
    keep: Sequence[int] = (),
    bounds: limits.Limits | None = None,
    hidden: Sequence[str] = (),
    wide_proc: bool = False,
    log_refusals: bool = False,
) -> Report:
    """Confine this process and everything it will start. Returns which layers took effect; see :func:`tier`.

    Call it once, in the worker, while it has one thread and before it starts CUDA. `scratch` becomes the only place
    it may write, and its working directory; `readable` adds to the system's directories (:func:`interpreter_readable`
    and the modules still to be imported belong there); `devices` are the nodes of the leased GPU. Inherited descriptors
    are closed but for 0, 1, 2 and `keep`. What is below a `hidden` path cannot be read although something above it can.
    `wide_proc` lets it read all of /proc (:func:`policy.grants`).

    A layer that the machine lacks is left out and noted, so that the caller can refuse or go on. With `log_refusals`
    every refused call is printed on stderr by a helper outside and the report says ``debug``.

    Raises ConfinementError if it was called before or has threads, and ValueError for a grant that is too wide.
    """
    global _entered, _logger
    if _entered is not None:
        raise ConfinementError("this process is confined already")
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise ConfinementError(f"confinement has to come before the first thread; there are {threads}")
    granted = policy.grants(scratch, readable, devices, hidden=hidden, wide_proc=wide_proc)
    notes: list[str] = []

    closed = _close_all_but((0, 1, 2, *keep))
    _pin([grant.path for grant in granted if grant.path.startswith("/proc/")])
    os.chdir(scratch)
    with contextlib.suppress(OSError):
        os.setsid()
    limits.prefer_for_oom()
    notes.extend(limits.apply(bounds or limits.Limits()))
    no_new_privileges = caps.no_new_privileges()
    if log_refusals:
        _logger = debug.start()
    held = caps.drop_all()
    if held.bounding and held.none_usable:
        notes.append("the bounding set could not be emptied; no_new_privs leaves it without effect")

    applied = landlock.Applied(0, False, False, False, False, (), ())
    try:
        applied = landlock.restrict(granted)
        if not applied.abi:
            notes.append("Landlock is not available: files are not confined")
        elif not applied.truncate:
            notes.append(f"Landlock ABI {applied.abi} does not refuse truncation")
        if applied.abi and "signals" not in applied.scopes:
            notes.append(f"Landlock ABI {applied.abi} does not scope signals: the worker may signal only itself")
    except OSError as error:
        notes.append(f"Landlock failed: {error}")
    notes.extend(f"granted, but not there: {path}" for path in applied.skipped)

    report = Report(
        machine=platform.machine(),
        uid=os.getuid(),
        no_new_privileges=no_new_privileges,
        landlock_abi=applied.abi,
        files=applied.files,
        truncate=applied.truncate,
        tcp=applied.tcp,
        device_ioctl=applied.device_ioctl,
        scopes=applied.scopes,
        capabilities=held.effective | held.permitted | held.inheritable,
        bounding=held.bounding,
        closed_descriptors=closed,
        own_session=os.getsid(0) == os.getpid(),
        debug=log_refusals,
    )
    seccomp_on = _filter(report, notes, sealed=False, local_sockets=bool(devices))
    _entered = dataclasses.replace(report, seccomp=seccomp_on, notes=tuple(notes))
    return _entered


def seal() -> Report:
    """Refuse from now on, in every thread, what only the start-up needed; call it just before importing the submission.

    Returns the report of :func:`enter`, with `sealed` set if the filter is on. Raises ConfinementError before `enter`.
    """
    global _entered
    if _entered is None:
        raise ConfinementError("seal() comes after enter()")
    if _entered.sealed:
        return _entered
    notes = list(_entered.notes)
    sealed = _entered.seccomp and _filter(_entered, notes, sealed=True, local_sockets=False)
    _entered = dataclasses.replace(_entered, sealed=sealed, notes=tuple(notes))
    return _entered


def _filter(report: Report, notes: list[str], *, sealed: bool, local_sockets: bool) -> bool:
    scoped = "signals" in report.scopes
    rules = seccomp.own_rules(sealed=sealed, signals_scoped=scoped, local_sockets=local_sockets)
    if rules is None:
        notes.append(f"system calls cannot be filtered on {platform.machine()}: no table of numbers")
        return False
    try:
        if _logger is not None:
            _logger.install(sealed=sealed)
        else:
            seccomp.install(rules, all_threads=sealed)
    except OSError as error:
        notes.append(f"seccomp failed: {error}")
        return False
    return True


def _pin(paths: Sequence[str]) -> None:
    """Hold these open for the life of the process.

    The kernel ties a rule to an inode, and procfs makes a new inode whenever a forgotten entry is looked up again: when
    memory is short the rule would cease to apply and reading be refused. A descriptor keeps the entry.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            os.open(path, os.O_PATH | os.O_CLOEXEC)


def _close_all_but(kept: Sequence[int]) -> int:
    """Close every descriptor that is not in `kept`; returns how many were open."""
    closed = 0
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the listing's own descriptor is gone already
                os.close(int(name))
                closed += 1
    return closed


def harden_trusted(*, subreaper: bool = False, no_new_privileges: bool = True) -> tuple[str, ...]:
    """Put this trusted process (broker, supervisor) out of its children's reach; returns notes on what failed.

    Not dumpable: no process without CAP_SYS_PTRACE can trace it or read its memory, environment, maps or descriptors,
    whatever its user. Execve undoes this, so each process calls it for itself, first thing. With `subreaper`, orphans
    below it become its children, so that none escapes being waited for. `no_new_privileges` is inherited by all that it
    starts; leave it off where a setuid bubblewrap is to be started.
    """
    notes = []
    try:
        libc.prctl(libc.PR_SET_DUMPABLE, 0, 0, 0, 0)
        if subreaper:
            libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except OSError as error:
        notes.append(f"hardening failed: {error}")
    if no_new_privileges and not caps.no_new_privileges():
        notes.append("no_new_privs could not be set")
    return tuple(notes)


def resemble_new(name: str) -> None:
    """After a fork from a hardened process: be dumpable, as a program just started, and be listed under `name`.

    A process that is not dumpable does not own its entries in /proc, where CUDA names its threads. One with secrets
    calls :func:`harden_trusted` itself.
    """
    with contextlib.suppress(OSError):
        libc.prctl(libc.PR_SET_DUMPABLE, 1, 0, 0, 0)
        libc.syscall("prctl", libc.PR_SET_NAME, name.encode(), 0, 0, 0)
