"""Logging what a confined worker is refused, to find out what a new driver or library needs. Never for results.

The filter hands refused calls to a listener instead of answering them. A helper, forked before the confinement, prints
each once per name and arguments, and answers with the errno the policy gives. The helper cannot see Landlock's
refusals: run with `wide_proc` and without it to tell them apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import select
import socket
import struct
import sys

from . import seccomp
from .bpf import decide
from .syscalls import machine

_NOTIFICATION_BYTES, _RESPONSE_BYTES = 80, 24
_RECEIVE = 0xC0502100  # SECCOMP_IOCTL_NOTIF_RECV
_SEND = 0xC0182101  # SECCOMP_IOCTL_NOTIF_SEND
_CONTINUE = 1


@dataclasses.dataclass
class Logger:
    """The worker's end of the line to its logger."""

    line: socket.socket

    def install(self, *, sealed: bool) -> None:
        """Install the filter with a listener, or, at the second stage, tell the logger that it has begun.

        The kernel allows one listener: so the strict rules ask from the beginning, and the logger lets pass what the
        first stage allows. Raises OSError.
        """
        if sealed:
            self.line.send(b"seal")
            self.line.recv(1)
            return
        seal = seccomp.own_rules(sealed=True, signals_scoped=True, local_sockets=False)
        assert seal is not None  # the caller has looked
        every = frozenset(seal.rules) | {-1}
        listener = seccomp.install(dataclasses.replace(seal, notify=every), all_threads=False, listener=True)
        socket.send_fds(self.line, [b"fd"], [listener])
        os.close(listener)


def start() -> Logger:
    """Fork the logger; it ends with the last process that is confined."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    if os.fork() == 0:
        ours.close()
        try:
            _log(theirs, parent)
        finally:
            os._exit(0)
    theirs.close()
    os.set_inheritable(ours.fileno(), False)
    return Logger(ours)


def _log(line: socket.socket, worker: int) -> None:
    _, descriptors, _, _ = socket.recv_fds(line, 2, 1)
    listener = descriptors[0]
    here = machine()
    assert here is not None
    names = {number: name for name, number in here.numbers.items()}
    startup = seccomp.startup_rules(here, worker, True, True)
    seal = seccomp.seal_rules(here, worker, True)
    sealed = False
    seen: set[str] = set()
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    poller.register(line, select.POLLIN)
    while True:
        for descriptor, events in poller.poll():
            if descriptor == line.fileno():
                if line.recv(4):
                    sealed = True
                    line.send(b"k")
                else:
                    poller.unregister(line)
            elif events & select.POLLIN:
                notification = bytearray(_NOTIFICATION_BYTES)
                try:
                    fcntl.ioctl(listener, _RECEIVE, notification)
                except OSError:
                    continue  # the caller died meanwhile
                identity, pid, _, number, _, _, *arguments = struct.unpack("<QIIiIQ6Q", notification)
                refused = decide(seal if sealed else startup, number, arguments)
                if refused is not None:
                    text = f"{names.get(number, number)}({', '.join(hex(word) for word in arguments)})"
                    if text not in seen:
                        seen.add(text)
                        stage = "sealed" if sealed else "start-up"
                        line_out = f"confine: {stage}: refused {text} errno {refused} pid {pid}"
                        print(line_out, file=sys.stderr, flush=True)
                flags = _CONTINUE if refused is None else 0
                answer = struct.pack("<QqiI", identity, 0, -(refused or 0), flags)
                with contextlib.suppress(OSError):
                    fcntl.ioctl(listener, _SEND, answer)
            else:
                return
