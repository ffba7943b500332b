"""From what is to be graded to a stored run: tasks as they are now, sources by hash, jobs in order."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskfactory import __version__
from taskfactory.errors import UsageError
from taskfactory.fleet.manifest import Entry
from taskfactory.grading import load, task_directory
from taskfactory.store.records import NewJob, Run, StoredResult, StoredTask, sha256, utc_now
from taskfactory.store.store import Store


def read_task(name: str) -> StoredTask:
    """A task by name, spec file or bundle, as it is now, with the README that its solvers read.

    Raises:
        UsageError, SpecError: as `grading.task_directory`.
    """
    with task_directory(name) as directory:
        facts = load(directory)
        files = {path.name: path.read_text("utf-8") for path in sorted(directory.iterdir()) if _wanted(path)}
    readme = Path(name, "environment", "app", "README.md")
    return StoredTask(
        facts.name, facts.title, facts.version, facts.spec_digest, facts.metric,
        readme.read_text("utf-8") if readme.is_file() else _rendered_readme(name), files,
    )  # fmt: skip


def _wanted(path: Path) -> bool:
    """The task's own files; what else lies in a bundle's tests/ is for containers."""
    return path.is_file() and (path.suffix == ".py" or path.name == "task.json")


def _rendered_readme(name: str) -> str:
    if Path(name, "task.json").is_file():
        return ""  # a bare task directory comes without one
    from taskfactory.load import load_spec
    from taskfactory.paths import resolve_spec
    from taskfactory.render import readme

    return readme(load_spec(resolve_spec(name)))


def plan_run(store: Store, entries: Sequence[Entry], settings: dict[str, Any]) -> Run:
    """Store a run that grades these entries.

    Raises:
        UsageError: a task is unknown or a submission cannot be read. SpecError: a task's spec has errors.
    """
    tasks = {name: read_task(name) for name in dict.fromkeys(entry.task for entry in entries)}
    sources = [entry.submission.read_bytes() for entry in entries]
    jobs = [
        NewJob(tasks[entry.task].content_sha256, sha256(source), entry.who, entry.sample)
        for entry, source in zip(entries, sources, strict=True)
    ]
    return _store_run(store, "run", tasks.values(), dict.fromkeys(sources), jobs, settings)


def _store_run(
    store: Store,
    kind: str,
    tasks: Iterable[StoredTask],
    sources: Iterable[bytes],
    jobs: Sequence[NewJob],
    settings: dict[str, Any],
) -> Run:
    store.add_tasks(tasks)
    store.add_sources(sources)
    run = new_run(kind, settings)
    store.add_run(run, jobs)
    return run


def new_run(kind: str, settings: dict[str, Any]) -> Run:
    """A run of now and here with a fresh id, which sorts by time."""
    now = utc_now()
    name = now[:19].replace("-", "").replace(":", "").replace("T", "-") + "-" + secrets.token_hex(3)
    return Run(name, kind, now, socket.gethostname(), __version__, settings)


@dataclass(frozen=True)
class Selection:
    """Which stored submissions to grade again; empty means all."""

    runs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    submitters: tuple[str, ...] = ()

    def wants(self, result: StoredResult) -> bool:
        """Whether this result's submission is meant."""
        return (not self.tasks or result.task in self.tasks) and (
            not self.submitters or result.submitter in self.submitters
        )


def plan_regrade(store: Store, selection: Selection, settings: dict[str, Any], *, stored_task: bool) -> Run:
    """Store a run that grades stored submissions again; their old results stay.

    Args:
        selection: which; of each (task, submitter, sample) the submission that was graded last is taken.
        settings: as of `plan_run`.
        stored_task: with the task exactly as it was graded then (a new grader alone), instead of as it is now.

    Raises:
        UsageError: nothing is selected, or a task is no longer there.
    """
    newest: dict[tuple[str, str, str], StoredResult] = {}
    for result in store.results(selection.runs):
        if selection.wants(result):
            newest[result.task, result.submitter, result.sample] = result
    if not newest:
        raise UsageError("the store holds no such submission")
    tasks: dict[str, StoredTask] = {}
    if not stored_task:
        tasks = {name: read_task(name) for name in dict.fromkeys(result.task for result in newest.values())}
    jobs = [
        NewJob(
            result.task_sha256 if stored_task else tasks[result.task].content_sha256,
            result.source_sha256, result.submitter, result.sample,
        )
        for result in newest.values()
    ]  # fmt: skip
    return _store_run(store, "regrade", tasks.values(), [], jobs, settings)


def spool_folder(store: Store, run: Run) -> Path:
    """Where this run's spool is on this machine: beside a SQLite store, else in the working directory."""
    beside = store.sqlite_path
    return Path(f"{beside}.spool" if beside else os.environ.get("TASKFACTORY_SPOOL", "taskfactory.spool"), run.id)
