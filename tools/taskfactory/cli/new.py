"""`taskfactory new`: write a spec to start from."""

from __future__ import annotations

from pathlib import Path

import click

_EPILOG = """\b
Example:
  taskfactory new fused-rms-norm             writes specs/fused_rms_norm.py
  taskfactory validate fused-rms-norm
"""


@click.command("new", epilog=_EPILOG)
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("specs"),
    show_default=True,
    help="The folder to write into.",
)
def command(name: str, folder: Path) -> None:
    """Write a spec for the task NAME (kebab-case) that validates at once and explains every field.

    The task it describes is a small one, a masked softmax; replace it piece by piece, and validate as you go.
    An existing file is never overwritten.
    """
    from taskfactory.scaffold import new_spec

    path = new_spec(name, folder)
    click.echo(path)
    click.echo(f"next: taskfactory validate {path}", err=True)
