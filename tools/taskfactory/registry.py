"""Bundles as a Harbor dataset: `dataset.toml` pins their content, `registry.json` says where they are."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskfactory.errors import UsageError

DATASET = "taskfactory/kernels"
_FILES = ("task.toml", "instruction.md", "README.md", "trajectory.json")
_FOLDERS = ("environment", "tests", "solution", "steps")
_IGNORED_FILES = ("*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")


@dataclass(frozen=True)
class Entry:
    """One bundle: its name as `org/task`, version, description, content digest and folder."""

    name: str
    version: str
    description: str
    digest: str
    path: Path


def content_digest(bundle: Path) -> str:
    """`sha256:` and the hash that Harbor's publisher gives a task's content (harbor 0.25, publisher/packager.py).

    It runs over "path NUL hash newline" of every file that belongs to the task, in order of path; the manifest of a
    bundle does not belong to it. A `.gitignore` in the bundle, which ours have none of, is not looked at.
    """
    digest = hashlib.sha256()
    for path in sorted(_content(bundle), key=lambda p: p.relative_to(bundle).as_posix()):
        inner = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(bundle).as_posix()}\0{inner}\n".encode())
    return "sha256:" + digest.hexdigest()


def _content(bundle: Path) -> Iterator[Path]:
    yield from (bundle / name for name in _FILES if (bundle / name).is_file())
    for folder in _FOLDERS:
        for path in (bundle / folder).rglob("*"):
            ignored = "__pycache__" in path.parts or any(fnmatch.fnmatch(path.name, p) for p in _IGNORED_FILES)
            if path.is_file() and not ignored:
                yield path


def entries(folder: Path) -> list[Entry]:
    """The bundles of a folder, by name.

    Raises:
        UsageError: it holds none, or one whose task.toml cannot be read.
    """
    found = []
    for path in sorted(folder.glob("*/task.toml")) if folder.is_dir() else ():
        try:
            task: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))["task"]
            found.append(
                Entry(task["name"], task["version"], task["description"], content_digest(path.parent), path.parent)
            )
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{path}: cannot be read as a task: {error}") from None
    if not found:
        raise UsageError(f"{folder}: holds no bundles; `taskfactory build` makes them")
    return found


def dataset_toml(bundles: Sequence[Entry], *, name: str, version: str, description: str) -> str:
    """The dataset's manifest: each task by name and digest."""
    lines = [
        'schema_version = "1.0"', "", "[dataset]", f"name = {_toml(name)}", f"version = {_toml(version)}",
        f"description = {_toml(description)}", 'keywords = ["gpu", "kernels"]',
    ]  # fmt: skip
    for entry in bundles:
        lines += ["", "[[tasks]]", f"name = {_toml(entry.name)}", f"digest = {_toml(entry.digest)}"]
    return "\n".join(lines) + "\n"


def registry_json(
    bundles: Sequence[Entry],
    *,
    name: str,
    version: str,
    description: str,
    root: Path,
    git_url: str | None = None,
    git_commit: str | None = None,
) -> str:
    """The registry's list of one dataset; the paths are relative to `root`, from where Harbor is to be run."""
    where = {"git_url": git_url, "git_commit_id": git_commit} if git_url else {}
    tasks = [{"name": entry.name, **where, "path": _relative(entry.path, root)} for entry in bundles]
    return json.dumps([{"name": name, "version": version, "description": description, "tasks": tasks}], indent=1) + "\n"


def _relative(path: Path, root: Path) -> str:
    path, root = path.resolve(), root.resolve()
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
