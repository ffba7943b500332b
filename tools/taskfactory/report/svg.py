"""The two pictures of the report as inline SVG: a bar with its interval, and every call's time as a dot.

Colours come from the page's style sheet by class, so that both themes work. Numbers are in the tables beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from taskfactory.report.entries import Span

BAR_WIDTH, BAR_HEIGHT = 220, 18
STRIP_WIDTH, STRIP_HEIGHT = 640, 74


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


def _heights(times: Sequence[float], x: object) -> list[float]:
    """Pile up dots that would cover one another, as in a dot plot."""
    assert callable(x)
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
