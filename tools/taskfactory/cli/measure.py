"""`taskfactory measure`: what a solver's own measure.py says, from a checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import click

from taskfactory.cli.turn import NO_WAIT


def _shape(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[tuple[int, ...]]:
    from argparse import ArgumentTypeError

    from taskfactory.grader.cli import parse_shape

    try:
        return [parse_shape(value) for value in values]
    except ArgumentTypeError as error:
        raise click.BadParameter(str(error)) from None


@click.command("measure", epilog="Example: taskfactory measure based-forward solutions/based.py --quick")
@click.argument("task")
@click.argument("submission", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Verify the correct shapes and cases; time nothing.")
@click.option("--quick", is_flag=True, help="Time the quick shapes instead of the measure shapes.")
@click.option("--shape", multiple=True, callback=_shape, help="Time this shape, e.g. 4,4096,16; repeatable.")
@click.option("--seed", type=int, help="Use consecutive input seeds from here, to repeat a run.")
@click.option("--calls", type=click.IntRange(min=2), help="Timed calls per shape [default: 16].")
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True)
@NO_WAIT
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    task: str, submission: Path, check: bool, quick: bool, shape: list[tuple[int, ...]], seed: int | None,
    calls: int | None, device: str, no_wait: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measure SUBMISSION on TASK at public shapes, with the same grader, going on after a failure.

    A GPU serves one submission at a time: this one waits for its turn behind gradings and other measurements.
    """
    from taskfactory.cli.show_result import show_run, watched
    from taskfactory.cli.turn import turn
    from taskfactory.grader.cli import exit_code, measure_options
    from taskfactory.grader.result import dumps
    from taskfactory.grading import grade_submission, load, task_directory

    options = measure_options(SimpleNamespace(check=check, quick=quick, shape=shape, seed=seed, calls=calls))
    with task_directory(task) as directory:
        facts = load(directory)
        with turn(device, no_wait), watched(facts.name) as progress:
            measured, printed = grade_submission(directory, submission, "measure", device, progress, **options)
    if as_json:
        click.echo(dumps(measured.to_json()), nl=False)
    else:
        show_run(measured, facts, printed, private=True)
    sys.exit(exit_code(measured))
