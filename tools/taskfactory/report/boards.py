"""What may be ranked together, and how: boards of one task, spec, device and ceilings; ties where noise decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taskfactory.report.entries import Entry, Span

CEILING_DRIFT = 0.02
"""Ceilings that differ by more than this do not belong to devices in the same state."""
MERGEABLE = ("device", "ceilings", "spec")


@dataclass(frozen=True)
class Row:
    """One submitter on a board."""

    submitter: str
    best: Entry | None
    """The passed entry with the highest score, or None."""
    current: tuple[Entry, ...]
    """The last judged entry of each sample."""
    rank: int | None = None
    """1 + how many are better beyond noise."""
    tied_with: tuple[str, ...] = ()
    """Others whose interval overlaps this one's."""

    @property
    def passed(self) -> int:
        """Samples that passed."""
        return sum(entry.passed for entry in self.current)

    @property
    def mean_fraction(self) -> float | None:
        """Mean over the samples of min(1, fraction of limit), a failure counting as 0; None where nothing is timed."""
        if not any(entry.fraction for entry in self.current):
            return None
        return sum(capped(entry).value for entry in self.current) / len(self.current)


@dataclass(frozen=True)
class Board:
    """Results that may be compared, or that were put together on request."""

    task: str
    metric: str
    spec_digests: tuple[str, ...]
    devices: tuple[str, ...]
    ceilings: tuple[tuple[str, float], ...]
    """Those of the first timed result; the others are within `CEILING_DRIFT`, unless merged."""
    merged: tuple[str, ...]
    """What was ignored on request and does differ: sentences for the reader."""
    timed: bool
    rows: tuple[Row, ...]
    latest: int
    """Id of the newest result."""


def current_entries(entries: Iterable[Entry]) -> list[Entry]:
    """The last judged entry of each (submitter, sample)."""
    newest: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        if entry.judged:
            newest[entry.submitter, entry.sample] = entry
    return list(newest.values())


def boards(entries: Sequence[Entry], merge: frozenset[str] = frozenset()) -> list[Board]:
    """The boards of one task: timed ones first, then those with more submitters, then the newer.

    Args:
        entries: judged entries of the task, in the order in which they were stored.
        merge: which of `MERGEABLE` differences to ignore.
    """
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        key = ("" if "spec" in merge else entry.spec_digest, "" if "device" in merge else entry.device)
        groups.setdefault(key, []).append(entry)
    found = []
    for group in groups.values():
        parts = [group] if "ceilings" in merge or "device" in merge else _by_ceilings(group)
        found += [_board(part, merge) for part in parts]
    return sorted(found, key=lambda board: (not board.timed, -len(board.rows), -board.latest))


def _by_ceilings(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Split by ceilings; an entry that failed before they were measured goes where most are."""
    parts: list[list[Entry]] = []
    homeless = []
    for entry in entries:
        if not entry.ceilings:
            homeless.append(entry)
            continue
        for part in parts:
            if _alike(dict(part[0].ceilings), dict(entry.ceilings)):
                part.append(entry)
                break
        else:
            parts.append([entry])
    if homeless:
        timed = max(parts, key=len, default=None)
        if timed is None or any(entry.passed for entry in homeless):
            # Passed without ceilings: verified on a CPU. That is no worse a verdict, but no rank either.
            parts.append(homeless)
        else:
            timed.extend(homeless)
            timed.sort(key=lambda entry: entry.id)
    return parts


def _alike(first: dict[str, float], second: dict[str, float]) -> bool:
    return first.keys() == second.keys() and all(
        abs(first[name] - second[name]) <= CEILING_DRIFT * first[name] for name in first
    )


def _board(entries: Sequence[Entry], merge: frozenset[str]) -> Board:
    by_submitter: dict[str, list[Entry]] = {}
    for entry in current_entries(entries):
        by_submitter.setdefault(entry.submitter, []).append(entry)
    rows = [Row(name, _best(own), tuple(own)) for name, own in by_submitter.items()]
    timed = any(entry.score for entry in entries)
    return Board(
        task=entries[0].task, metric=entries[0].metric,
        spec_digests=tuple(dict.fromkeys(entry.spec_digest for entry in entries)),
        devices=tuple(dict.fromkeys(entry.device for entry in entries)),
        ceilings=next((entry.ceilings for entry in entries if entry.ceilings), ()),
        merged=_said(entries, merge), timed=timed, rows=tuple(_ranked(rows) if timed else _by_passes(rows)),
        latest=max(entry.id for entry in entries),
    )  # fmt: skip


def _said(entries: Sequence[Entry], merge: frozenset[str]) -> tuple[str, ...]:
    said = []
    devices = dict.fromkeys(entry.device for entry in entries)
    if "device" in merge and len(devices) > 1:
        said.append(f"different devices: {', '.join(devices)}")
    if "ceilings" in merge or "device" in merge:
        timed = [entry for entry in entries if entry.ceilings]
        if any(not _alike(dict(timed[0].ceilings), dict(entry.ceilings)) for entry in timed):
            said.append("different ceilings, so equal scores are different fractions of the limit")
    digests = dict.fromkeys(entry.spec_digest for entry in entries)
    if "spec" in merge and len(digests) > 1:
        said.append(f"{len(digests)} versions of the spec, so not all solved the same task")
    return tuple(said)


def _best(entries: Sequence[Entry]) -> Entry | None:
    passed = [entry for entry in entries if entry.passed]
    return max(passed, key=lambda entry: entry.score.value if entry.score else 0.0, default=None)


def _span(row: Row) -> Span | None:
    return row.best.score if row.best is not None else None


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """By score; a rank counts only those who are better beyond noise."""
    ordered = sorted(rows, key=lambda row: (-(span.value if (span := _span(row)) else -1.0), row.submitter))
    ranked = []
    for row in ordered:
        own = _span(row)
        if own is None:
            ranked.append(row)
            continue
        others = [(other, span) for other in ordered if other is not row and (span := _span(other)) is not None]
        better = sum(span.low > own.high for _, span in others)
        tied = tuple(other.submitter for other, span in others if span.overlaps(own))
        ranked.append(Row(row.submitter, row.best, row.current, better + 1, tied))
    return ranked


def _by_passes(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-row.passed / max(len(row.current), 1), row.submitter))


def capped(entry: Entry | None) -> Span:
    """min(1, fraction of limit) with its interval; 0 for no entry, a failed one, or one without times."""
    if entry is None or entry.fraction is None:
        return Span(0.0, 0.0, 0.0)
    span = entry.fraction
    return Span(min(1.0, span.value), min(1.0, span.low), min(1.0, span.high))


@dataclass(frozen=True)
class Standing:
    """One submitter over all tasks of a device."""

    submitter: str
    mean: Span
    """Mean over the tasks of the best sample's min(1, fraction of limit), 0 where none passed. Its ends are the means
    of the tasks' ends, which is wider than independent noise would make them."""
    best: tuple[Entry | None, ...]
    """Per task."""
    passed: int
    judged: int
    rank: int
    tied: bool


@dataclass(frozen=True)
class Overall:
    """All tasks on one device."""

    device: str
    tasks: tuple[str, ...]
    standings: tuple[Standing, ...]
    left_out: int
    """Older boards of the same tasks (other spec versions or ceilings) that do not count."""
    merged: tuple[str, ...]


def overall(all_boards: Sequence[Board]) -> list[Overall]:
    """A table over the tasks for each device with timed results; for each task its newest timed board counts."""
    devices: dict[tuple[str, ...], list[Board]] = {}
    for board in all_boards:
        if board.timed:
            devices.setdefault(tuple(sorted(board.devices)), []).append(board)
    tables = [_overall(", ".join(names), found) for names, found in devices.items()]
    return sorted(tables, key=lambda table: (-len(table.standings), table.device))


def _overall(device: str, found: Sequence[Board]) -> Overall:
    newest: dict[str, Board] = {}
    for board in sorted(found, key=lambda board: board.latest):
        newest[board.task] = board
    tasks = tuple(sorted(newest))
    rows = {task: {row.submitter: row for row in newest[task].rows} for task in tasks}
    standings = []
    for name in dict.fromkeys(name for task in tasks for name in rows[task]):
        own = [rows[task].get(name) for task in tasks]
        best = tuple(row.best if row else None for row in own)
        spans = [capped(entry) for entry in best]
        mean = Span(*(sum(getattr(span, end) for span in spans) / len(spans) for end in ("value", "low", "high")))
        passed, judged = (
            sum(part(row) for row in own if row) for part in (lambda r: r.passed, lambda r: len(r.current))
        )
        standings.append(Standing(name, mean, best, passed, judged, 0, False))
    merged = tuple(dict.fromkeys(text for board in newest.values() for text in board.merged))
    return Overall(device, tasks, tuple(_placed(standings)), len(found) - len(newest), merged)


def _placed(standings: Sequence[Standing]) -> list[Standing]:
    placed = []
    for own in sorted(standings, key=lambda standing: (-standing.mean.value, standing.submitter)):
        others = [other.mean for other in standings if other is not own]
        rank = 1 + sum(span.low > own.mean.high for span in others)
        tied = any(span.overlaps(own.mean) for span in others)
        placed.append(Standing(own.submitter, own.mean, own.best, own.passed, own.judged, rank, tied))
    return placed
