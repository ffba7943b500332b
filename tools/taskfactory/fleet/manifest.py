"""What to grade: a TOML or JSON-lines manifest, or a folder laid out as TASK/WHO/SAMPLE.py."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskfactory.errors import UsageError

FIELDS = ("task", "submission", "who", "sample")


@dataclass(frozen=True)
class Entry:
    """One submission to grade."""

    task: str
    """A task name, a spec file or a built bundle, as `taskfactory grade` takes it."""
    submission: Path
    who: str
    """Model, person or team."""
    sample: str


def read_entries(path: Path) -> list[Entry]:
    """The entries of a manifest file or of a folder.

    Raises:
        UsageError: with every problem that was found, each at its line or entry.
    """
    if path.is_dir():
        entries = _from_folder(path)
    elif path.suffix == ".toml":
        entries = _from_tables(path, _toml(path), "entry")
    elif path.suffix in (".jsonl", ".ndjson"):
        entries = _from_tables(path, _json_lines(path), "line")
    else:
        raise UsageError(f"{path}: a manifest is a .toml or .jsonl file or a folder of TASK/WHO/SAMPLE.py")
    if not entries:
        raise UsageError(f"{path}: names no submission")
    _check(path, entries)
    return entries


def _toml(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    defaults, rows = data.pop("defaults", {}), data.pop("submission", [])
    if data or not isinstance(rows, list) or not isinstance(defaults, dict):
        raise UsageError(f"{path}: holds [[submission]] tables and at most one [defaults] table, nothing else")
    return [(k, {**defaults, **row}) for k, row in enumerate(rows, 1)]


def _json_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    rows = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}:{number}: {error}") from None
            if not isinstance(row, dict):
                raise UsageError(f"{path}:{number}: not an object")
            rows.append((number, row))
    return rows


def _from_tables(path: Path, rows: list[tuple[int, dict[str, Any]]], word: str) -> list[Entry]:
    problems, entries = [], []
    for number, row in rows:
        row = {"sample": "1", **row}
        wrong = [f"unknown field {name!r}" for name in sorted(row.keys() - set(FIELDS))]
        wrong += [f"no field {name!r}" for name in FIELDS if name not in row]
        wrong += [
            f"{name} must be {'text or a number' if name == 'sample' else 'text'}"
            for name in FIELDS
            if name in row
            and not (isinstance(row[name], str) and row[name].strip())
            and not (name == "sample" and isinstance(row[name], int) and not isinstance(row[name], bool))
        ]
        if wrong:
            problems.append(f"{path}: {word} {number}: {', '.join(wrong)}")
            continue
        task = row["task"]
        beside = path.parent / task
        if "/" in task and not Path(task).is_absolute() and beside.exists():
            task = str(beside)  # paths in a manifest are relative to it
        entries.append(Entry(task, path.parent / row["submission"], row["who"], str(row["sample"])))
    if problems:
        raise UsageError("\n".join(problems))
    return entries


def _from_folder(folder: Path) -> list[Entry]:
    """TASK/WHO/SAMPLE.py, or TASK/WHO.py for somebody with a single sample."""
    entries, strange = [], []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if any(part.startswith((".", "__")) for part in parts):
            continue
        if len(parts) == 3:
            entries.append(Entry(parts[0], path, parts[1], path.stem))
        elif len(parts) == 2:
            entries.append(Entry(parts[0], path, path.stem, "1"))
        else:
            strange.append(f"{path}: expected TASK/WHO/SAMPLE.py or TASK/WHO.py below {folder}")
    if strange:
        raise UsageError("\n".join(strange))
    return entries


def _check(path: Path, entries: Iterable[Entry]) -> None:
    seen: dict[tuple[str, str, str], Entry] = {}
    problems = []
    for entry in entries:
        if not entry.submission.is_file():
            problems.append(f"{entry.submission}: no such submission file ({entry.task}, {entry.who}, {entry.sample})")
        if seen.setdefault((entry.task, entry.who, entry.sample), entry) is not entry:
            problems.append(f"{path}: {entry.task}, {entry.who}, sample {entry.sample} is there twice")
    if problems:
        raise UsageError("\n".join(problems))
