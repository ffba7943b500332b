"""Shapes, tolerances, and the formulas evaluated at every shape (TF3xx, TF5xx)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from taskfactory.checks.names import identifier
from taskfactory.checks.report import Report
from taskfactory.errors import FormulaError
from taskfactory.formulas import Formulas
from taskfactory.spec import SHAPE_FIELDS

_SAID = {
    "grader_shapes": "graded",
    "measure_shapes": "measure",
    "measure_quick_shapes": "quick",
    "correct_shapes": "correct",
}
_UNITS = {"GB/s": ("bytes", r"\bbytes?\b"), "TFLOP/s": ("FLOPs", r"\b[TG]?FLOPs?\b|\bfloating[- ]point operations?\b")}

# Small arguments (flags, per-head margins) are often left out of canonical_work.
_COUNTED_LOOSELY = 1.001


def check_shapes(report: Report) -> None:
    """The four lists of shapes and the numbers of the gates."""
    spec = report.file.spec
    graded = set(spec.grader_shapes)
    for field in SHAPE_FIELDS:
        shapes = getattr(spec, field)
        if not shapes:
            report.add("TF305", field, "the list is empty")
        for index, shape in enumerate(shapes):
            place = f"{field}.{index}"
            if len(shape) != len(spec.shape_names):
                report.add("TF301", place, f"{shape} has {len(shape)} integers for {len(spec.shape_names)} shape_names")
            if any(size < 1 for size in shape):
                report.add("TF302", place, f"{shape} has an integer below 1")
            if shape in shapes[:index]:
                report.add("TF303", place, f"{shape} is listed twice")
            if field != "grader_shapes" and shape in graded:
                report.add("TF304", place, f"{shape} is a graded shape too")
    if not 0 < spec.tol < 1:
        report.add("TF306", "tol", f"{spec.tol:g} is not above 0 and below 1")
    if spec.tile_kappa < 1:
        report.add("TF307", "tile_kappa", f"{spec.tile_kappa:g} is below 1")
    if not 0 <= spec.tile_epsilon <= 1:
        report.add("TF307", "tile_epsilon", f"{spec.tile_epsilon:g} is not from 0 to 1")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def check_formulas(report: Report, formulas: Formulas) -> None:
    """Every formula at every shape it will be evaluated at. At the first failure of each, the rest is left out."""
    _check_unit(report, formulas)
    work = _check_work(report, formulas)
    if formulas.defines("derived"):
        _check_derived(report, formulas)
    if formulas.defines("claims"):
        _check_claims(report, formulas)
    if formulas.defines("floor"):
        _check_floor(report, formulas, work)


def _shapes(report: Report) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every well-formed shape with what to call it; a graded one is called by its ordinal, as in public results."""
    spec = report.file.spec
    for field in SHAPE_FIELDS:
        for index, shape in enumerate(getattr(spec, field)):
            if len(shape) == len(spec.shape_names) and all(size > 0 for size in shape):
                yield f"{_SAID[field]} shape {index + 1} {shape}", shape


def _call(report: Report, formulas: Formulas, name: str, where: str, shape: tuple[int, ...]) -> Any:
    """The value, or None after reporting why there is none."""
    try:
        return formulas.call(name, *shape)
    except FormulaError as error:
        found = error.finding
        report.add("TF501", found.field, f"{name} fails at {where}: {found.message}", line=found.line)
        return None


def _check_unit(report: Report, formulas: Formulas) -> None:
    spec = report.file.spec
    if not formulas.defines("canonical_work"):
        return
    docstring = formulas.docstring("canonical_work")
    mentioned = {metric for metric, (_, pattern) in _UNITS.items() if re.search(pattern, docstring, re.I)}
    if mentioned and spec.metric not in mentioned:
        said, wanted = _UNITS[next(iter(mentioned))][0], _UNITS[spec.metric][0]
        report.add(
            "TF507",
            "flops_src",
            f"the docstring of canonical_work speaks of {said}, but metric {spec.metric} counts {wanted}",
            line=formulas.line("canonical_work"),
        )


def _check_work(report: Report, formulas: Formulas) -> dict[tuple[int, ...], int]:
    work: dict[tuple[int, ...], int] = {}
    if not formulas.defines("canonical_work"):
        return work
    for where, shape in _shapes(report):
        before = len(report.findings)
        value = _call(report, formulas, "canonical_work", where, shape)
        if len(report.findings) > before:
            return work
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            message = f"canonical_work is {_shown(value)} at {where}, not a positive int"
            hint = "use // in place of /" if isinstance(value, float) and value > 0 else ""
            report.add("TF502", "flops_src", message, line=formulas.line("canonical_work"), hint=hint)
            return work
        work[shape] = value
    return work


def _check_derived(report: Report, formulas: Formulas) -> None:
    keys: set[str] | None = None
    for where, shape in _shapes(report):
        before = len(report.findings)
        value = _call(report, formulas, "derived", where, shape)
        if len(report.findings) > before:
            return
        problem = _derived_problem(value, report.file.spec.shape_names)
        if not problem and keys is not None and keys != set(value):
            problem = "has other keys than at the first shape"
        if problem:
            report.add("TF503", "derived_src", f"derived {problem} at {where}", line=formulas.line("derived"))
            return
        keys = set(value)


def _derived_problem(value: Any, shape_names: tuple[str, ...]) -> str:
    if not isinstance(value, dict):
        return f"returns a {type(value).__name__}, not a dict,"
    for key, number in value.items():
        if not isinstance(key, str) or not identifier(key) or key in ("min", "max", "values", "items", "keys", "get"):
            return f"has the key {_shown(key)}, which prose could not name,"
        if key in shape_names:
            return f"has the key {key!r}, which is the name of a shape's integer,"
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            return f"has {_shown(number)} for {key!r}, which is not a finite number,"
    return ""


def _check_claims(report: Report, formulas: Formulas) -> None:
    graded = report.file.spec.grader_shapes
    reported: set[str] = set()
    for where, shape in _shapes(report):
        if shape not in graded:
            continue  # claims are about the graded regime, and may be false or meaningless elsewhere
        before = len(report.findings)
        value = _call(report, formulas, "claims", where, shape)
        if len(report.findings) > before:
            return
        line = formulas.line("claims")
        if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, bool) for k, v in value.items()):
            report.add("TF505", "derived_src", f"claims returns no dict from sentences to bools at {where}", line=line)
            return
        for text, holds in value.items():
            if not holds and text not in reported:
                reported.add(text)
                message = f"the claim {text!r} is false at {where}"
                report.add("TF504", "derived_src", message, line=_claim_line(report, text) or line)


def _claim_line(report: Report, text: str) -> int:
    """The line on which the sentence is written, if it is written in one piece."""
    source = report.file.spec.derived_src or ""
    offset = source.find(text[:40])
    return report.file.lines.get("derived_src", 0) + source.count("\n", 0, offset) if offset > 0 else 0


def _check_floor(report: Report, formulas: Formulas, work: Mapping[tuple[int, ...], int]) -> None:
    spec = report.file.spec
    line = formulas.line("floor")
    exceeded = False
    for where, shape in _shapes(report):
        before = len(report.findings)
        value = _call(report, formulas, "floor", where, shape)
        if len(report.findings) > before:
            return
        if not _is_floor(value):
            report.add("TF506", "floor_src", f"floor returns {_shown(value)} at {where}, not (bytes, flops)", line=line)
            return
        counted = value[0 if spec.metric == "GB/s" else 1]
        if not exceeded and counted > work.get(shape, math.inf) * _COUNTED_LOOSELY:
            exceeded = True
            report.add(
                "TF508", "floor_src", f"floor {counted:,} exceeds canonical_work {work[shape]:,} at {where}", line=line
            )


def _is_floor(value: Any) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    good = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and v >= 0 for v in value)
    return good and any(v > 0 for v in value)
