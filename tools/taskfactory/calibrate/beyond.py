"""Measure and graded shapes on a GPU: what is beyond its memory or our time there is a gap, told by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

BEYOND_S = 12.0
"""What a subject may take there, mutants apart, which have a limit of their own."""
NO_ALTERNATE = "no alternate to compare it with"
"""Why a mutant is not run where nothing says how far honest work comes."""
HARMLESS = ("out of ", NO_ALTERNATE)
"""How reasons begin that are the machine's and no fault of the task."""


@dataclass
class Beyond:
    """How measure and graded shapes are dealt with: what cannot be had there is a gap, told by name."""

    budget_s: float = math.inf
    """Seconds for all of them together, from the first on."""
    lost: Container[tuple[str, int]] = ()
    """(subject, sample) that ended an earlier process; "reference" for the sample itself."""
    gap: Callable[[str, int, str], None] = lambda subject, sample, reason: None
    """Called with what is not measured, and why."""
    screened: Callable[[str], str] = lambda name: ""
    """What a mutant raises elsewhere, so that it need not run here; empty if nothing is known against it."""
    _ends: float = math.inf

    def refuses(self, subject: str, sample: int) -> str:
        """Why a subject is not run; empty if it may."""
        if math.isinf(self._ends):
            self._ends = time.monotonic() + self.budget_s
        if (subject, sample) in self.lost:
            return "its process ended"
        return "out of time" if time.monotonic() > self._ends else ""
