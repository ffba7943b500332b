"""`taskfactory run`: grade many submissions, unattended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from taskfactory.cli.drive import STORE, executor_options, finish, grading_options, run_settings

_EPILOG = """\b
Examples:
  taskfactory run submissions.toml
  taskfactory run samples/ --store postgresql://grader@db/results
  taskfactory run --resume last --retry infra
"""


@click.command("run", epilog=_EPILOG)
@click.argument("manifest", required=False, metavar="[MANIFEST|DIR]", type=click.Path(exists=True, path_type=Path))
@STORE
@grading_options
@executor_options
@click.option("--resume", metavar="RUN", help="Go on with a stored run: the start of its id, or 'last'.")
@click.option("--retry", type=click.Choice(["infra"]), help="With --resume: grade infrastructure errors again.")
def command(
    manifest: Path | None, store_url: str, gpus: str | None, jobs: int | None, ray_address: str | None, quiet: bool,
    resume: str | None, retry: str | None, **grading: Any,
) -> None:  # fmt: skip
    """Grade every submission of a manifest and keep the results in a store.

    MANIFEST is a .toml file of [[submission]] tables or a .jsonl file, with the fields task, submission (a path), who
    and sample; or a folder laid out as TASK/WHO/SAMPLE.py. Each GPU grades one submission at a time. Ctrl-C leaves a
    run that can be resumed. Exits with 0 once everything has a verdict, whatever it is, and with 3 if infrastructure
    errors are left.
    """
    from taskfactory.errors import UsageError
    from taskfactory.fleet.manifest import read_entries
    from taskfactory.fleet.plan import plan_run
    from taskfactory.store.store import open_store

    if (manifest is None) == (resume is None):
        raise UsageError("name a manifest or a folder, or a run with --resume; not both")
    if retry and resume is None:
        raise UsageError("--retry goes with --resume")
    if resume is not None:
        store = open_store(store_url)
        run = store.run(resume)
    else:
        assert manifest is not None
        entries = read_entries(manifest)
        store = open_store(store_url, create=True)
        run = plan_run(store, entries, run_settings(**grading))
    code = finish(
        store, run, gpus=gpus, jobs=jobs, ray_address=ray_address, quiet=quiet, retry_infra=retry == "infra"
    )  # fmt: skip
    store.close()
    sys.exit(code)
