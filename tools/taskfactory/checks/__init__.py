"""Static checks of a loaded spec: nothing is executed, every finding has a stable code (`taskfactory.checks.codes`).

A new check goes into the module of its subject (names, sources, scopes, shapes, prose, leaks, figures), gets a row in
`codes.py`, and is called from the module's `check_...` function; docs/checks.md is printed from the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskfactory.findings import Finding
    from taskfactory.load import SpecFile


def check_spec(file: SpecFile) -> list[Finding]:
    """All findings about one spec, in file order; an empty list for a flawless one."""
    from taskfactory.checks.certificates import check_survivors
    from taskfactory.checks.names import check_names
    from taskfactory.checks.prose import check_prose
    from taskfactory.checks.report import Report
    from taskfactory.checks.shapes import check_formulas, check_shapes
    from taskfactory.checks.sources import check_sources, parse_sources, signature_parameters
    from taskfactory.findings import in_file_order

    report = Report(file)
    report.findings.extend(file.warnings)
    check_names(report)
    check_survivors(report)
    check_shapes(report)
    trees = parse_sources(report)
    check_sources(report, trees)
    # Formulas are evaluated only when they are well-formed: a wrong parameter list would fail at every shape again.
    formulas = None
    parts = ("flops_src", "derived_src", "floor_src")
    unusable = {"TF105", "TF201", "TF205", "TF206", "TF301", "TF302", "TF305"}
    in_doubt = any(f.code in unusable and f.field.partition(".")[0] in (*parts, "shape_names", "grader_shapes")
                   for f in report.findings)  # fmt: skip
    if not in_doubt:
        formulas = file.formulas()
        check_formulas(report, formulas)
    check_prose(report, signature_parameters(Report(file)), formulas)
    return in_file_order(report.findings)


def check_many(files: Sequence[SpecFile]) -> list[Finding]:
    """All findings about several specs, among them those that only show when they are seen together."""
    from taskfactory.checks.names import check_distinct
    from taskfactory.findings import in_file_order

    findings = [finding for file in files for finding in check_spec(file)]
    return in_file_order([*findings, *check_distinct(files)])
