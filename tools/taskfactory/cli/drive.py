"""What `run` and `regrade` share: the options of a grading fleet, and driving a stored run to its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from taskfactory.fleet.driver import Watcher
    from taskfactory.fleet.orders import Executor
    from taskfactory.fleet.spool import Spool
    from taskfactory.store.records import Run
    from taskfactory.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])

STORE = click.option("--store", "store_url", envvar="TASKFACTORY_STORE", default="taskfactory.db", show_default=True,
                     metavar="FILE|URL", help="SQLite file, or postgresql://USER@HOST/DATABASE.")  # fmt: skip

_GRADING = (
    click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True,
                 help="On the CPU everything is verified and nothing is timed."),
    click.option("--calls", type=click.IntRange(min=2), help="Timed calls per shape [default: 64 or 32]."),
    click.option("--require-tier", type=click.Choice(["partial", "confined", "namespaced"]), default="confined",
                 show_default=True, help="Refuse to run submissions in a weaker confinement."),
    click.option("--allow-unconfined", is_flag=True, help="Run them even where nothing confines them."),
    click.option("--retries", type=click.IntRange(min=0), default=2, show_default=True,
                 help="Further attempts after an infrastructure error."),
)  # fmt: skip
_EXECUTOR = (
    click.option("--gpus", metavar="UUID,...", help="GPUs to use, by UUID or number [default: all]."),
    click.option("--jobs", type=click.IntRange(min=1), help="Gradings at a time on CPUs [default: one a core]."),
    click.option("--ray", "ray_address", metavar="ADDRESS",
                 help="Grade on a Ray cluster: 'auto', HOST:PORT or ray://HOST:PORT."),
    click.option("--quiet", is_flag=True, help="No progress on stderr."),
)  # fmt: skip


def grading_options(function: F) -> F:
    """Options that say how to grade; they are kept with the run."""
    for option in reversed(_GRADING):
        function = option(function)
    return function


def executor_options(function: F) -> F:
    """Options that say who grades; they may change when a run is resumed."""
    for option in reversed(_EXECUTOR):
        function = option(function)
    return function


def run_settings(
    device: str, calls: int | None, require_tier: str, allow_unconfined: bool, retries: int
) -> dict[str, Any]:
    """The settings that are stored with a run."""
    from taskfactory.grader.supervisor import resolve_device

    tier = "unconfined" if allow_unconfined else require_tier
    return {
        "device": resolve_device(device), "retries": retries, "options": {"calls": calls, "require_tier": tier}
    }  # fmt: skip


def finish(
    store: Store, run: Run, *, gpus: str | None, jobs: int | None, ray_address: str | None, quiet: bool,
    retry_infra: bool = False,
) -> int:  # fmt: skip
    """Drive a run, say what came of it, and return 0 (all graded), 3 (infrastructure errors left) or 130 (stopped)."""
    from taskfactory.fleet.driver import drive
    from taskfactory.fleet.plan import spool_folder
    from taskfactory.fleet.spool import Spool

    spool = Spool(spool_folder(store, run), store)
    stopped = False
    with _interruptible() as was_interrupted, _watcher(quiet) as watcher:
        try:
            executor = _executor(spool, run, gpus, jobs, ray_address)
            counts = drive(store, run, executor, watcher, retry_infra=retry_infra, stop=was_interrupted)
            stopped = was_interrupted()
        finally:
            spool.close()
    for status, number in counts.most_common():
        click.echo(f"{number:6d}  {status}")
    store_option = "" if store.sqlite_path == "taskfactory.db" else f" --store {store.shown_url}"
    again = f"taskfactory run --resume {run.id}{store_option}"
    if stopped:
        click.echo(f"stopped; go on with: {again}", err=True)
        return 130
    if counts["infrastructure_error"]:
        click.echo(
            f"{counts['infrastructure_error']} could not be graded; try them with: {again} --retry infra", err=True
        )
        return 3
    click.echo(f"run {run.id} is complete; see it with: taskfactory report{store_option}", err=True)
    return 0


def _executor(spool: Spool, run: Run, gpus: str | None, jobs: int | None, ray_address: str | None) -> Executor:
    cuda = run.settings["device"] == "cuda"
    if ray_address is not None:
        from taskfactory.fleet.on_ray import RayExecutor

        return RayExecutor(spool, ray_address, cuda=cuda, workers=jobs)
    from taskfactory.fleet.leases import find_gpus
    from taskfactory.fleet.local import LocalExecutor

    if cuda:
        return LocalExecutor(spool, gpus=find_gpus(tuple(filter(None, (gpus or "").split(",")))))
    return LocalExecutor(spool, workers=jobs or len(os.sched_getaffinity(0)))


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a wish to stop; a second Ctrl-C interrupts at once."""
    asked = False

    def handler(number: int, frame: Any) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True
        click.echo("\nstopping; what is stored stays", err=True)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _watcher(quiet: bool) -> Iterator[Watcher]:
    from taskfactory.fleet.driver import Quiet
    from taskfactory.fleet.progress import Lines, Table

    if quiet:
        yield Quiet()
    elif sys.stderr.isatty():
        with Table(sys.stderr) as table:
            yield table
    else:
        yield Lines(sys.stderr)
