"""Lists of gradings, newest first: a page shows the newest ones, and pages of their own hold all of a long list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taskfactory.report import words
from taskfactory.report.entries import Entry

SHOWN = 500
"""How many a task's or submitter's own page lists: 5 samples of 100 submitters, and a browser sorts them at once."""
PER_PAGE = 1000


@dataclass(frozen=True)
class Listing:
    """The gradings of a task ("task") or of a submitter ("who")."""

    kind: str
    name: str
    entries: Sequence[Entry]
    """Newest first."""

    @property
    def shown(self) -> Sequence[Entry]:
        """Those that the task's or submitter's own page lists."""
        return self.entries[:SHOWN]

    @property
    def pages(self) -> int:
        """How many further pages there are; 0 where the own page lists everything."""
        return 0 if len(self.entries) <= SHOWN else -(-len(self.entries) // PER_PAGE)

    def path(self, number: int) -> str:
        """Path of a further page, from 1."""
        return f"gradings/{self.kind}-{words.slug(self.name)}-{number}.html"

    def paths(self) -> list[str]:
        """Paths of all further pages."""
        return [self.path(number) for number in range(1, self.pages + 1)]

    def page(self, number: int) -> Sequence[Entry]:
        """What a further page lists.

        Raises:
            KeyError: there is no such page.
        """
        if not 1 <= number <= self.pages:
            raise KeyError(number)
        return self.entries[(number - 1) * PER_PAGE : number * PER_PAGE]
