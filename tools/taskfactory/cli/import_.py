"""`taskfactory import`: a spec made of another benchmark's problem."""

from __future__ import annotations

from pathlib import Path

import click

from taskfactory.errors import UsageError
from taskfactory.importers import SOURCES, import_problem
from taskfactory.paths import spec_filename


@click.command("import", epilog="Example: taskfactory import --from kernelbench 19_ReLU.py --license MIT")
@click.argument("problem", type=click.Path(exists=True, path_type=Path))
@click.option("--from", "source", type=click.Choice(list(SOURCES)), required=True, help="The format.")
@click.option("--license", "licence", help="SPDX identifier of the problem's licence [default: what the files say].")
@click.option("--out", default="specs", show_default=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder for the spec.")  # fmt: skip
def command(problem: Path, source: str, licence: str | None, out: Path) -> None:
    """Make a spec of PROBLEM (a file or a folder), without running anything of it.

    What had to be guessed and has to be supplied is listed on stderr and at the head of the spec.
    """
    imported = import_problem(problem, source, licence)
    path = out / spec_filename(imported.name)
    if path.exists():
        raise UsageError(f"{path} exists already and is left alone")
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(imported.text, encoding="utf-8")
    click.echo(path)
    for note in imported.notes:
        click.echo(f"to do: {note}", err=True)
