"""Measure and graded shapes on a GPU: what is beyond its memory or our time there is a gap, told by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

USABLE = 0.95
"""Share of a GPU's memory that calibrations may fill together; contexts and libraries take the rest."""
BEYOND_S = 10.0
"""What a subject may take at one of them, mutants apart, which have a limit of their own."""
SUBJECT_S = 15.0
"""What a subject may have taken at all of them before it is left out at the next, so that none spends what all share;
alternates apart."""
NO_ALTERNATE = "no alternate to compare it with"
"""Why a mutant is not run where nothing says how far honest work comes."""
HARMLESS = ("out of ", NO_ALTERNATE)
"""How reasons begin that are the machine's and no fault of the task."""


@dataclass
class Beyond:
    """How measure and graded shapes are dealt with: what cannot be had there is a gap, told by name."""

    budget_s: float = math.inf
    """Seconds for all of them together, from the first on."""
    samples: Sequence[int] = ()
    """The samples there, in order. Each has an equal slice of the budget; what one leaves goes to the next."""
    lost: Container[tuple[str, int]] = ()
    """(subject, sample) that ended an earlier process; "reference" for the sample itself."""
    gap: Callable[[str, int, str], None] = lambda subject, sample, reason: None
    """Called with what is not measured, and why."""
    screened: Callable[[str], str] = lambda name: ""
    """What a mutant raises elsewhere, so that it need not run here; empty if nothing is known against it."""
    spent_s: dict[str, float] = field(default_factory=dict)
    """Seconds by subject, over all these shapes."""
    _ends: float = math.inf

    def refuses(self, subject: str, sample: int) -> str:
        """Why a subject is not run; empty if it may."""
        now = time.monotonic()
        if math.isinf(self._ends):
            self._ends = now + self.budget_s
        if (subject, sample) in self.lost:
            return "its process ended"
        if subject == "reference" or subject.startswith("alternates."):  # without these a shape says nothing
            return "out of time" if now > self._ends else ""
        slice_ends = self._ends
        if sample in self.samples and math.isfinite(self.budget_s):
            left = len(self.samples) - 1 - self.samples.index(sample)
            slice_ends -= self.budget_s * left / len(self.samples)
        late = now > slice_ends or self.spent_s.get(subject, 0.0) > SUBJECT_S
        return "out of time" if late else ""
