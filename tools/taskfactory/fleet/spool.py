"""A run's folder on this machine: tasks and sources to grade from, and results that are not yet in the store."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from taskfactory.errors import UsageError
from taskfactory.fleet.orders import Contents, Delivery, Order, delivery_from_json
from taskfactory.grader.result import write_atomically
from taskfactory.grader.task import load_task


class Spool:
    """The folder of one run, locked against a second driver until closed.

    Raises:
        UsageError: another driver has it.
    """

    def __init__(self, folder: Path, contents: Contents) -> None:
        self.folder, self.contents = folder.resolve(), contents
        self.deliveries = self.folder / "deliveries"
        for part in (self.deliveries, self.folder / "tasks", self.folder / "sources"):
            part.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(f"this run is being driven by another process ({self.folder / 'run.lock'})") from None

    def task_dir(self, digest: str) -> Path:
        """The hidden task directory, written on first use."""
        folder = self.folder / "tasks" / digest
        if not folder.is_dir():
            fresh = folder.with_suffix(".new")
            fresh.mkdir(exist_ok=True)
            for name, text in self.contents.task_files(digest).items():
                write_atomically(fresh / name, text)
            fresh.rename(folder)
        return folder

    def submission(self, order: Order) -> Path:
        """The submission's file, written on first use."""
        path = self.folder / "sources" / f"{order.source_sha256}.py"
        if not path.exists():
            fresh = path.with_suffix(".new")
            fresh.write_bytes(self.contents.source(order.source_sha256))
            fresh.rename(path)
        return path

    def module(self, digest: str) -> str:
        """The file name under which the task imports a submission."""
        return load_task(self.task_dir(digest)).module

    def path(self, key: str) -> Path:
        """Where the delivery of this key is or will be."""
        return self.deliveries / f"{key}.json"

    def read(self, key: str) -> Delivery | None:
        """The delivery of this key, or None if there is none."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return delivery_from_json(self.path(key).read_text("utf-8"))
        return None

    def waiting(self) -> Iterator[Delivery]:
        """All deliveries that are there."""
        for path in sorted(self.deliveries.glob("[0-9]*.json")):
            delivery = self.read(path.stem)
            if delivery is not None:
                yield delivery

    def remove(self, key: str) -> None:
        """Forget a delivery."""
        self.path(key).unlink(missing_ok=True)

    def close(self) -> None:
        """Let another driver have it."""
        os.close(self._lock)
