"""Showing a running grading and its result; shared by `grade` and `measure`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from taskfactory.grader.result import Result, Status
from taskfactory.grader.supervisor import Progress
from taskfactory.grader.table import describe_failure, printable, result_table, summary
from taskfactory.grader.task import Task


@contextmanager
def watched(name: str) -> Iterator[Progress | None]:
    """A progress bar on stderr, or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        running = bar.add_task(name, total=None)

        def show(step: str, done: int, total: int) -> None:
            bar.update(running, description=f"{name}: {step}", completed=done, total=total)

        yield show


def show_run(result: Result, task: Task, printed: str, private: bool) -> None:
    """Table and verdict on stdout; the reason of a failure, warnings and what the submission printed on stderr."""
    if printed.strip() and private:
        click.echo(f"--- the submission printed ---\n{printable(printed.rstrip())}\n---", err=True)
    click.echo(result_table(result, task, private=private))
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    if result.status is not Status.PASSED:
        click.echo(describe_failure(result, private=private), err=True)
    click.echo(summary(result))
