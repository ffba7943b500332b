"""`taskfactory grade`: verify and time a submission at the hidden shapes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from taskfactory.cli.turn import NO_WAIT


@click.command(
    "grade",
    epilog="Example: taskfactory grade based-forward solutions/based.py --result result.json",
)
@click.argument("task")
@click.argument("submission", type=click.Path(path_type=Path))
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True,
              help="On the CPU everything is verified and nothing is timed.")  # fmt: skip
@click.option("--calls", type=click.IntRange(min=2), help="Timed calls per shape [default: 64 or 32, by the floor].")
@click.option("--result", type=click.Path(dir_okay=False, path_type=Path), help="Write the full private result here.")
@click.option("--require-tier", type=click.Choice(["partial", "confined", "namespaced"]), default="confined",
              show_default=True, help="Refuse to run the submission in a weaker confinement.")  # fmt: skip
@click.option("--allow-unconfined", is_flag=True, help="Run it even where nothing confines it; the result says so.")
@NO_WAIT
@click.option("--public", is_flag=True, help="Show and print the form that a solver may see.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    task: str, submission: Path, device: str, calls: int | None, result: Path | None, require_tier: str,
    allow_unconfined: bool, no_wait: bool, public: bool, as_json: bool,
) -> None:  # fmt: skip
    """Grade SUBMISSION on TASK (a task name, a spec file or a built bundle).

    First every correct shape and case is verified, then the graded shapes are timed, every call verified. A GPU serves
    one grading at a time: this one waits for its turn, also behind a `taskfactory run`. Exits with 0 if the submission
    passed, 1 if it failed, 3 if the environment is broken or, with --no-wait, in use.
    """
    from taskfactory.cli.show_result import show_run, watched
    from taskfactory.cli.turn import turn
    from taskfactory.errors import UsageError
    from taskfactory.grader.cli import exit_code
    from taskfactory.grader.result import dumps, write_atomically
    from taskfactory.grading import grade_submission, load, task_directory

    if result is not None and not result.parent.is_dir():
        raise UsageError(f"{result.parent}: no such directory, and it would be a pity to grade for nothing")
    with task_directory(task) as directory:
        facts = load(directory)
        with turn(device, no_wait), watched(facts.name) as progress:
            tier = "unconfined" if allow_unconfined else require_tier
            graded, printed = grade_submission(
                directory, submission, "grade", device, progress, calls=calls, require_tier=tier
            )
    if result is not None:
        write_atomically(result, dumps(graded.to_json()))
    if as_json:
        click.echo(dumps(graded.public_json() if public else graded.to_json()), nl=False)
    else:
        show_run(graded, facts, printed, private=not public)
    sys.exit(exit_code(graded))
