"""`taskfactory regrade`: grade stored submissions again, with the grader and the specs of today."""

from __future__ import annotations

import sys
from typing import Any

import click

from taskfactory.cli.drive import STORE, executor_options, finish, grading_options, run_settings


@click.command("regrade", epilog="Example: taskfactory regrade --task based-forward")
@STORE
@click.option("--run", "runs", multiple=True, metavar="RUN", help="Only what this run graded; repeatable.")
@click.option("--task", "tasks", multiple=True, metavar="TASK", help="Only this task; repeatable.")
@click.option("--who", "submitters", multiple=True, metavar="WHO", help="Only this submitter; repeatable.")
@click.option("--stored-task", is_flag=True, help="With the task as it was graded then, not as its spec is now.")
@grading_options
@executor_options
def command(
    store_url: str, runs: tuple[str, ...], tasks: tuple[str, ...], submitters: tuple[str, ...], stored_task: bool,
    gpus: str | None, jobs: int | None, ray_address: str | None, quiet: bool, **grading: Any,
) -> None:  # fmt: skip
    """Grade stored submissions again in a new run; the old results stay beside the new ones.

    Of each task, submitter and sample the submission that was graded last is taken. Use it after a change of the grader
    or of a spec, or on another machine.
    """
    from taskfactory.fleet.plan import Selection, plan_regrade
    from taskfactory.store.store import open_store

    store = open_store(store_url)
    chosen = tuple(store.run(name).id for name in runs)
    selection = Selection(chosen, tasks, submitters)
    run = plan_regrade(store, selection, run_settings(**grading), stored_task=stored_task)
    code = finish(store, run, gpus=gpus, jobs=jobs, ray_address=ray_address, quiet=quiet)
    store.close()
    sys.exit(code)
