"""Pictures of a certificate: every subject on one logarithmic axis, by its distance from a gate; as text and as SVG.

The axis is the largest share of a gate that was used up. 1 is the gate; honest work lies to its left, below 1/1.5,
wrong work to its right, beyond 3. A mark at the right end stands for infinity: an exact output differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from taskfactory.calibrate.figures import number
from taskfactory.calibrate.tables import terminal
from taskfactory.calibrate.verdict import HONEST_MARGIN, WRONG_MARGIN

LOW, HIGH = -3.0, 4.0
"""Ends of the axis, as powers of ten; what lies beyond is drawn at the end."""
E_LOW, E_HIGH = -6.0, 1.0
"""Ends of the axis of E, likewise."""
_WIDTH = 56
_GAP_HEIGHT = 92
_FONT = 'font-family="sans-serif" font-size="12"'
_ROWS = (
    ("float64", "reference in float64"), ("alternate", "alternates"), ("precision", "precision"),
    ("ablation", "ablations"), ("trivial", "trivial answers"), ("mutant", "mutants"),
)  # fmt: skip
_COLORS = {
    "float64": "#2a7f62", "alternate": "#2a7f62", "precision": "#8a6d1d", "ablation": "#b3362b", "trivial": "#b3362b",
    "mutant": "#6b6b6b",
}  # fmt: skip


def points(data: Mapping[str, Any]) -> dict[str, list[tuple[str, float]]]:
    """(name, share of a gate) of every subject with values, by kind; of mutants those judged by values."""
    found: dict[str, list[tuple[str, float]]] = {kind: [] for kind, _ in _ROWS}
    for name, entry in data["subjects"].items():
        if "use" in entry:
            found[entry["kind"]].append((name, number(entry["use"])))
    for row in data["mutants"]["list"]:
        if row["fate"] in ("rejected", "survived"):
            found["mutant"].append((row["name"], number(row["use"])))
    return found


def _place(use: float) -> float:
    """Where on the axis, from 0 to 1."""
    if use <= 0:
        return 0.0
    return 1.0 if math.isinf(use) else min(1.0, max(0.0, (math.log10(use) - LOW) / (HIGH - LOW)))


def show(data: Mapping[str, Any], *, color: bool = False) -> str:
    """The figures of a certificate for a terminal."""
    mutants, verdict = data["mutants"], data["verdict"]
    lines = [f"{data['task']} on {data['device']} ({data['machine']})", ""]
    gate, low, high = (round(_place(use) * (_WIDTH - 1)) for use in (1.0, 1 / HONEST_MARGIN, WRONG_MARGIN))
    for kind, title in _ROWS:
        row = [" "] * _WIDTH
        for place in range(low, high + 1):
            row[place] = "·"
        row[gate] = "|"
        entries = points(data)[kind]
        counts: dict[int, int] = {}
        for _, use in entries:
            place = round(_place(use) * (_WIDTH - 1))
            counts[place] = counts.get(place, 0) + 1
        for place, count in counts.items():
            row[place] = "o" if count == 1 else str(count) if count < 10 else "#"
        worst = _extreme(kind, entries)
        lines.append(f"{title:>21} {''.join(row)}  {worst}".rstrip())
    axis = [" "] * _WIDTH
    for power in range(int(LOW), int(HIGH) + 1):
        axis[round(_place(10.0**power) * (_WIDTH - 1))] = "+"
    legend = f"1e{LOW:g}{'gate: |   margins: ·':^{_WIDTH - 7}}1e{HIGH:g}"
    lines += [f"{'share of a gate':>21} {''.join(axis)}", f"{'':>21} {legend}", ""]
    fates = ", ".join(f"{count} {fate}" for fate, count in mutants["counts"].items() if count)
    score = f"{mutants['by_values']} judged by values, score {mutants['score_by_values']:.3f}"
    lines.append(f"mutants: {score}; of {mutants['total']}: {fates}")
    lines += ["", *recommendation(data), "", *terminal(data)]
    paint = (lambda text, style: f"\033[{style}m{text}\033[0m") if color else (lambda text, style: text)
    lines += [paint("problem: ", "1;31") + text for text in verdict["problems"]]
    lines += [paint("note: ", "1;33") + text for text in verdict["notes"]]
    lines.append(paint("sound", "1;32") if verdict["sound"] else paint("not sound", "1;31"))
    return "\n".join(lines)


def _extreme(kind: str, entries: list[tuple[str, float]]) -> str:
    """The subject that says most: of honest ones the farthest, of wrong ones the nearest."""
    if not entries:
        return ""
    pick = max if kind in ("float64", "alternate") else min
    name, use = pick(entries, key=lambda entry: entry[1])
    return f"{use:.3g} {name.partition('.')[2]}"


def recommendation(data: Mapping[str, Any]) -> list[str]:
    """The gates that the figures ask for beside those of the spec."""
    found, gates = data["recommended"], data["gates"]
    gap = found["gap"]
    lines = [f"gap of E: honest {_said(gap['honest'])}, wrong {_said(gap['wrong'])}; "
             f"a tolerance belongs between {_said(gap['lowest'])} and {_said(gap['highest'])}"]  # fmt: skip
    for name in ("tol", "kappa", "epsilon"):
        if name in found:
            lines.append(f"{name}: {gates[name]:g}, recommended {found[name]:g}")
    return [*lines, *_gap_line(data)]


def gap_marks(data: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """(letter, what it is, E) of the ends of the gap and of the tolerances in it; what is unbounded is left out."""
    found, gates = data["recommended"], data["gates"]
    gap = found["gap"]
    marks = [("h", "honest work", gap["honest"]), ("w", "wrong work", gap["wrong"]), ("t", "tolerance", gates["tol"])]
    marks.append(("r", "recommended", found.get("tol")))
    return [(letter, words, float(value)) for letter, words, value in marks if value]


def _gap_line(data: Mapping[str, Any]) -> list[str]:
    """The gap on a logarithmic axis of E; dots where a tolerance leaves honest and wrong work their margins."""
    gap = data["recommended"]["gap"]
    row = [" "] * _WIDTH
    low, high = (_error_place(gap[end]) for end in ("lowest", "highest"))
    for place in range(round(low * (_WIDTH - 1)), round(high * (_WIDTH - 1)) + 1):
        row[place] = "·"
    for letter, _, error in gap_marks(data):
        place = round(_error_place(error) * (_WIDTH - 1))
        row[place] = letter if row[place] in " ·" else "#"
    axis = [" "] * _WIDTH
    for power in range(int(E_LOW), int(E_HIGH) + 1):
        axis[round(_error_place(10.0**power) * (_WIDTH - 1))] = "+"
    legend = "h honest  w wrong  t tolerance  r recommended"
    return [f"{'E':>21} {''.join(row).rstrip()}", f"{'':>21} {''.join(axis)}",
            f"{'':>21} 1e{E_LOW:g}{legend:^{_WIDTH - 7}}1e{E_HIGH:g}"]  # fmt: skip


def _error_place(error: float | None) -> float:
    """Where on the axis of E, from 0 to 1; the right end for what is unbounded."""
    if error is None:
        return 1.0
    return 0.0 if error <= 0 else min(1.0, max(0.0, (math.log10(error) - E_LOW) / (E_HIGH - E_LOW)))


def _said(figure: float | None) -> str:
    return "unbounded" if figure is None else f"{figure:.3g}"


def draw_svg(data: Mapping[str, Any]) -> str:
    """The same as a picture, 760 units wide."""
    width, left, right, top, step = 760, 150, 30, 48, 30
    span = width - left - right

    def x(use: float) -> float:
        return round(left + span * _place(use), 1)

    bottom = top + step * len(_ROWS)
    height = bottom + 44 + _GAP_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {_FONT}>',
        f"<title>{escape(data['task'])}: share of a gate used up by honest and by wrong work</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="18" font-weight="bold">{escape(data["task"])} ({escape(data["device"])})</text>',
        f'<rect x="{x(1 / HONEST_MARGIN)}" y="{top - 6}" width="{round(x(WRONG_MARGIN) - x(1 / HONEST_MARGIN), 1)}" '
        f'height="{bottom - top + 6}" fill="#f0f0f0"/>',
        f'<line x1="{x(1)}" x2="{x(1)}" y1="{top - 12}" y2="{bottom}" stroke="#222" stroke-width="1.5"/>',
        f'<text x="{x(1)}" y="{top - 16}" text-anchor="middle">gate</text>',
    ]
    for power in range(int(LOW), int(HIGH) + 1):
        at = x(10.0**power)
        label = f"10<tspan dy='-4' font-size='9'>{power}</tspan>"
        parts.append(f'<line x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 5}" stroke="#222"/>')
        parts.append(f'<text x="{at}" y="{bottom + 20}" text-anchor="middle">{label}</text>')
    parts.append(f'<line x1="{left}" x2="{width - right}" y1="{bottom}" y2="{bottom}" stroke="#222"/>')
    middle = f'x="{left + span / 2}" y="{bottom + 38}" text-anchor="middle"'
    parts.append(f"<text {middle}>largest share of a gate used up</text>")
    for number_of_row, (kind, title) in enumerate(_ROWS):
        y = top + step * number_of_row + 12
        parts.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{title}</text>')
        for name, use in points(data)[kind]:
            shown = "infinite" if math.isinf(use) else f"{use:.3g}"
            parts.append(f'<circle cx="{x(use)}" cy="{y}" r="4" fill="{_COLORS[kind]}" fill-opacity="0.55">'
                         f"<title>{escape(name)}: {shown}</title></circle>")  # fmt: skip
    parts += _gap_picture(data, left, span, bottom + 74)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _gap_picture(data: Mapping[str, Any], left: int, span: int, y: int) -> list[str]:
    """The gap on an axis of E, with the gates in use and the recommended ones."""
    gap, found, gates = data["recommended"]["gap"], data["recommended"], data["gates"]

    def x(error: float | None) -> float:
        return round(left + span * _error_place(error), 1)

    low, high = x(gap["lowest"]), x(gap["highest"])
    parts = [
        f'<rect x="{low}" y="{y - 10}" width="{round(max(0.0, high - low), 1)}" height="20" fill="#f0f0f0"/>',
        f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">gap of E</text>',
        f'<line x1="{left}" x2="{left + span}" y1="{y + 14}" y2="{y + 14}" stroke="#222"/>',
    ]
    for power in range(int(E_LOW), int(E_HIGH) + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at}" x2="{at}" y1="{y + 14}" y2="{y + 19}" stroke="#222"/>')
        label = f"10<tspan dy='-4' font-size='9'>{power}</tspan>"
        parts.append(f'<text x="{at}" y="{y + 34}" text-anchor="middle">{label}</text>')
    colors = {"h": "#2a7f62", "w": "#b3362b", "t": "#222", "r": "#8a6d1d"}
    for letter, words, error in gap_marks(data):
        said = f"<title>{words}: {error:.3g}</title>"
        if letter in "hw":
            parts.append(f'<circle cx="{x(error)}" cy="{y}" r="4" fill="{colors[letter]}">{said}</circle>')
        else:
            dash = ' stroke-dasharray="3 2"' if letter == "r" else ""
            place = f'x1="{x(error)}" x2="{x(error)}" y1="{y - 12}" y2="{y + 12}"'
            parts.append(f'<line {place} stroke="{colors[letter]}" stroke-width="1.5"{dash}>{said}</line>')
    used = ", ".join(f"{name} {gates[name]:g}" for name in ("tol", "kappa", "epsilon"))
    better = ", ".join(f"{name} {found[name]:g}" for name in ("tol", "kappa", "epsilon") if name in found)
    told = f"in use (line): {used}" + (f"; recommended (dashed): {better}" if better else "")
    return [*parts, f'<text x="{left + span / 2}" y="{y + 54}" text-anchor="middle">{told}</text>']
