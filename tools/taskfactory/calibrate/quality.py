"""Are the work formulas right, and are graded shapes good ones? Judged from a certificate's sections "work" and
"graded_shapes".

    work     canonical work is at least the floor's; the floor is at most what a call holds; torch counts as many FLOPs
             as the spec says, and as many bytes are touched
    shapes   long enough to time, larger than the L2, within memory, and like the shapes of `measure.py`

A spec explains a ratio by a formula beside `derived`, with a docstring that says why: `reference_flops(*shape_names)`,
what torch's FLOP counter sees in the reference, and `touched_bytes(*shape_names)`, bytes of inputs and outputs on which
the result depends. Both are held against what was measured. What else is accepted is named in `survivors`, see `NAMES`.
Nothing here executes a spec or imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taskfactory.spec import TaskSpec

FLOP_AGREEMENT = 0.02
"""Relative deviation of counted FLOPs from the spec's figure; both are exact, the formula may leave out small terms."""
BYTE_AGREEMENT = 0.05
"""Relative deviation of touched bytes; they depend on the draw."""
LOOSELY = 1.001
"""Small terms that a formula may leave out, as in the static checks."""
TIMED = 20.0
"""Deltas of the clock that a graded shape's limit has to be long."""
CACHES = 4.0
"""Sizes of the L2 that the working set has to have."""
ALIKE = 3.0
"""Factor within which the typical limits of measure and graded shapes lie."""
RANKS = 0.7
"""Rank correlation of measured and graded scores below which a person should look."""
NAMES = ("work.flops", "work.bytes", "shapes.duration", "shapes.working_set", "shapes.memory", "shapes.regime")
"""What `TaskSpec.survivors` may explain."""
Figures = Mapping[str, Any]


def large_shapes(spec: TaskSpec) -> list[tuple[str, tuple[int, ...]]]:
    """(kind, shape) of graded and measure shapes in turn, so that a budget cuts both alike."""
    graded = [("graded", shape) for shape in spec.grader_shapes]
    measured = [("measure", shape) for shape in spec.measure_shapes]
    longest = max(len(graded), len(measured))
    return [entry for k in range(longest) for entry in (*graded[k : k + 1], *measured[k : k + 1])]


def judge_work(data: Figures, survivors: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(problems, notes) of a certificate's work formulas; empty where it has none."""
    if "work" not in data:
        return [], []
    work = data["work"]
    giga = work["metric"] == "GB/s"
    problems: list[str] = []
    accepted: list[str] = []
    notes = [f"work formulas: {gap}" for gap in work["gaps"]]
    if not work["rows"]:
        return problems, [*notes, "the work formulas were not verified"]

    def told(name: str, sentences: Sequence[str]) -> None:
        if sentences:
            more = f", and {len(sentences) - 1} more" if len(sentences) > 1 else ""
            (accepted if name in survivors else problems).append(f"{sentences[0]}{more}")

    told("", [_below_floor(row, giga) for row in work["rows"] if _below_floor(row, giga)])
    told("", [_above_call(row) for row in work["rows"] if _above_call(row)])
    told("work.flops", [_flops(row, giga) for row in work["rows"] if _flops(row, giga)])
    told("work.bytes", [_bytes(row, giga) for row in work["rows"] if _bytes(row, giga)])
    return problems, [*notes, *(f"accepted: {text}" for text in accepted)]


def _at(row: Figures) -> str:
    """Graded shapes by their number, since notes end up in public pages."""
    return f"at {row['kind']} shape {row['number']}" if "number" in row else f"at {tuple(row['shape'])}"


def _below_floor(row: Figures, giga: bool) -> str:
    if row["floor"] is None:
        return ""
    floor, unit = row["floor"][0 if giga else 1], "bytes" if giga else "FLOPs"
    if floor <= row["canonical"] * LOOSELY:
        return ""
    return f"canonical work is {row['canonical']:,} {unit} {_at(row)}, below the floor's {floor:,.0f}"


def _above_call(row: Figures) -> str:
    """The floor claims more than the call has: more bytes than are there, more FLOPs than the reference does."""
    if row["floor"] is None:
        return ""
    nbytes, flops = row["floor"]
    whole = row["inputs"] + row["outputs"] if "inputs" in row and "outputs" in row else math.inf
    if nbytes > whole * LOOSELY:
        return f"the floor counts {nbytes:,.0f} bytes {_at(row)}; inputs and outputs have {whole:,}"
    counted = row.get("flops", 0)
    if counted and flops > counted * (1 + FLOP_AGREEMENT):
        return f"the floor counts {flops:,.0f} FLOPs {_at(row)}; the reference does with {counted:,}"
    return ""


def _flops(row: Figures, giga: bool) -> str:
    expected = row.get("reference_flops", None if giga else row["canonical"])
    if "reference_flops" in row and expected is None:
        return f"reference_flops gives no number {_at(row)}"
    if expected is None or "flops" not in row or agrees(row["flops"], expected, FLOP_AGREEMENT):
        return ""
    said = "reference_flops" if "reference_flops" in row else "canonical_work"
    return (
        f"torch counts {row['flops']:,} FLOPs in the reference {_at(row)}, {row['flops'] / row['canonical']:.3g} times "
        f"the canonical work, where {said} has {expected:,.0f}"
    )


def _bytes(row: Figures, giga: bool) -> str:
    """Touched bytes are those the spec says; canonical ones that exceed the call's are explained by such a formula."""
    expected = row.get("touched_bytes")
    if "touched_bytes" in row and expected is None:
        return f"touched_bytes gives no number {_at(row)}"
    if expected is not None:
        if "touched" not in row or agrees(row["touched"], expected, BYTE_AGREEMENT):
            return ""
        return f"a call touches {row['touched']:,} bytes {_at(row)}, where touched_bytes has {expected:,.0f}"
    if not giga or "outputs" not in row:
        return ""
    whole = row["inputs"] + row["outputs"]
    if row["canonical"] <= whole * LOOSELY:
        return ""
    return f"canonical work is {row['canonical']:,} bytes {_at(row)}, more than inputs and outputs have ({whole:,})"


def agrees(measured: float, expected: float, share: float) -> bool:
    """Whether a figure deviates from another by at most a share of it."""
    return abs(measured - expected) <= share * abs(expected)


def judge_shapes(data: Figures, survivors: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(problems, notes) of a certificate's graded shapes; empty where it has none."""
    if "graded_shapes" not in data:
        return [], []
    found = data["graded_shapes"]
    problems: list[str] = []
    notes = [f"graded shapes: {gap}" for gap in found["gaps"]]

    def told(name: str, sentences: Sequence[str]) -> None:
        if sentences and name in survivors:
            notes.append(f"accepted ({name}): {'; '.join(sentences)}")
        elif sentences:
            problems.append(f"{'; '.join(sentences)}; choose another, or say in survivors, as {name}, why it serves")

    graded = [row for row in found["rows"] if row["kind"] == "graded"]
    least_bytes = CACHES * found["l2_bytes"]
    told("shapes.duration", [
        f"a limit of {row['limit_ms']:.3g} ms {_at(row)} is {row['limit_ms'] / row['delta_ms']:.1f} deltas of "
        f"{row['delta_ms']:.3g} ms, under {TIMED:g}"
        for row in graded if row["limit_ms"] is not None and row["limit_ms"] < TIMED * row["delta_ms"]
    ])  # fmt: skip
    told("shapes.working_set", [
        f"a working set of {row['working_set'] / 1e6:.0f} MB {_at(row)} is under {CACHES:g} L2 caches of "
        f"{found['l2_bytes'] / 1e6:.0f} MB"
        for row in graded if "working_set" in row and row["working_set"] < least_bytes
    ])  # fmt: skip
    told("shapes.memory", [
        f"about {row['memory_gb']:.3g} GB are needed {_at(row)}, more than {found['budget_gb']:g}"
        for row in graded if "memory_gb" in row and row["memory_gb"] > found["budget_gb"]
    ])  # fmt: skip
    told("shapes.regime", _unlike(found["rows"]))
    ranks = found.get("rank_correlation")
    if ranks is not None and ranks < RANKS:
        notes.append(
            f"measured and graded scores of {len(found['scores'])} implementations have the rank correlation "
            f"{ranks:g}: the measure shapes may mislead"
        )
    return problems, notes


def _unlike(rows: Sequence[Figures]) -> list[str]:
    """How measure shapes differ from graded ones."""
    typical = {}
    for kind in ("graded", "measure"):
        limits = [row["limit_ms"] for row in rows if row["kind"] == kind and row["limit_ms"]]
        if not limits:
            return []
        typical[kind] = math.exp(sum(map(math.log, limits)) / len(limits))
    ratio = typical["graded"] / typical["measure"]
    found = []
    if not 1 / ALIKE <= ratio <= ALIKE:
        found.append(f"graded shapes typically take {ratio:.2g} times as long as measure shapes at the limit")
    bounds = {kind: {row["bound"] for row in rows if row["kind"] == kind} for kind in typical}
    if missing := bounds["graded"] - bounds["measure"]:
        found.append(f"some graded shape is bound by {' and '.join(sorted(missing))}, and no measure shape is")
    return found


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation, ties given their mean rank; None for fewer than three pairs or constant ranks."""
    if len(pairs) < 3:
        return None
    a, b = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    mean = (len(pairs) + 1) / 2
    above = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    below = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return above / below if below else None


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]
