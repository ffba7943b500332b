"""`taskfactory list`: one line a task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from taskfactory.errors import SpecError
from taskfactory.paths import spec_files

_EPILOG = """\b
Examples:
  taskfactory list                 ./specs, or the tasks that come with the package
  taskfactory list specs/ --json
"""
_HEADINGS = ("task", "metric", "function", "graded", "state")


@click.command("list", epilog=_EPILOG)
@click.argument("specs", nargs=-1, metavar="[PATH|TASK]...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def command(specs: tuple[str, ...], as_json: bool) -> None:
    """List tasks: metric, function, number of graded shapes, and what the static checks think of them."""
    rows = [_row(path) for path in spec_files(specs, ours=True)]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    cells = [[row["task"], row["metric"], row["function"], str(row["graded_shapes"]), _state(row)] for row in rows]
    click.echo(_table([list(_HEADINGS), *cells]))


def _row(path: Any) -> dict[str, Any]:
    """What there is to say about one file; a spec that does not load has its file name and nothing else."""
    from taskfactory.checks import check_spec
    from taskfactory.load import load_spec

    row: dict[str, Any] = {"task": path.stem.replace("_", "-"), "path": str(path)}
    try:
        file = load_spec(path)
        findings = check_spec(file)
    except SpecError as error:
        row |= {"metric": "", "function": "", "module": "", "graded_shapes": 0}
        findings = list(error.findings)
    else:
        spec = file.spec
        row |= {"task": spec.name, "metric": spec.metric, "function": spec.func, "module": spec.module}
        row |= {"graded_shapes": len(spec.grader_shapes), "version": spec.version, "digest": file.digest}
    row["errors"] = sum(finding.severity == "error" for finding in findings)
    row["warnings"] = len(findings) - row["errors"]
    return row


def _state(row: dict[str, Any]) -> str:
    parts = [f"{row[kind]} {kind if row[kind] > 1 else kind[:-1]}" for kind in ("errors", "warnings") if row[kind]]
    return ", ".join(parts) or "ok"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)
