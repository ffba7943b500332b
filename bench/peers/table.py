"""The records as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from peers.record import Entry, Run, ShapeRecord


def shape_lines(record: ShapeRecord) -> str:
    """A heading, and a line a contestant."""
    lines = [f"{record.task} {record.kind} {','.join(map(str, record.shape))}"]
    if record.failure:
        return "\n".join([*lines, f"  failed: {record.failure}"])
    for entry in record.entries:
        figures = _figures(record, entry) if entry.times_ms else f"{'':50}"
        error = "" if entry.error is None else f"E {entry.error:.1e}"
        said = f"{entry.status}{': ' + entry.message if entry.message else ''}"
        lines.append(f"  {entry.role:9} {entry.name:38.38} {figures} {error:9} {said}")
    return "\n".join(lines)


def _figures(record: ShapeRecord, entry: Entry) -> str:
    limit = record.of_limit(entry)
    share = "     -" if limit is None else f"{limit:6.3f}"
    return (
        f"{record.rate(entry):8.1f} {record.unit:7} {entry.median_ms:8.3f} ms"
        f" {share} of limit {len(entry.times_ms):3} calls"
    )


def summary(run: Run) -> str:
    """A line a shape: our rate, and its ratio to the best peer and the best yardstick."""
    lines = [f"\n{'task':32} {'shape':34} {'ours':>16} {'of limit':>8}  best peer, ratio; yardstick, ratio"]
    for record in run.shapes:
        ours = record.solution()
        shape = ",".join(map(str, record.shape))
        if ours is None:
            lines.append(f"{record.task:32.32} {shape:34} {_why(record)}")
            continue
        limit = record.of_limit(ours)
        share = f"{limit:8.3f}" if limit is not None else f"{'-':>8}"
        parts = [_against(record, role) for role in ("peer", "yardstick")]
        rate = f"{record.rate(ours):8.1f} {record.unit:7}"
        lines.append(f"{record.task:32.32} {shape:34} {rate} {share}  {'; '.join(filter(None, parts))}")
    for name, message in sorted(missing(run.shapes)):
        lines.append(f"not compared: {name}: {message}")
    lines.append(f"{run.duration_s:.0f} s")
    return "\n".join(lines)


def _against(record: ShapeRecord, role: str) -> str:
    best, ratio = record.best(role), record.ratio(role)
    return "" if best is None or ratio is None else f"{best.name} {record.rate(best):.1f}, {ratio:.3f}"


def _why(record: ShapeRecord) -> str:
    ours = next((e for e in record.entries if e.role == "solution"), None)
    return record.failure or (f"{ours.status}: {ours.message}" if ours else "no solution")


def missing(records: Iterable[ShapeRecord]) -> set[tuple[str, str]]:
    """(contestant, why) of everyone that could not be compared somewhere."""
    return {(f"{r.task}: {e.name}", f"{e.status}: {e.message}") for r in records for e in r.entries if not e.counts}
