"""Databases for tests: a SQLite file, or a PostgreSQL server of its own on a private socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


def postgres_programs() -> Path | None:
    """The folder of Debian's newest PostgreSQL server, or None."""
    return _PROGRAMS[-1] if _PROGRAMS else None


@contextmanager
def postgres_server() -> Iterator[str]:
    """A running server without TCP, as a format string of URLs: `{database}` stands for the database's name.

    It refuses to run as root, so root runs it as the package's user `postgres`.
    """
    programs = postgres_programs()
    if programs is None:
        message = "PostgreSQL is not installed (apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    pytest.importorskip("psycopg")
    folder = tempfile.mkdtemp(prefix="pg-")  # not pytest's folder: a socket's path is at most 107 bytes long
    user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "postgres", "postgres")

    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)  # type: ignore[call-overload]

    try:
        data = f"{folder}/data"
        run("initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start")
        try:
            yield f"postgresql://tester@/{{database}}?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fresh_database(urls: str, name: str, template: str = "template0") -> str:
    """The URL of a new database on the server: empty, or a copy of `template`."""
    import psycopg

    with psycopg.connect(urls.format(database="postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")  # type: ignore[arg-type]
    return urls.format(database=name)
