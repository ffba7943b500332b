"""What took effect, in words and as data, and the tier that follows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

TIERS = ("unconfined", "partial", "confined", "namespaced")
"""From weakest to strongest.

namespaced   confined, and in process, IPC and network namespaces of its own (bubblewrap)
confined     no attack of the matrix succeeds: the trusted processes, their files and the rest of the machine are out of
             reach
partial      nothing that could change a verdict or read hidden data succeeds, but something that disturbs, observes or
             communicates does
unconfined   a verdict could be forged or hidden data read
"""


class ConfinementError(Exception):
    """The process could not be confined as asked, for a reason of the caller's making or of the machine's."""


@dataclass(frozen=True)
class Report:
    """Which layers really took effect in a worker. The tier that counts is the one a probe observed with them."""

    machine: str
    uid: int
    sealed: bool = False
    """The second filter is on, for all threads."""
    no_new_privileges: bool = False
    landlock_abi: int = 0
    """0: the kernel has no Landlock, or does not let us use it."""
    files: bool = False
    """Landlock restricts files."""
    truncate: bool = False
    """... and truncation, by itself (ABI 3)."""
    tcp: bool = False
    """... and TCP (ABI 4); sockets are refused by seccomp in any case."""
    device_ioctl: bool = False
    """... and ioctl on devices (ABI 5)."""
    scopes: tuple[str, ...] = ()
    """Of "abstract_sockets" and "signals" (ABI 6). Without the second, seccomp lets the worker signal only itself."""
    seccomp: bool = False
    capabilities: int = -1
    """Mask of what is left in the effective, permitted or inheritable set; 0 is none, -1 unknown."""
    bounding: int = -1
    """Mask of the bounding set. An ordinary user cannot empty it; no_new_privs then keeps it without effect."""
    closed_descriptors: int = 0
    """How many inherited descriptors were closed."""
    own_session: bool = False
    debug: bool = False
    """Refusals are being logged by a helper outside; never so when a result is to count."""
    notes: tuple[str, ...] = ()
    """What could not be done, in sentences."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """The inverse of :meth:`to_json`; raises TypeError for unknown names."""
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in data.items()}
        return cls(**values)


def tier(report: Report) -> str:
    """The tier its layers promise, from the report alone: at most "confined". A probe may well observe less."""
    if report.debug or not (report.files and report.truncate and report.seccomp and report.no_new_privileges):
        return "unconfined"
    if report.capabilities != 0:
        return "unconfined"
    return "confined" if report.sealed and "signals" in report.scopes else "partial"


def at_least(actual: str, required: str) -> bool:
    """Whether tier `actual` is `required` or stronger; raises ValueError for a word that names no tier."""
    return TIERS.index(actual) >= TIERS.index(required)
