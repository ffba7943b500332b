"""Showing a run while it goes on: a live table on a terminal, else one line a result."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TextIO

from taskfactory.fleet.orders import Order, Step
from taskfactory.store.records import Run

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {"passed": "green", "infrastructure_error": "magenta"}


def duration(seconds: float) -> str:
    """ "1 h 05 min", "3 min 20 s" or "12 s"."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


class Pace:
    """Counts results and tells the speed and the time left."""

    def __init__(self) -> None:
        self.total = self.done_before = self.finished = 0
        self.started = time.monotonic()
        self.statuses: Counter[str] = Counter()

    def begin(self, total: int, done: int) -> None:
        """From here on."""
        self.total, self.done_before, self.started = total, done, time.monotonic()

    @property
    def done(self) -> int:
        """Results of the run so far, an earlier driver's included."""
        return min(self.total, self.done_before + self.finished)

    def text(self) -> str:
        """Counts, gradings a minute, time left."""
        elapsed = time.monotonic() - self.started
        if not self.finished or elapsed <= 0:
            return f"{self.done}/{self.total}"
        left = (self.total - self.done) * elapsed / self.finished
        return f"{self.done}/{self.total}, {60 * self.finished / elapsed:.1f} a minute, {duration(left)} left"


class Lines:
    """A watcher that prints a line a result; for logs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.pace = stream, Pace()

    def begin(self, run: Run, total: int, done: int, slots: int) -> None:
        self.pace.begin(total, done)
        print(f"run {run.id}: {total - done} of {total} to grade, {slots} at a time", file=self.stream, flush=True)

    def step(self, event: Step) -> None:
        pass

    def finished(self, order: Order, status: str, slot: str) -> None:
        self.pace.finished += 1
        print(f"[{self.pace.text()}] {order.label}: {status} ({slot})", file=self.stream, flush=True)

    def note(self, text: str) -> None:
        print(f"note: {text}", file=self.stream, flush=True)


class Table:
    """A watcher that keeps a table on a terminal up to date; a context manager."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self.pace = Pace()
        self.slots: dict[str, tuple[Order, str, float]] = {}
        self.title = ""
        self.live = Live(
            console=Console(file=stream), get_renderable=self._picture, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Table:
        self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.live.stop()

    def begin(self, run: Run, total: int, done: int, slots: int) -> None:
        self.pace.begin(total, done)
        self.title = f"run {run.id}, {slots} at a time"

    def step(self, event: Step) -> None:
        known = self.slots.get(event.slot)
        began = known[2] if known is not None and known[0] is event.order else time.monotonic()
        where = f"{event.step} {min(event.done + 1, event.total)}/{event.total}"
        self.slots[event.slot] = (event.order, where, began)

    def finished(self, order: Order, status: str, slot: str) -> None:
        self.pace.finished += 1
        self.pace.statuses[status] += 1
        self.slots.pop(slot, None)

    def note(self, text: str) -> None:
        from rich.text import Text

        # As Text: submitters' names are strangers' and must not be read as markup.
        self.live.console.print(Text.assemble(("note: ", "yellow"), text))

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table as Grid
        from rich.text import Text

        head = Grid.grid(padding=(0, 1))
        head.add_row(Text(self.title, style="bold"), ProgressBar(max(self.pace.total, 1), self.pace.done, width=30))
        grid = Grid.grid(padding=(0, 2))
        for slot, (order, where, began) in sorted(self.slots.items()):
            seconds = duration(time.monotonic() - began)
            grid.add_row(Text(slot[:16], style="dim"), Text(order.label), Text(where, style="cyan"), Text(seconds))
        counts = Text("  ").join(
            Text(f"{number} {status.replace('_', ' ')}", style=_STYLES.get(status, "red"))
            for status, number in self.pace.statuses.most_common()
        )
        return Group(head, Text(self.pace.text()), counts, grid)
