"""`taskfactory show`: the README that a solver of a task will get."""

from __future__ import annotations

import sys

import click

from taskfactory.paths import resolve_spec


@click.command("show", epilog="Example: taskfactory show based-forward")
@click.argument("task", metavar="TASK|PATH")
@click.option("--raw", is_flag=True, help="Print the Markdown itself, also on a terminal.")
def command(task: str, raw: bool) -> None:
    """Show the README a solver will get, rendered from the spec as it is now.

    On a terminal the Markdown is laid out for reading; piped, it is printed as it is.
    """
    from taskfactory.checks import check_spec
    from taskfactory.errors import SpecError
    from taskfactory.load import load_spec
    from taskfactory.render import readme

    file = load_spec(resolve_spec(task))
    errors = [finding for finding in check_spec(file) if finding.severity == "error"]
    if errors:
        raise SpecError(errors)
    text = readme(file)
    if raw or not _on_terminal():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    # Beyond a book's line a table cell or a sentence is hard to follow.
    console.print(Markdown(text, hyperlinks=False), width=min(console.width, 110))


def _on_terminal() -> bool:
    return sys.stdout.isatty()
