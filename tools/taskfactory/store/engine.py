"""Opening the database: URL, SQLite's settings, migrations, and retries where the connection breaks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy
from alembic import command as alembic_command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from taskfactory.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

T = TypeVar("T")

DEFAULT_URL = "sqlite:///taskfactory.db"
BUSY_S = 60
"""How long SQLite waits for another writer."""
RETRY_S = 120.0
"""How long anything is retried while the database cannot be reached."""


def full_url(url_or_path: str) -> str:
    """A database URL; a plain path means a SQLite file, `postgresql://` means psycopg."""
    if "://" not in url_or_path:
        return f"sqlite:///{url_or_path}"
    scheme, rest = url_or_path.split("://", 1)
    return f"postgresql+psycopg://{rest}" if scheme in ("postgresql", "postgres") else url_or_path


def shown_url(engine: Engine) -> str:
    """The URL without its password."""
    return engine.url.render_as_string(hide_password=True)


def connect(url_or_path: str, *, create: bool) -> Engine:
    """An engine on a database whose schema is current.

    Raises:
        UsageError: there is no such database and `create` is false, or its schema is newer than this program.
        InfrastructureError: the database cannot be reached, or its driver is missing.
    """
    url = sqlalchemy.make_url(full_url(url_or_path))
    sqlite = url.get_backend_name() == "sqlite"
    if sqlite and not create and not Path(url.database or "").is_file():
        raise UsageError(f"{url.database}: no such store; `taskfactory run` makes one, --store names another")
    options: dict[str, Any] = {"connect_args": {"timeout": BUSY_S}} if sqlite else {"pool_pre_ping": True}
    try:
        engine = sqlalchemy.create_engine(url, **options)
    except ModuleNotFoundError as error:
        hint = " (pip install 'taskfactory[postgres]')" if error.name == "psycopg" else ""
        raise InfrastructureError(f"the database driver {error.name} is missing{hint}") from None
    if sqlite:
        _tame_sqlite(engine)
    try:
        # A server that does not answer now is told at once; another process that is making the same file is waited for.
        _patiently(engine, lambda: _upgrade(engine), bears=_is_locked)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _tame_sqlite(engine: Engine) -> None:
    """WAL, foreign keys, and transactions that begin when we say so (Python's driver begins them late and silently)."""

    def on_connect(raw: Any, _: Any) -> None:
        raw.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            raw.execute(f"PRAGMA {pragma}")

    def on_begin(connection: Connection) -> None:
        writing = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    sqlalchemy.event.listen(engine, "connect", on_connect)
    sqlalchemy.event.listen(engine, "begin", on_begin)


def _upgrade(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    script = ScriptDirectory.from_config(config)
    with engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current == script.get_current_head():
        return
    if current is not None and current not in {revision.revision for revision in script.walk_revisions()}:
        raise UsageError(f"{shown_url(engine)}: schema {current} is newer than this taskfactory; install a newer one")
    with engine.connect().execution_options(writing=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7202607)")  # one migrator at a time
        config.attributes["connection"] = connection
        alembic_command.upgrade(config, "head")


def write(engine: Engine, change: Callable[[Connection], T]) -> T:
    """Run `change` in one transaction; again, where the connection broke. So `change` must be fit to be repeated.

    Raises:
        InfrastructureError: the database stayed away for `RETRY_S`.
    """
    return _transact(engine, change, writing=True)


def read(engine: Engine, question: Callable[[Connection], T]) -> T:
    """Ask something; again, where the connection broke.

    Raises:
        InfrastructureError: as `write`.
    """
    return _transact(engine, question, writing=False)


def _transact(engine: Engine, work: Callable[[Connection], T], *, writing: bool) -> T:
    def attempt() -> T:
        with engine.connect().execution_options(writing=writing) as connection, connection.begin():
            return work(connection)

    # Also where only the commit's answer was lost: then the repetition finds its rows there already.
    sqlite = engine.dialect.name == "sqlite"  # whose other errors last, such as a full disk
    return _patiently(engine, attempt, bears=_is_locked if sqlite else lambda _: True)


def _is_locked(error: sqlalchemy.exc.DBAPIError) -> bool:
    """Whether SQLite gave way to another process.

    It does so at once, whatever `BUSY_S`, where waiting could deadlock: as in the change to WAL, which turns a reader's
    lock into a writer's.
    """
    return "locked" in str(error.orig)


def _patiently(engine: Engine, attempt: Callable[[], T], *, bears: Callable[[sqlalchemy.exc.DBAPIError], bool]) -> T:
    """`attempt`, again for up to `RETRY_S` while it ends in an error that it `bears`.

    Raises:
        InfrastructureError: another error of the database, or the time is over.
    """
    deadline = time.monotonic() + RETRY_S
    pause = 0.05
    while True:
        try:
            return attempt()
        except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError) as error:
            if not bears(error) or time.monotonic() > deadline:
                raise InfrastructureError(f"{shown_url(engine)}: {error.orig}") from None
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, 5.0)
