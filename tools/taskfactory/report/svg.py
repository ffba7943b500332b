"""The pictures of the report as inline SVG: a bar with its interval, every call's time as a dot, and shares of a gate.

Colours come from the page's style sheet by class, so that both themes work. Numbers are in the tables beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from taskfactory.report.entries import Span

BAR_WIDTH, BAR_HEIGHT = 150, 18
STRIP_WIDTH, STRIP_HEIGHT = 960, 78
GATE_WIDTH, GATE_LEFT, GATE_RIGHT, GATE_ROW = 760, 158, 40, 30


def fraction_bar(span: Span, top: float) -> Markup:
    """A bar of the fraction of the limit, on a scale from 0 to `top`, with its interval and a line at the limit."""

    def x(value: float) -> str:
        return f"{BAR_WIDTH * min(value, top) / top:.1f}"

    text = f"{span.value:.3f} of the limit, interval {span.low:.3f} to {span.high:.3f}"
    return Markup(  # numbers only
        f'<svg class="bar" role="img" aria-label="{text}" viewBox="0 0 {BAR_WIDTH} {BAR_HEIGHT}" '
        f'width="{BAR_WIDTH}" height="{BAR_HEIGHT}"><title>{text}</title>'
        f'<rect class="track" width="{x(1.0)}" height="10" y="4" rx="2"/>'
        f'<rect class="fill" width="{x(span.value)}" height="10" y="4" rx="2"/>'
        f'<path class="whisker" d="M{x(span.low)} 9H{x(span.high)}M{x(span.low)} 5v8M{x(span.high)} 5v8"/>'
        f'<path class="limit" d="M{x(1.0)} 0v{BAR_HEIGHT}"/></svg>'
    )


def strip(
    label: str, times_ms: Sequence[float], interval_ms: Sequence[float], score_ms: float, limit_ms: float
) -> Markup:
    """The distribution of a shape's times: a dot a call, the score time and its interval, and the limit."""
    low, high = min(*times_ms, limit_ms, interval_ms[0]), max(*times_ms, interval_ms[1])
    pad = 0.04 * (high - low) or 0.05 * high
    low, high = low - pad, high + pad

    def x(value: float) -> float:
        return round(STRIP_WIDTH * (value - low) / (high - low), 1)

    dots = "".join(
        f'<circle cx="{x(t)}" cy="{y}" r="2.6"/>' for t, y in zip(times_ms, _heights(times_ms, x), strict=True)
    )
    text = (
        f"{label}: {len(times_ms)} calls from {min(times_ms):.4g} to {max(times_ms):.4g} ms; "
        f"score {score_ms:.4g} ms, interval {interval_ms[0]:.4g} to {interval_ms[1]:.4g} ms; limit {limit_ms:.4g} ms"
    )
    band = f'x="{x(interval_ms[0])}" width="{max(1.5, x(interval_ms[1]) - x(interval_ms[0])):.1f}"'
    base = STRIP_HEIGHT - 18
    return Markup(  # numbers, and a label that is escaped
        f'<svg class="strip" role="img" aria-label="{escape(text)}" viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}">'
        f'<rect class="band" {band} height="{base}"/>'
        f'<path class="axis" d="M0 {base}H{STRIP_WIDTH}"/><path class="limit" d="M{x(limit_ms)} 0v{base}"/>'
        f'<path class="score" d="M{x(score_ms)} 0v{base}"/><g class="dots">{dots}</g>'
        f"{_label(x(limit_ms), f'limit {limit_ms:.4g} ms', 'limit-label')}"
        f"{_label(x(score_ms), f'score {score_ms:.4g} ms', 'score-label', x(limit_ms))}</svg>"
    )


def _heights(times: Sequence[float], x: Callable[[float], float]) -> list[float]:
    """Pile up dots that would cover one another, as in a dot plot."""
    columns: dict[int, int] = {}
    heights = []
    for time in times:
        column = int(x(time) / 5.2)
        level = columns[column] = columns.get(column, 0) + 1
        heights.append(round(max(4.0, STRIP_HEIGHT - 18 - 4 - 5.2 * (level - 1)), 1))
    return heights


def _label(x: float, text: str, name: str, other: float | None = None) -> str:
    """A label under the axis, kept inside the picture and clear of another one."""
    anchor = "start" if x < 60 else "end" if x > STRIP_WIDTH - 60 else "middle"
    if other is not None and abs(other - x) < 130:
        anchor, x = ("start", x) if x >= other else ("end", x)
        x = max(x, other + 75) if anchor == "start" and other < 60 else x
    return f'<text class="{name}" x="{x}" y="{STRIP_HEIGHT - 4}" text-anchor="{anchor}">{escape(text)}</text>'


def gate_picture(
    label: str,
    rows: Sequence[tuple[str, str, Sequence[tuple[str, float]]]],
    powers: tuple[float, float],
    margins: tuple[float, float],
) -> Markup:
    """How much of a gate honest and wrong work use up, on a logarithmic axis with the gate at 1.

    Args:
        label: the picture in words.
        rows: of each kind its title, its role (a class of the style sheet), and (name or "", share) of each subject.
        powers: ends of the axis as powers of ten; what lies beyond is drawn at the end.
        margins: shares between which nothing should lie.
    """
    low, high = powers
    top, bottom = 26, 26 + GATE_ROW * len(rows)

    def x(use: float) -> float:
        part = 0.0 if use <= 0 else 1.0 if math.isinf(use) else (math.log10(use) - low) / (high - low)
        return round(GATE_LEFT + (GATE_WIDTH - GATE_LEFT - GATE_RIGHT) * min(1.0, max(0.0, part)), 1)

    parts = [
        f'<rect class="margin" x="{x(margins[0])}" y="{top - 4}" width="{x(margins[1]) - x(margins[0]):.1f}" '
        f'height="{bottom - top + 4}"/><path class="gate" d="M{x(1)} {top - 8}V{bottom}"/>'
        f'<text class="gate-label" x="{x(1)}" y="{top - 12}" text-anchor="middle">gate</text>'
        f'<path class="axis" d="M{GATE_LEFT} {bottom}H{GATE_WIDTH - GATE_RIGHT}"/>'
    ]
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = x(10.0**power)
        end = "≥ " if power == high else "≤ " if power == low else ""
        text = f"{10.0**power:g}" if power < 4 else f"{10**power:,}".replace(",", "\u202f")
        parts.append(f'<path class="axis" d="M{at} {bottom}v5"/>')
        parts.append(f'<text x="{at}" y="{bottom + 19}" text-anchor="middle">{end}{text}</text>')
    for k, (title, role, subjects) in enumerate(rows):
        middle = top + GATE_ROW * k + GATE_ROW // 2
        parts.append(f'<text x="{GATE_LEFT - 14}" y="{middle + 4}" text-anchor="end">{escape(title)}</text>')
        parts.append(f'<g class="{escape(role)}">{_subjects(subjects, x, middle)}</g>')
    return Markup(  # numbers, and names that are escaped
        f'<svg class="gates" role="img" aria-label="{escape(label)}" viewBox="0 0 {GATE_WIDTH} {bottom + 26}">'
        f"{''.join(parts)}</svg>"
    )


def _subjects(subjects: Sequence[tuple[str, float]], x: Callable[[float], float], middle: int) -> str:
    """A dot each, beside one another in up to three lanes where they would cover one another."""
    columns: dict[int, int] = {}
    dots = []
    for name, use in subjects:
        column = int(x(use) / 6)
        lane = columns[column] = columns.get(column, 0) + 1
        y = middle + (0, -8, 8)[(lane - 1) % 3]
        title = f"<title>{escape(name)}: {use:.3g}</title>" if name else ""
        dots.append(f'<circle cx="{x(use)}" cy="{y}" r="3.4">{title}</circle>')
    return "".join(dots)
