"""Prose: complete, true where it can be checked, and silent about graded shapes (TF4xx)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from taskfactory.checks.codes import CODES
from taskfactory.checks.figures import check_ranges, check_sizes, check_tolerance
from taskfactory.checks.leaks import check_leaks
from taskfactory.checks.report import Report
from taskfactory.checks.sources import Parameter
from taskfactory.errors import FormulaError, SpecError
from taskfactory.formulas import Formulas
from taskfactory.spec import PROSE_FIELDS

_PLACEHOLDER = re.compile(r"\b(TODO|FIXME|TBD|XXX+|lorem ipsum)\b", re.I)
_CASED = ("todo", "xxx")  # lower case, these are also words and sizes
_MARKUP = re.compile(r"\{[{%#]")
_FIRST_COLUMN = {"arg", "args", "argument", "arguments", "param", "parameter", "parameters", "input", "inputs"}


def check_prose(report: Report, signature: list[Parameter] | None, formulas: Formulas | None) -> None:
    """Every check of the text a solver reads. Figures are checked only if the formulas can be evaluated."""
    _check_complete(report)
    if signature is not None:
        _check_contract(report, signature)
        _check_returns(report, signature)
    rendered = _rendered(report, formulas)
    check_leaks(report, rendered)
    check_tolerance(report)
    if formulas is not None:
        quantities = graded_quantities(report, formulas)
        check_ranges(report, quantities)
        check_sizes(report, quantities)


def graded_quantities(report: Report, formulas: Formulas) -> dict[str, list[float]]:
    """What has a name at the graded shapes: dimensions, derived values, and the variables of canonical_work."""
    spec = report.file.spec
    shapes = [shape for shape in spec.grader_shapes if len(shape) == len(spec.shape_names)]
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        try:
            work, row = formulas.trace("canonical_work", *shape)
            row = dict(row)
            if formulas.defines("derived"):
                row |= formulas.call("derived", *shape)
        except (FormulaError, TypeError, ValueError):
            return {name: [float(s[i]) for s in shapes] for i, name in enumerate(spec.shape_names)}
        rows.append({**row, "canonical_work": work})
    names = set(rows[0]).intersection(*rows[1:]) if rows else set()
    numeric = [n for n in names if all(isinstance(r[n], int | float) and not isinstance(r[n], bool) for r in rows)]
    return {name: [float(row[name]) for row in rows] for name in sorted(numeric)}


def _check_complete(report: Report) -> None:
    spec = report.file.spec
    for field in ("title", *PROSE_FIELDS):
        text = getattr(spec, field)
        if not text.strip():
            report.add("TF401", field, "is empty")
        match = next((m for m in _PLACEHOLDER.finditer(text) if m[0] not in _CASED), None)
        if match is not None:
            report.add("TF402", field, f"holds the placeholder {match[0]!r}", offset=match.start())
    if "\n" in spec.title.strip():
        report.add("TF401", "title", "is longer than a line")


def _check_contract(report: Report, signature: list[Parameter]) -> None:
    text = report.file.spec.contract_md
    wanted = [parameter.name for parameter in signature]
    rows = list(_argument_rows(text))
    if not rows:
        report.add("TF410", "contract_md", "there is no table whose first column is `arg`")
        return
    named = [(name, offset) for cell, offset in rows for name in _names_in(cell)]
    for name, offset in named:
        if name not in wanted:
            report.add("TF408", "contract_md", f"the table names {name!r}, which signature does not", offset=offset)
    for name in wanted:
        if name not in {found for found, _ in named}:
            report.add("TF409", "contract_md", f"the table leaves {name!r} out", offset=rows[0][1])


def _argument_rows(text: str) -> Iterator[tuple[str, int]]:
    """First cells of the tables of arguments, with their offsets."""
    inside, offset = False, 0
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
        if not cells:
            inside = False
        elif not inside:
            inside = cells[0].strip("*`").lower() in _FIRST_COLUMN
        elif not set(cells[0]) <= set(":- "):
            yield cells[0], offset + line.index("|")
        offset += len(line) + 1


def _names_in(cell: str) -> list[str]:
    quoted = re.findall(r"`([^`]+)`", cell)
    return [
        name for part in (quoted or [cell]) for name in re.findall(r"[A-Za-z_]\w*", part.split("=")[0].split(":")[0])
    ]


def _check_returns(report: Report, signature: list[Parameter]) -> None:
    text = report.file.spec.returns_doc
    if not text.strip():
        return
    for parameter in signature:
        if not re.search(rf"(?<!\w){re.escape(parameter.name)}(?!\w)", text):
            report.add("TF411", "returns_doc", f"does not describe the argument {parameter.name!r}")


def _rendered(report: Report, formulas: Formulas | None) -> Mapping[str, str]:
    """Those fields that use templates, rendered; what cannot be rendered is reported. Others do not cost jinja2."""
    spec = report.file.spec
    fields = [field for field in PROSE_FIELDS if _MARKUP.search(getattr(spec, field))]
    if not fields:
        return {}
    from taskfactory.checks.templates import check_template
    from taskfactory.prose import context, render_field

    allowed = [field for field in fields if check_template(report, field)]
    if formulas is None:
        return {}
    rendered: dict[str, str] = {}
    try:
        names = context(report.file)
    except (SpecError, TypeError, ValueError, LookupError):
        return {}  # shapes or formulas are wrong, which has been said
    for field in allowed:
        try:
            rendered[field] = render_field(report.file, field, names)
        except SpecError as error:
            # A formula that fails has been reported; only what is wrong with the template is news.
            report.findings += [
                replace(found, hint=CODES[found.code].fix)
                for found in error.findings
                if found.code in ("TF420", "TF421")
            ]
    return rendered
