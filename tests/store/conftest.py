"""`store_url` and `empty_url`: each test that takes one runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.databases import fresh_database, postgres_server
from taskfactory.store.store import open_store

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with postgres_server() as urls:
        open_store(fresh_database(urls, "migrated"), create=True).close()
        yield urls


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store to be opened; on PostgreSQL its tables are there already, which saves time."""
    if request.param == "sqlite":
        return str(tmp_path / "results.db")
    return fresh_database(request.getfixturevalue("postgres"), f"test_{next(_numbers)}", "migrated")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without any table."""
    if request.param == "sqlite":
        return str(tmp_path / "results.db")
    return fresh_database(request.getfixturevalue("postgres"), f"test_{next(_numbers)}")
