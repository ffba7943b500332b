"""The store, on both databases: nothing lost, nothing doubled, nothing changed."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from store.invented import ROW_SCALE, SOURCE, fill, invented_result, new_result
from taskfactory.errors import InfrastructureError, UsageError
from taskfactory.grader.result import Status, dumps
from taskfactory.store import engine as engine_module
from taskfactory.store.schema import APPEND_ONLY, METADATA, RESULT
from taskfactory.store.store import Store, open_store


@pytest.fixture
def store(store_url: str):
    opened = open_store(store_url, create=True)
    yield opened
    opened.close()


def test_a_result_comes_back_byte_for_byte(store: Store) -> None:
    result = invented_result(message="odd: \0 \ud800 ünï")
    fill(store, [("ann", "1", result)], printed="said \0 so", conditions={"throttled": ["heat"]})
    (back,) = store.results()
    assert back.record == dumps(result.to_json())
    assert (back.task, back.submitter, back.sample, back.run_id) == ("row-scale", "ann", "1", "r1")
    assert (back.score, back.reward) == (result.score, result.reward)
    assert [back.score_low, back.score_high] == result.score_interval
    assert back.conditions == {"throttled": ["heat"]}
    assert back.printed == "said � so"
    assert store.source(back.source_sha256) == SOURCE
    assert store.task(back.task_sha256) == ROW_SCALE


def test_each_attempt_counts_once_and_the_first_stays(store: Store) -> None:
    fill(store, [("ann", "1", invented_result(status=Status.INFRASTRUCTURE_ERROR))])
    (job,) = store.jobs("r1")
    assert (job.attempts, job.status) == (1, "infrastructure_error")
    assert not store.add_result(new_result(job.id, invented_result()))
    assert store.add_result(new_result(job.id, invented_result(), attempt=2))
    assert [r.status for r in store.results()] == ["infrastructure_error", "passed"]
    (job,) = store.jobs("r1")
    assert (job.attempts, job.status) == (2, "passed")
    tally = store.tally(store.run("last"))
    assert (tally.jobs, tally.done, tally.broken) == (1, 1, 0)


def test_additions_can_be_repeated(store: Store) -> None:
    for _ in range(2):
        fill(store, [("ann", "1", invented_result()), ("bob", "1", invented_result(fraction=0.4))])
    assert len(store.jobs("r1")) == len(list(store.results())) == 2


@pytest.mark.parametrize("table", APPEND_ONLY)
@pytest.mark.parametrize("verb", ["DELETE FROM {0}", "UPDATE {0} SET {1} = {1}"])
def test_rows_cannot_be_changed_or_deleted(store: Store, table: str, verb: str) -> None:
    fill(store, [("ann", "1", invented_result())])
    column = next(iter(METADATA.tables[table].columns)).name
    with pytest.raises(sa.exc.DBAPIError, match="append-only"), store.engine.begin() as connection:
        connection.exec_driver_sql(verb.format(table, column))


def test_migrations_make_exactly_the_schema(store: Store) -> None:
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_opening_again_changes_nothing_and_a_newer_schema_is_refused(store: Store, store_url: str) -> None:
    open_store(store_url).close()
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(UsageError, match="newer"):
        open_store(store_url)


def test_many_writers_at_once(store: Store, store_url: str) -> None:
    fill(store, [(f"w{k}", "1", invented_result(status=Status.INFRASTRUCTURE_ERROR)) for k in range(8)])
    jobs = store.jobs("r1")

    def write(worker: int) -> int:
        own = open_store(store_url)
        try:
            return sum(own.add_result(new_result(job.id, invented_result(), attempt=2)) for job in jobs)
        finally:
            own.close()

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(4))) == 8  # everyone tried all of them; each was stored once
    assert len(list(store.results())) == 16


def test_several_may_open_a_new_store_at_once(empty_url: str) -> None:
    def make(_: int) -> int:
        own = open_store(empty_url, create=True)
        try:
            return len(own.runs())
        finally:
            own.close()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(make, range(4))) == [0, 0, 0, 0]


def test_opening_waits_where_sqlite_turns_it_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    refused = []

    def pause(seconds: float) -> None:
        refused.append(seconds)
        other.rollback()

    monkeypatch.setattr(engine_module, "BUSY_S", 0)
    monkeypatch.setattr(engine_module.time, "sleep", pause)
    assert open_store(str(path), create=True).runs() == []
    assert len(refused) == 1
    other.close()


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)  # SQLite has no connection to break
@pytest.mark.parametrize("transact", [engine_module.write, engine_module.read])
def test_a_broken_connection_is_made_anew(store: Store, store_url: str, transact: Callable[..., int]) -> None:
    fill(store, [("ann", "1", invented_result(status=Status.INFRASTRUCTURE_ERROR))])
    tries = []

    def change(connection: sa.Connection) -> int:
        tries.append(1)
        if len(tries) < 3:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
            with store.engine.connect() as other:
                other.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")
        return int(connection.execute(sa.select(sa.func.count(RESULT.c.id))).scalar_one())

    assert transact(store.engine, change) == 1
    assert len(tries) == 3


def test_a_write_gives_up_in_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "RETRY_S", 0.0)

    def change(connection: sa.Connection) -> None:
        raise sa.exc.OperationalError("insert", {}, OSError("gone"))

    with pytest.raises(InfrastructureError, match="gone"):
        engine_module.write(store.engine, change)


def test_runs_are_found_by_the_start_of_their_id(store: Store) -> None:
    for name in ("ab1", "ab2"):
        fill(store, [("ann", "1", invented_result())], run_id=name, started_at=f"2026-01-0{name[-1]}")
    assert store.run("last").id == store.run("ab2").id == "ab2"
    for name in ("ab", "zz"):
        with pytest.raises(UsageError, match="newest: ab1, ab2"):
            store.run(name)
    assert [r.run_id for r in store.results(["ab1"])] == ["ab1"]


def test_results_are_read_in_batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskfactory.store.store._BATCH", 2)
    fill(store, [(f"w{k}", "1", invented_result()) for k in range(5)])
    assert [r.submitter for r in store.results()] == [f"w{k}" for k in range(5)]
    assert store.version() == (max(r.id for r in store.results()), 5)


def test_a_record_of_another_schema_is_refused(store: Store) -> None:
    fill(store, [("ann", "1", invented_result())])
    (job,) = store.jobs("r1")
    strange = new_result(job.id, invented_result(), attempt=2)
    object.__setattr__(strange, "record", json.dumps({"schema": 99}))
    with pytest.raises(ValueError, match="schema"):
        store.add_result(strange)


def test_a_missing_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.db: no such store"):
        open_store(str(tmp_path / "nothing.db"))
    with pytest.raises(InfrastructureError):
        open_store(f"postgresql://tester@/none?host={tmp_path}", create=True)


def test_sqlite_is_in_wal_mode(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "a.db"), create=True)
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    store.close()


def test_importing_the_package_needs_no_database_driver() -> None:
    code = "import sys, taskfactory, taskfactory.cli; sys.exit('sqlalchemy' in sys.modules)"
    root = str(Path(engine_module.__file__).parents[2])
    assert subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {code}"]).returncode == 0
