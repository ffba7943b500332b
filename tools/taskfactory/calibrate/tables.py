"""Tables of a certificate's work formulas and graded shapes, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Any]


def work_table(data: Figures) -> list[list[str]]:
    """Header and rows: canonical work beside floor, sizes, touched bytes and counted FLOPs; empty without it."""
    if not data.get("work", {}).get("rows"):
        return []
    giga = data["work"]["metric"] == "GB/s"
    table = [["", "shape", "canonical", "/ floor", "/ sizes" if giga else "", "touched", "FLOPs counted", "expected"]]
    for row in data["work"]["rows"]:
        canonical = row["canonical"]
        floor = row["floor"][0 if giga else 1] if row["floor"] else 0
        whole = row["inputs"] + row["outputs"] if "outputs" in row else 0
        expected = row.get("reference_flops", 0 if giga else canonical) or 0
        touched = row.get("touched_bytes") or (canonical if giga else whole)
        table.append([
            row["kind"], shown(row["shape"]), f"{canonical:.4g}", _ratio(canonical, floor),
            _ratio(canonical, whole) if giga else "",
            _ratio(row["touched"], touched) if "touched" in row else "-",
            _ratio(row["flops"], canonical) if not giga and "flops" in row else f"{row.get('flops', 0):.4g}",
            _ratio(expected, canonical) if expected else "-",
        ])  # fmt: skip
    keep = [column for column in range(len(table[0])) if any(line[column] for line in table)]
    return [[line[column] for column in keep] for line in table]


def shapes_table(data: Figures) -> list[list[str]]:
    """Header and rows: how long, how large, how much memory. Empty without the section."""
    found = data.get("graded_shapes")
    if not found:
        return []
    table = [["", "shape", "limit ms", "delta ms", "deltas", "bound by", "working set MB", "/ L2", "memory GB"]]
    for row in found["rows"]:
        limit, size, delta = row["limit_ms"], row.get("working_set"), row.get("delta_ms")
        table.append([
            row["kind"], shown(row["shape"]), f"{limit:.3g}" if limit else "-",
            f"{delta:.3g}" if delta else "-", f"{limit / delta:.0f}" if limit and delta else "-", row["bound"] or "-",
            f"{size / 1e6:.0f}" if size else "-", f"{size / found['l2_bytes']:.1f}" if size else "-",
            f"{row['memory_gb']:.3g}" if "memory_gb" in row else "-",
        ])  # fmt: skip
    return table


def scores_table(data: Figures) -> list[list[str]]:
    """Header and rows: score of each implementation over graded and measure shapes. Empty if none was timed."""
    found = data.get("graded_shapes", {})
    if not found.get("scores"):
        return []
    rows = [[name, f"{s['graded']:.4g}", f"{s['measure']:.4g}"] for name, s in found["scores"].items()]
    return [["implementation", "graded", "measure"], *rows]


SUMMARY = (
    "canonical / floor", "canonical / sizes", "touched / said", "FLOPs counted / canonical", "shortest limit",
    "smallest working set", "most memory", "ranks",
)  # fmt: skip
"""Columns of `summary`."""


def summary(data: Figures) -> list[str]:
    """One cell a column of `SUMMARY`, over graded shapes; touched bytes over those that were differentiated."""
    work, found = data.get("work"), data.get("graded_shapes")
    if not work or not found:
        return []
    giga = work["metric"] == "GB/s"
    graded = [row for row in work["rows"] if row["kind"] == "graded"]
    floors = [row["canonical"] / row["floor"][0 if giga else 1] for row in graded if row["floor"]]
    sizes = [row["canonical"] / (row["inputs"] + row["outputs"]) for row in graded if giga and "outputs" in row]
    touched = [
        row["touched"] / (row.get("touched_bytes") or (row["canonical"] if giga else row["inputs"] + row["outputs"]))
        for row in work["rows"]
        if "touched" in row
    ]
    flops = [row["flops"] / row["canonical"] for row in graded if not giga and "flops" in row]
    rows = [row for row in found["rows"] if row["kind"] == "graded"]
    limits = [row["limit_ms"] / row["delta_ms"] for row in rows if row["limit_ms"]]
    sets = [row["working_set"] / found["l2_bytes"] for row in rows if "working_set" in row]
    memory = [row["memory_gb"] for row in rows if "memory_gb" in row]
    ranks = found.get("rank_correlation")
    return [
        *(_span(values) for values in (floors, sizes, touched, flops)),
        f"{min(limits):.0f} δ" if limits else "-", f"{min(sets):.1f} L2" if sets else "-",
        f"{max(memory):.0f} GB" if memory else "-", "-" if ranks is None else f"{ranks:g}",
    ]  # fmt: skip


def _span(values: list[float]) -> str:
    """Smallest and largest of some ratios."""
    if not values:
        return "-"
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def ranks_sentence(data: Figures) -> str:
    """The rank correlation in words, empty if there is none."""
    found = data.get("graded_shapes", {})
    if found.get("rank_correlation") is None:
        return ""
    return (
        f"rank correlation of measured and graded scores: {found['rank_correlation']:g} over {len(found['scores'])} "
        f"implementations and {found['scored_shapes']} shapes"
    )


def terminal(data: Figures) -> list[str]:
    """All of it as lines of text."""
    lines: list[str] = []
    for title, table in (
        ("work formulas", work_table(data)), ("graded and measure shapes", shapes_table(data)),
        ("scores", scores_table(data)),
    ):  # fmt: skip
        if table:
            widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
            lines += [f"{title}:", *(_aligned(line, widths) for line in table), ""]
    return [*lines, *([ranks_sentence(data), ""] if ranks_sentence(data) else [])]


def markdown(table: list[list[str]]) -> list[str]:
    """A table as Markdown."""
    if not table:
        return []
    head, *rows = table
    lines = [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]
    return [*lines, ""]


def shown(shape: Any) -> str:
    """A shape as in the spec."""
    return f"({', '.join(map(str, shape))})"


def _aligned(line: list[str], widths: list[int]) -> str:
    cells = [
        text.ljust(w) if column < 2 else text.rjust(w)
        for column, (text, w) in enumerate(zip(line, widths, strict=True))
    ]
    return ("  " + "  ".join(cells)).rstrip()


def _ratio(part: float, whole: float) -> str:
    return f"{part / whole:.4f}" if whole else "-"
