"""The store: add runs, jobs and results; read them back. Every addition can be repeated without doubling anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from taskfactory.errors import UsageError
from taskfactory.grader.result import Status, from_json
from taskfactory.store.engine import DEFAULT_URL, connect, read, shown_url, write
from taskfactory.store.records import (
    Job,
    NewJob,
    NewResult,
    Run,
    StoredResult,
    StoredTask,
    Tally,
    sha256,
    utc_now,
)
from taskfactory.store.schema import JOB, RESULT, RUN, SOURCE, TASK

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

_BATCH = 500


class Store:
    """An open database. Safe to use from one thread; several processes may have the same one open."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return shown_url(self.engine)

    @property
    def sqlite_path(self) -> str | None:
        """Path of the file, where it is one."""
        return self.engine.url.database if self.engine.dialect.name == "sqlite" else None

    def close(self) -> None:
        """Release the connections."""
        self.engine.dispose()

    # -- additions

    def add_tasks(self, tasks: Iterable[StoredTask]) -> None:
        """Keep tasks; those that are there already stay."""
        rows = [
            {
                "content_sha256": task.content_sha256, "name": task.name, "title": task.title, "version": task.version,
                "spec_digest": task.spec_digest, "metric": task.metric, "readme": task.readme, "files": task.files_json,
            }
            for task in tasks
        ]  # fmt: skip
        write(self.engine, lambda connection: self._insert(connection, TASK, rows))

    def add_sources(self, sources: Iterable[bytes]) -> None:
        """Keep submissions' sources; those that are there already stay."""
        rows = [{"sha256": sha256(content), "content": content} for content in sources]
        write(self.engine, lambda connection: self._insert(connection, SOURCE, rows))

    def add_run(self, run: Run, jobs: Sequence[NewJob]) -> None:
        """Keep a run with all of its jobs, or nothing."""
        head = {**run.__dict__, "settings": json.dumps(run.settings, sort_keys=True)}
        rows = [{"run_id": run.id, "ordinal": k, **job.__dict__} for k, job in enumerate(jobs, 1)]

        def change(connection: Connection) -> None:
            self._insert(connection, RUN, [head])
            self._insert(connection, JOB, rows)

        write(self.engine, change)

    def add_result(self, result: NewResult) -> bool:
        """Keep one grading; False if this attempt of the job is there already, which then stays as it is.

        Raises:
            TypeError, ValueError: the record is not a result of the grader's schema.
        """
        parsed = from_json(json.loads(result.record))
        low, high = parsed.score_interval or (None, None)
        row = {
            **result.__dict__,
            "conditions": json.dumps(result.conditions, sort_keys=True),
            "record_sha256": sha256(result.record.encode()),
            "printed": result.printed.replace("\0", "\ufffd"),  # PostgreSQL's text holds no NUL
            "status": parsed.status.value, "timed": parsed.timed, "score": parsed.score,
            "score_low": low, "score_high": high, "reward": parsed.reward,
            "device": str(parsed.environment.get("device", "unknown")),
            "tier": str(parsed.confinement.get("tier", "unconfined")),
            "started_at": parsed.started_at, "duration_s": parsed.duration_s, "stored_at": utc_now(),
        }  # fmt: skip
        return write(self.engine, lambda connection: self._insert(connection, RESULT, [row])) == 1

    def _insert(self, connection: Connection, table: sa.Table, rows: list[dict[str, Any]]) -> int:
        """Insert rows, skipping those whose key exists; returns how many were new."""
        if self.engine.dialect.name == "postgresql":
            from sqlalchemy.dialects.postgresql import insert
        else:
            from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
        (key,) = table.primary_key
        new = 0
        for row in rows:
            statement = insert(table).values(row).on_conflict_do_nothing().returning(key)
            new += len(connection.execute(statement).all())
        return new

    # -- questions

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        query = sa.select(RUN).order_by(RUN.c.started_at, RUN.c.id)
        return [Run(**{**row, "settings": json.loads(row["settings"])}) for row in self._rows(query)]

    def run(self, name: str) -> Run:
        """The run whose id begins with `name`; "last" is the newest.

        Raises:
            UsageError: none, or more than one.
        """
        runs = self.runs()
        found = runs[-1:] if name == "last" else [run for run in runs if run.id.startswith(name)]
        if len(found) != 1:
            known = ", ".join(run.id for run in runs[-5:]) or "none"
            raise UsageError(f"{'no' if not found else 'more than one'} run {name!r} in the store; the newest: {known}")
        return found[0]

    def jobs(self, run_id: str) -> list[Job]:
        """A run's jobs in order, each with the number of its results and the status of the last."""
        last = sa.select(RESULT.c.job_id, sa.func.max(RESULT.c.attempt).label("attempts")).group_by(RESULT.c.job_id)
        newest = last.subquery()
        query = (
            sa.select(
                JOB.c.id, JOB.c.run_id, JOB.c.ordinal, JOB.c.task_sha256, TASK.c.name.label("task"),
                JOB.c.source_sha256, JOB.c.submitter, JOB.c.sample,
                sa.func.coalesce(newest.c.attempts, 0).label("attempts"), RESULT.c.status,
            )
            .join(TASK, TASK.c.content_sha256 == JOB.c.task_sha256)
            .outerjoin(newest, newest.c.job_id == JOB.c.id)
            .outerjoin(RESULT, sa.and_(RESULT.c.job_id == JOB.c.id, RESULT.c.attempt == newest.c.attempts))
            .where(JOB.c.run_id == run_id)
            .order_by(JOB.c.ordinal)
        )  # fmt: skip
        return [Job(**row) for row in self._rows(query)]

    def tally(self, run: Run) -> Tally:
        """How far a run is."""
        jobs = self.jobs(run.id)
        broken = sum(job.status == Status.INFRASTRUCTURE_ERROR for job in jobs)
        done = sum(job.status is not None for job in jobs) - broken
        query = sa.select(sa.func.max(RESULT.c.stored_at)).join(JOB).where(JOB.c.run_id == run.id)
        last = read(self.engine, lambda connection: connection.execute(query).scalar())
        return Tally(run, len(jobs), done, broken, last)

    def results(self, run_ids: Sequence[str] = (), after: int = 0) -> Iterator[StoredResult]:
        """Results in the order in which they were stored, of some runs or of all, from behind id `after`."""
        query = self._results().order_by(RESULT.c.id).limit(_BATCH)
        if run_ids:
            query = query.where(JOB.c.run_id.in_(run_ids))
        while rows := self._rows(query.where(RESULT.c.id > after)):
            yield from map(_stored, rows)
            after = int(rows[-1]["id"])

    def result(self, number: int) -> StoredResult:
        """One result. Raises KeyError if it is not there."""
        rows = self._rows(self._results().where(RESULT.c.id == number))
        if not rows:
            raise KeyError(number)
        return _stored(rows[0])

    def _results(self) -> sa.Select[Any]:
        return (
            sa.select(
                *(column for column in RESULT.c if column.name != "record_sha256"),
                JOB.c.run_id, JOB.c.task_sha256, JOB.c.source_sha256, JOB.c.submitter, JOB.c.sample,
                TASK.c.name.label("task"), TASK.c.spec_digest, TASK.c.metric,
            )
            .join(JOB, JOB.c.id == RESULT.c.job_id)
            .join(TASK, TASK.c.content_sha256 == JOB.c.task_sha256)
        )  # fmt: skip

    def version(self) -> tuple[int, int]:
        """(newest result, number of jobs): changes whenever a page about the store would."""
        query = sa.select(
            sa.select(sa.func.coalesce(sa.func.max(RESULT.c.id), 0)).scalar_subquery(),
            sa.select(sa.func.count(JOB.c.id)).scalar_subquery(),
        )
        newest, jobs = read(self.engine, lambda connection: connection.execute(query).one())
        return int(newest), int(jobs)

    def task(self, content_sha256: str) -> StoredTask:
        """One task, files included. Raises KeyError if it is not there."""
        rows = self._rows(sa.select(TASK).where(TASK.c.content_sha256 == content_sha256))
        if not rows:
            raise KeyError(content_sha256)
        row = rows[0]
        del row["content_sha256"]
        return StoredTask(**{**row, "files": json.loads(row["files"])})

    def task_files(self, content_sha256: str) -> dict[str, str]:
        """The hidden directory of a task. Raises KeyError if it is not there."""
        return self.task(content_sha256).files

    def source(self, digest: str) -> bytes:
        """One submission's bytes. Raises KeyError if it is not there."""
        query = sa.select(SOURCE.c.content).where(SOURCE.c.sha256 == digest)
        content = read(self.engine, lambda connection: connection.execute(query).scalar())
        if content is None:
            raise KeyError(digest)
        return bytes(content)

    def _rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        return read(self.engine, lambda connection: [dict(row) for row in connection.execute(query).mappings()])


def _stored(row: dict[str, Any]) -> StoredResult:
    return StoredResult(**{**row, "conditions": json.loads(row["conditions"])})


def open_store(url_or_path: str = DEFAULT_URL, *, create: bool = False) -> Store:
    """Open a store, its schema brought up to date.

    Raises:
        UsageError: there is none and `create` is false, or it was made by a newer version.
        InfrastructureError: it cannot be reached, or a package is missing.
    """
    return Store(connect(url_or_path, create=create))
