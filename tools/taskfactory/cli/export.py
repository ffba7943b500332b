"""`taskfactory export`: a task in the format of another benchmark."""

from __future__ import annotations

from pathlib import Path

import click

from taskfactory.errors import SpecError
from taskfactory.exporters import TARGETS, export, write


@click.command("export", epilog="Example: taskfactory export --to gpu-mode based-forward --out exported")
@click.argument("task")
@click.option("--to", "target", type=click.Choice(list(TARGETS)), required=True, help="The format.")
@click.option("--out", default="exported", show_default=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder to write below.")  # fmt: skip
def command(task: str, target: str, out: Path) -> None:
    """Write TASK (a name or a spec file) in the format of another benchmark.

    The files go to stdout, one a line; what the format cannot hold is listed on stderr and kept in the files. Exporting
    to flashinfer-trace runs the spec's input generator and reference.
    """
    from taskfactory.checks import check_spec
    from taskfactory.load import load_spec
    from taskfactory.paths import resolve_spec

    file = load_spec(resolve_spec(task))
    errors = [finding for finding in check_spec(file) if finding.severity == "error"]
    if errors:
        raise SpecError(errors)
    exported = export(file, target)
    for path in write(exported, out / target):
        click.echo(path)
    for loss in exported.losses:
        click.echo(f"lost: {loss}", err=True)
