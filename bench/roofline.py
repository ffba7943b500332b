"""A roofline of recorded runs as SVG: rate against intensity, both counted by the floor of a task's spec.

Both axes are logarithmic. A filled mark is our solution, a hollow one the best verified peer at the same shape; the
roof is what the device reached in the same run. A mark's distance from the roof is its fraction of the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from peers.record import Entry, ShapeRecord

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 40, 60
_COLORS = ("#b3362b", "#2a6f97", "#2a7f62", "#8a6d1d", "#6a4c93", "#444444")
_FONT = 'font-family="sans-serif" font-size="12"'


class Axis:
    """A logarithmic axis over whole powers of ten that hold all `values`."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        logs = [math.log10(value) for value in values]
        self.low, self.high = math.floor(min(logs)), math.ceil(max(logs))
        self.high += self.high == self.low
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[int]:
        return list(range(self.low, self.high + 1))


def points(records: Iterable[ShapeRecord]) -> list[tuple[ShapeRecord, Entry, float, float]]:
    """(record, contestant, FLOP per byte, TFLOP/s) of each solution and best peer that a floor allows to place."""
    found = []
    for record in records:
        if record.floor is None or min(record.floor) <= 0:
            continue
        nbytes, flops = record.floor
        for entry in (record.best("peer"), record.solution()):
            if entry is not None:
                found.append((record, entry, flops / nbytes, flops / entry.median_ms / 1e9))
    return found


def draw(records: Sequence[ShapeRecord], ceilings: Mapping[str, float], device: str) -> str:
    """The picture; without any point only axes and roof."""
    placed = points(records)
    copy, matmul = ceilings["copy_gbps"] / 1e3, ceilings["matmul_tflops"]  # TFLOP/s per FLOP/byte; TFLOP/s
    x = Axis([0.1, 1e3, *(p[2] for p in placed)], LEFT, WIDTH - RIGHT)
    y = Axis([0.1, matmul, *(p[3] for p in placed)], HEIGHT - BOTTOM, TOP)
    tasks = list(dict.fromkeys(record.task for record in records))
    colors = {task: _COLORS[number % len(_COLORS)] for number, task in enumerate(tasks)}
    marks = [_mark(x, y, point, colors[point[0].task]) for point in placed]
    legend = [line for row, task in enumerate(tasks) for line in _legend(row, task, colors[task])]
    return "\n".join([*_frame(x, y, device), *_roof(x, y, copy, matmul), *marks, *legend, "</svg>"]) + "\n"


def _frame(x: Axis, y: Axis, device: str) -> list[str]:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {_FONT}>',
        f"<title>Roofline on {escape(device)}: solutions and their best peers</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-weight="bold">Solutions and best peers on {escape(device)}</text>',
    ]
    for power in x.ticks:
        at = x(10.0**power)
        parts.append(f'<path d="M{at} {y.start}V{y.end}" stroke="#eee"/>')
        parts.append(f'<text x="{at}" y="{y.start + 18}" text-anchor="middle">{_power(power)}</text>')
    for power in y.ticks:
        at = y(10.0**power)
        parts.append(f'<path d="M{x.start} {at}H{x.end}" stroke="#eee"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4}" text-anchor="end">{_power(power)}</text>')
    middle, centre = (x.start + x.end) / 2, (y.start + y.end) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 18}" text-anchor="middle">FLOP per byte, of the floor</text>')
    turned = f'transform="rotate(-90 18 {centre})"'
    parts.append(f'<text x="18" y="{centre}" text-anchor="middle" {turned}>TFLOP/s, of the floor</text>')
    return parts


def _power(power: int) -> str:
    return f"10<tspan dy='-4' font-size='9'>{power}</tspan>"


def _roof(x: Axis, y: Axis, copy: float, matmul: float) -> list[str]:
    """The two ceilings, from where the slope enters the picture."""
    ridge = matmul / copy
    first = max(10.0**x.low, 10.0**y.low / copy)
    path = f"M{x(first)} {y(first * copy)}L{x(ridge)} {y(matmul)}H{x.end}"
    middle = math.sqrt(first * ridge)
    slope = f'<text x="{x(middle) - 10}" y="{y(middle * copy)}" text-anchor="end">{copy:.2f} TB/s</text>'
    flat = f'<text x="{x.end}" y="{y(matmul) - 6}" text-anchor="end">{matmul:.0f} TFLOP/s</text>'
    return [f'<path d="{path}" fill="none" stroke="#222" stroke-width="1.5"/>', slope, flat]


def _mark(x: Axis, y: Axis, point: tuple[ShapeRecord, Entry, float, float], color: str) -> str:
    record, entry, intensity, rate = point
    fill = f'fill="{color}" fill-opacity="0.6"' if entry.role == "solution" else 'fill="#fff" fill-opacity="0.6"'
    shape = ", ".join(map(str, record.shape))
    text = escape(f"{record.task} ({shape}), {entry.name}: {record.rate(entry):.0f} {record.unit}")
    return (
        f'<circle cx="{x(intensity)}" cy="{y(rate)}" r="4.5" {fill} stroke="{color}" stroke-width="1.5">'
        f"<title>{text}</title></circle>"
    )


def _legend(row: int, task: str, color: str) -> list[str]:
    at, left = TOP + 14 + 20 * row, WIDTH - RIGHT + 18
    return [
        f'<circle cx="{left}" cy="{at - 4}" r="4.5" fill="{color}" fill-opacity="0.6" stroke="{color}"/>',
        f'<circle cx="{left + 12}" cy="{at - 4}" r="4.5" fill="#fff" stroke="{color}" stroke-width="1.5"/>',
        f'<text x="{left + 24}" y="{at}">{escape(task)}</text>',
    ]
