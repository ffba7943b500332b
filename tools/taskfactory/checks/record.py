"""What the dynamic checks record: findings as they are made, and where in the spec a source failed. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable

from taskfactory.checks.report import Report
from taskfactory.findings import Finding
from taskfactory.load import SpecFile


class SourceFailed(Exception):
    """An embedded source raised. `field` and `line` say where in the spec."""

    def __init__(self, field: str, line: int, message: str) -> None:
        super().__init__(message)
        self.field, self.line, self.message = field, line, message


class Record:
    """Findings about one spec, told once each and passed on at once, so that a later crash loses none."""

    def __init__(self, file: SpecFile, emit: Callable[[Finding], None] | None = None) -> None:
        self._report = Report(file)
        self._emit = emit
        self._told: set[tuple[str, ...]] = set()

    @property
    def findings(self) -> list[Finding]:
        """Everything found so far."""
        return self._report.findings

    def add(self, code: str, field: str, message: str, *, about: str = "", line: int = 0, hint: str = "") -> None:
        """Report something about a field, unless it was said before of the same field, line and `about`."""
        key = (code, field, about, str(line))
        if key in self._told:
            return
        self._told.add(key)
        self._report.add(code, field, message, line=line, hint=hint)
        if self._emit is not None:
            self._emit(self._report.findings[-1])

    def failure(self, error: SourceFailed, where: str) -> None:
        """Report that a source raised."""
        self.add("TF601", error.field, f"{error.message} ({where})", line=error.line)


def field_at(file: SpecFile, line: int) -> str:
    """The source field that a line of the file belongs to; empty if none does."""
    first = {name: at for name, at in file.lines.items() if at <= line and isinstance(file.value(name), str)}
    return max(first, key=lambda name: first[name], default="")
