"""A finding is one thing wrong with one spec, at a file, a line and a field; and the three ways to print it.

The text form imitates a good compiler: place, code and message on one line, the offending line of source under
it, then what to do about it. The GitHub form becomes annotations on a pull request. The JSON form is for tools.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Severity = Literal["error", "warning"]

_STYLES = {"error": "1;31", "warning": "1;33", "place": "1", "code": "36", "dim": "2", "ok": "1;32", "hint": "32"}
_EXCERPT_WIDTH = 110
# A directory of other people's files may hold anything; an excerpt is a courtesy, so huge files go without.
_EXCERPT_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with a spec.

    `code` is stable across releases and explained in docs/checks.md. `line` counts from 1; 0 means that the
    place is not known (a spec built in memory, a file that cannot be read). `field` is the field of the spec,
    with `.key` or `.index` behind it for a part of one, or empty. `hint` says what to do, in one sentence.
    """

    code: str
    severity: Severity
    message: str
    path: Path | str
    line: int = 0
    field: str = ""
    hint: str = ""

    def place(self) -> str:
        """`path:line`, with the path relative to the working directory where it lies below it."""
        shown = _relative(self.path)
        return f"{shown}:{self.line}" if self.line else shown

    def headline(self) -> str:
        """The finding on one line, without colour."""
        field = f" {self.field}:" if self.field else ""
        return f"{self.place()}: {self.severity} {self.code}{field} {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """A mapping that can be written as JSON."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "path": str(self.path),
            "line": self.line,
            "field": self.field,
            "hint": self.hint,
        }


def in_file_order(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by file, line, code and field and drop exact repetitions, so that output never depends on check order."""
    return sorted(set(findings), key=lambda f: (str(f.path), f.line, f.code, f.field, f.message))


def failed(findings: Iterable[Finding], *, strict: bool = False) -> bool:
    """Whether these findings make a spec unusable: any error, or with `strict` anything at all."""
    return any(strict or finding.severity == "error" for finding in findings)


def format_text(findings: Sequence[Finding], *, color: bool = False, excerpts: bool = True) -> str:
    """The findings for a person, one paragraph each, without a summary; an empty string when there are none."""
    paint = _painter(color)
    blocks: list[str] = []
    shown = ""
    for finding in findings:
        field = f" {finding.field}" if finding.field else ""
        lines = [
            f"{paint('place', finding.place())}: {paint(finding.severity, finding.severity)} "
            f"{paint('code', finding.code)}{paint('place', field)}  {finding.message}"
        ]
        source = _source_line(str(finding.path), finding.line) if excerpts and finding.line else ""
        margin = " " * max(len(str(finding.line)), 4)
        # Several findings about one line show it once.
        if source and finding.place() != shown:
            lines.append(f" {paint('dim', f'{finding.line:>{len(margin)}} |')} {source}")
        if finding.hint:
            lines.append(f" {margin} {paint('dim', '=')} {paint('hint', 'help:')} {finding.hint}")
        shown = finding.place()
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def summary(findings: Sequence[Finding], *, specs: int, color: bool = False, strict: bool = False) -> str:
    """One closing line: how many specs were read and how many errors and warnings they have."""
    paint = _painter(color)
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    parts = [paint("error", _count(errors, "error"))] if errors else []
    if warnings:
        parts.append(paint("warning", _count(warnings, "warning")) + (" (errors under --strict)" if strict else ""))
    told = ", ".join(parts) if parts else paint("ok", "no findings")
    return f"{_count(specs, 'spec')}: {told}"


def format_json(findings: Sequence[Finding], **extra: Any) -> str:
    """A JSON object with `findings` and whatever the caller adds."""
    return json.dumps({**extra, "findings": [f.as_dict() for f in findings]}, indent=2, ensure_ascii=False)


def format_github(findings: Sequence[Finding]) -> str:
    """Workflow commands, one a line, which GitHub shows beside the lines of a pull request."""
    lines = []
    for finding in findings:
        where: Mapping[str, object] = {
            "file": _relative(finding.path),
            "title": f"{finding.code} {finding.field}".strip(),
        }
        if finding.line:
            where = {**where, "line": finding.line}
        properties = ",".join(f"{key}={_escape_property(str(value))}" for key, value in where.items())
        text = f"{finding.message} ({finding.hint})" if finding.hint else finding.message
        lines.append(f"::{finding.severity} {properties}::{_escape_data(text)}")
    return "\n".join(lines)


def color_wanted(stream: Any) -> bool:
    """Whether to colour what goes to `stream`: it is a terminal, and NO_COLOR is not set to anything."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and bool(stream.isatty())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _relative(path: Path | str) -> str:
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


@lru_cache(maxsize=8)
def _file_lines(path: str) -> tuple[str, ...]:
    try:
        file = Path(path)
        if file.stat().st_size > _EXCERPT_FILE_BYTES:
            return ()
        return tuple(file.read_bytes().decode("utf-8", "replace").split("\n"))
    except (OSError, ValueError):
        return ()


def _source_line(path: str, line: int) -> str:
    lines = _file_lines(path)
    if not 0 < line <= len(lines):
        return ""
    # Control characters of a stranger's file must not reach the terminal.
    text = "".join(ch if ch.isprintable() else " " for ch in lines[line - 1].rstrip())
    return text if len(text) <= _EXCERPT_WIDTH else text[: _EXCERPT_WIDTH - 1] + "…"


def _painter(color: bool) -> Any:
    def paint(style: str, text: str) -> str:
        return f"\033[{_STYLES[style]}m{text}\033[0m" if color and text else text

    return paint


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
