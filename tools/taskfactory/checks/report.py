"""Where checks put their findings: knows the file, and looks severity up by code."""

from __future__ import annotations

from taskfactory.checks.codes import CODES
from taskfactory.findings import Finding
from taskfactory.load import SpecFile


class Report:
    """Collects the findings of one spec file."""

    def __init__(self, file: SpecFile) -> None:
        self.file = file
        self.findings: list[Finding] = []

    def add(
        self, code: str, field: str, message: str, *, line: int = 0, offset: int = 0, row: int = 0, hint: str = ""
    ) -> None:
        """Record a finding.

        The line is `line` if given; else that of the character at `offset` of the field's text; else, for a source
        field, that of its line `row`, counted from 1 as Python reports it. Without a hint the table's remedy is given.
        """
        if not line:
            if row > 1:
                offset = sum(len(text) + 1 for text in self.file.value(field).split("\n")[: row - 1])
            line = self.file.line(field, offset) or self.file.lines.get(field.partition(".")[0], 0)
        entry = CODES[code]
        self.findings.append(Finding(code, entry.severity, message, self.file.path, line, field, hint or entry.fix))
