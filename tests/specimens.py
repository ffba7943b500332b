"""Spec files for tests: the one `taskfactory new` writes, and damaged copies of it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from taskfactory.checks import check_spec
from taskfactory.errors import SpecError
from taskfactory.findings import Finding
from taskfactory.load import load_spec
from taskfactory.scaffold import render_new

NAME = "ragged-softmax"
FILE = "ragged_softmax.py"


@lru_cache(maxsize=1)
def text() -> str:
    """A flawless spec."""
    return render_new(NAME)


def damaged(*changes: tuple[str, str]) -> str:
    """The flawless spec with strings replaced, each of which must occur."""
    result = text()
    for old, new in changes:
        assert old in result, f"the specimen does not contain {old!r}"
        result = result.replace(old, new, 1)
    return result


def write(folder: Path, content: str, name: str = FILE) -> Path:
    path = folder / name
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    return path


def findings_of(path: Path) -> list[Finding]:
    """Everything that loading and the static checks say about a file."""
    try:
        return check_spec(load_spec(path))
    except SpecError as error:
        return list(error.findings)


def line_of(content: str, needle: str) -> int:
    """The line on which `needle` begins."""
    return content.count("\n", 0, content.index(needle)) + 1
