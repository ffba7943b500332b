"""A limit on the wall time of a call in this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TooLong(BaseException):
    """A subject took longer than it may; not an Exception, so that no source catches it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in this thread after some seconds of wall time; 0 for no limit.

    Python runs the handler between two bytecodes, so one operation that never returns is left to the parent's limit.
    """
    if seconds <= 0:
        yield
        return

    def ring(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
