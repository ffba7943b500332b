"""Render a spec's prose: one strict Jinja environment, and the numbers that prose may name.

Numbers are rendered from the spec so that they cannot drift from it. A name that does not exist is an error with its
file and line, never an empty string. A graded shape cannot be named: only the range of each dimension can.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.exceptions import TemplateError, TemplateSyntaxError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from taskfactory.calibrate.certificate import prose_figures
from taskfactory.errors import SpecError
from taskfactory.findings import Finding
from taskfactory.load import SpecFile
from taskfactory.paths import templates_dir
from taskfactory.spec import PROSE_FIELDS

Number = int | float


def scientific(value: float) -> str:
    """A small number as one writes it by hand: 0.012 is "1.2e-2", 0.02 is "2e-2", 0.5 is "0.5"."""
    if value == 0 or 0.1 <= abs(value) < 1000:
        return f"{value:g}"
    mantissa, _, exponent = f"{value:.6e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def significant(value: Number, figures: int = 3) -> str:
    """An int in full, a float to `figures` significant digits and without an exponent while it is readable."""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e9:
        decimals = figures - 1 - math.floor(math.log10(abs(value)))
        return f"{round(value, decimals):.{max(0, decimals)}f}"
    return scientific(float(f"{value:.{figures - 1}e}"))


class Figure(float):
    """A float that prints in scientific shorthand and otherwise behaves as the number it is."""

    def __str__(self) -> str:
        return scientific(float(self))


class Span:
    """The values that one quantity takes over a list of shapes; prints as "lo–hi", or as the only value."""

    def __init__(self, values: Iterable[Number]) -> None:
        self._sorted: tuple[Number, ...] = tuple(sorted(set(values)))

    @property
    def min(self) -> Number:
        """The least value."""
        return self._sorted[0]

    @property
    def max(self) -> Number:
        """The greatest value."""
        return self._sorted[-1]

    @property
    def values(self) -> Values:
        """Every distinct value in ascending order; prints joined by commas."""
        return Values(self._sorted)

    def format(self, number: Callable[[Number], str]) -> str:
        """The range with each end printed by `number`; one value if both ends print alike."""
        low, high = number(self.min), number(self.max)
        return low if low == high else f"{low}–{high}"

    def __str__(self) -> str:
        return self.format(significant)


class Values(tuple[Number, ...]):
    """Distinct values that print as "64, 96, 128"."""

    def __str__(self) -> str:
        return ", ".join(significant(value) for value in self)


class Ranges(Mapping[str, Span]):
    """The Spans of one list of shapes (`graded`, `measure`, …): its dimensions, and what `derived` computes of them."""

    def __init__(self, role: str, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...],
                 derived: Callable[[tuple[int, ...]], Mapping[str, Number]]) -> None:  # fmt: skip
        self.role = role
        self._spans = {name: Span(shape[i] for shape in shapes) for i, name in enumerate(names)}
        self._shapes, self._derive = shapes, derived
        self._complete = False

    def _all(self) -> dict[str, Span]:
        if not self._complete:  # most prose names dimensions only, so formulas are evaluated when first asked for
            rows = [self._derive(shape) for shape in self._shapes]
            for key in rows[0] if rows else ():
                self._spans.setdefault(key, Span(row[key] for row in rows))
            self._complete = True
        return self._spans

    def __getitem__(self, name: str) -> Span:
        return self._spans[name] if name in self._spans else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class _Missing(jinja2.StrictUndefined):
    """Strict, and says for a range which names there are."""

    @property
    def _undefined_message(self) -> str:
        if isinstance(self._undefined_obj, Ranges):
            role = self._undefined_obj.role
            return f"'{role}.{self._undefined_name}' is undefined; {role} has {', '.join(self._undefined_obj)}"
        return super()._undefined_message


def _digits(value: Span | Number, decimals: int) -> str:
    """Filter: a number, or both ends of a Span, with a fixed number of decimals."""

    def fixed(number: Number) -> str:
        return f"{number:.{decimals}f}"

    return value.format(fixed) if isinstance(value, Span) else fixed(value)


def _thousands(value: Span | Number) -> str:
    """Filter: a number, or both ends of a Span, in groups of three digits; floats are rounded to integers."""

    def grouped(number: Number) -> str:
        return f"{number:,.0f}"

    return value.format(grouped) if isinstance(value, Span) else grouped(value)


def _toml(value: str | tuple[str, ...]) -> str:
    """Filter: a string or a tuple of strings as TOML, whose basic strings are JSON's apart from DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The environment of every template: strict, no HTML escaping, templates compiled once a process.

    Prose comes from strangers. `checks.templates` lets little of Jinja through; the sandbox is a second wall.
    """
    env = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=_Missing,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.globals.clear()
    env.filters["digits"] = _digits
    env.filters["thousands"] = _thousands
    env.filters["toml"] = _toml
    return env


@lru_cache(maxsize=1)
def _prose_environment() -> jinja2.Environment:
    # A tag at the end of a line of prose must not swallow the line break after it.
    return environment().overlay(trim_blocks=False, lstrip_blocks=False)


def context(file: SpecFile) -> dict[str, Any]:
    """The names that the prose of `file` may use."""
    spec = file.spec

    formulas = file.formulas()

    def derived(shape: tuple[int, ...]) -> Mapping[str, Number]:
        values: Mapping[str, Number] = formulas.call("derived", *shape)
        return values

    def nothing(_: tuple[int, ...]) -> Mapping[str, Number]:
        return {}

    derive = derived if formulas.defines("derived") else nothing
    shapes = {
        "graded": spec.grader_shapes,
        "measure": spec.measure_shapes,
        "quick": spec.measure_quick_shapes,
        "correct": spec.correct_shapes,
    }
    ranges = {role: Ranges(role, spec.shape_names, rows, derive) for role, rows in shapes.items()}
    return {
        **ranges,
        "tol": Figure(spec.tol),
        "kappa": Figure(spec.tile_kappa),
        "epsilon": Figure(spec.tile_epsilon),
        "regions": _regions(file),
        "certificate": prose_figures(file),
    }


def _regions(file: SpecFile) -> Mapping[str, str]:
    """The tolerance of each declared region that is spelt out, as it is printed."""
    from taskfactory.describe import region_list  # which prints numbers as this module does

    return {region.name: region.tol for region in region_list(file.spec.regions_src)}


def render_field(file: SpecFile, field: str, names: Mapping[str, Any]) -> str:
    """The prose field `field` of `file`, rendered with `names` and stripped of surrounding blank lines.

    Raises:
        SpecError: the field is not valid Jinja or uses an undefined name; names the file, the line and the name.
    """
    text: str = getattr(file.spec, field) or ""
    if "{{" in text or "{%" in text or "{#" in text:
        text = _render(file, field, text, names)
    return text.strip("\n").rstrip()


def render_prose(file: SpecFile) -> dict[str, str]:
    """Every prose field of `file` rendered.

    Raises:
        SpecError: with a finding for each field that fails.
    """
    names = context(file)
    rendered: dict[str, str] = {}
    findings: list[Finding] = []
    for field in PROSE_FIELDS:
        try:
            rendered[field] = render_field(file, field, names)
        except SpecError as error:
            findings.extend(error.findings)
    if findings:
        raise SpecError(findings)
    return rendered


def _render(file: SpecFile, field: str, text: str, names: Mapping[str, Any]) -> str:
    env = _prose_environment()
    label = f"<{field}>"
    try:
        code = env.compile(text, name=field, filename=label)
        return jinja2.Template.from_code(env, code, dict(env.globals)).render(names)
    except TemplateSyntaxError as error:
        message, line = f"not a valid template: {error.message}", error.lineno
    except UndefinedError as error:
        message, line = error.message or "an undefined name", _line_of(error, label)
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        message, line = f"cannot be rendered: {error}", _line_of(error, label)
    offset = sum(len(row) + 1 for row in text.split("\n")[: line - 1])
    raise SpecError([Finding("TF420", "error", message, file.path, file.line(field, offset), field)])


def _line_of(error: BaseException, label: str) -> int:
    """The template line an error was raised on: Jinja rewrites its frames to show the template's own lines."""
    line, frame = 1, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == label:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
