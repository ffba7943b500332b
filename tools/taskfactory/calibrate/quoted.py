"""What prose may quote of a spec's certificates, as `certificate.NAME`: always the worst figure over the devices.

    certificate.devices                             the machines that measured, in words
    certificate.gpu                                 whether one of them was a GPU; only then are there graded figures,
    certificate.ceilings.copy_gbps, .matmul_tflops, .flop_per_byte      and what it reaches
    certificate.alternates.NAME, .ablations.NAME, .trivial.NAME, .precision.FORMAT.PLACE, .reference.float64
        .error, .use, .margin                       the figure of the table in docs/calibration.md
        .default, .timed, .worst                    E at the correct shapes: default inputs, timed ones, the worst
        .graded                                     E at the graded shapes, with the inputs of timed calls
        .outputs.NAME.default, .timed, ...          the same of one output; without it the largest of all outputs counts
        .regions.NAME.default, .timed, ...          the same over a region of the output
        .tiles.default, ...                         the worst tile's deviation, in tolerances

Nothing here executes a spec or imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from taskfactory.calibrate.figures import number
from taskfactory.spec import TaskSpec

Figures = Mapping[str, Any]
_PLAIN = 0.0995
"""From here on figures print without an exponent."""
_GROUPS = ("default", "timed", "worst", "graded")


class Interval:
    """Smallest and largest of some figures; prints with two significant digits, as "2.1e-3 to 2.6e-3"."""

    def __init__(self, values: Iterable[float]) -> None:
        self._sorted = sorted(values)

    @property
    def min(self) -> Short:
        """The least."""
        return Short(self._sorted[0])

    @property
    def max(self) -> Short:
        """The greatest."""
        return Short(self._sorted[-1])

    def __str__(self) -> str:
        low, high = short(self.min), short(self.max)
        if self.max >= _PLAIN > self.min >= _PLAIN / 100:  # both in one notation
            low = f"{self.min:.2g}"
        return low if low == high else f"{low} to {high}"


class Short(float):
    """A figure that prints with two significant digits."""

    def __str__(self) -> str:
        return short(self)


def short(value: float) -> str:
    """Two significant digits: 0.00214 is "2.1e-3", 0.531 is "0.53", 12.34 is "12"."""
    if math.isinf(value):
        return "infinity"
    if value == 0 or _PLAIN <= value < 99.5:
        return f"{value:.2g}"
    if value >= 99.5:
        return f"{float(f'{value:.2g}'):,.0f}" if value < 1e6 else _scientific(value)
    return _scientific(value)


def _scientific(value: float) -> str:
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


class Errors(Mapping[str, Interval]):
    """E, or another figure, over shapes and devices by the kind of inputs."""

    def __init__(self, found: Mapping[str, Sequence[float]]) -> None:
        self._found = {group: Interval(values) for group, values in found.items() if values}

    def __getitem__(self, name: str) -> Interval:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Quoted(Mapping[str, Any]):
    """One subject, over all certificates that hold it."""

    def __init__(self, spec: TaskSpec, entries: Sequence[Figures]) -> None:
        honest = entries[0]["kind"] in ("float64", "alternate")
        worst: Callable[[Iterable[float]], float] = max if honest else min
        use = worst(number(entry["use"]) for entry in entries)
        self._figures: dict[str, Any] = {
            "error": Short(worst(number(entry["error"]) for entry in entries)),
            "use": Short(use),
            "tiles": Errors(_grouped(spec, entries, lambda _, output: [number(output[1])])),
            "outputs": {
                name: Errors(_grouped(spec, entries, partial(_output, name=name)))
                for name in spec.tuple_names or ("out",)
            },
            "regions": {
                name: Errors(_grouped(spec, entries, partial(_region, name=name))) for name in _regions(entries)
            },
        }
        if use:
            self._figures["margin"] = Short(1 / use if honest else use)
        self._figures |= Errors(_grouped(spec, entries, lambda _, output: [number(output[0])]))

    def __getitem__(self, name: str) -> Any:
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)


def _grouped(
    spec: TaskSpec, entries: Sequence[Figures], read: Callable[[str, Sequence[Any]], list[float]]
) -> dict[str, list[float]]:
    """Per kind of inputs the largest figure of each shape on each device, outputs taken together."""
    found: dict[str, list[float]] = {group: [] for group in _GROUPS}
    for entry in entries:
        for row in entry["shapes"]:
            shape = tuple(row["shape"])
            if shape in spec.correct_shapes:
                usual = row.get("default")
                groups = {"default": usual, "timed": row.get("timed", usual), "worst": row.get("all")}
            else:
                groups = {"graded": row.get("all") if shape in spec.grader_shapes else None}
            for group, outputs in groups.items():
                values = [value for output, figures in (outputs or {}).items() for value in read(output, figures)]
                if values:
                    found[group].append(max(values))
    return found


def _output(output: str, figures: Sequence[Any], name: str) -> list[float]:
    return [number(figures[0])] if output == name else []


def _region(_: str, figures: Sequence[Any], name: str) -> list[float]:
    return [number(figures[2][name])] if len(figures) > 2 and name in figures[2] else []


def _regions(entries: Sequence[Figures]) -> list[str]:
    outputs = (output for entry in entries for row in entry["shapes"] for output in row.get("all", {}).values())
    return sorted({name for output in outputs if len(output) > 2 for name in output[2]})


def quotable(spec: TaskSpec, certificates: Sequence[Figures]) -> dict[str, Any]:
    """The subjects of some certificates as nested mappings by the parts of their names."""
    names = dict.fromkeys(name for data in certificates for name in data["subjects"])
    measured = [data["graded_shapes"]["ceilings"] for data in certificates
                if data["device"] != "cpu" and "graded_shapes" in data]  # fmt: skip
    found: dict[str, Any] = {"gpu": bool(measured)}
    if measured:
        found["ceilings"] = measured[0] | {
            "flop_per_byte": 1e3 * measured[0]["matmul_tflops"] / measured[0]["copy_gbps"]
        }
    for name in names:
        entries = [data["subjects"][name] for data in certificates if "use" in data["subjects"].get(name, {})]
        *folders, last = name.split(".")
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})
        if entries:
            place[last] = Quoted(spec, entries)
    return found
