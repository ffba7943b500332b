"""A task as the grader sees it: the facts of `task.json` and the executable sources beside it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
MAX_SUBMISSION_BYTES = 1 << 20
SHAPE_KINDS = ("correct", "quick", "measure", "graded")


class TaskError(Exception):
    """A task directory that cannot be used; the message says which file and what to do."""


@dataclass(frozen=True)
class Output:
    """One output: its name and the dtype names it may have (None: the default of `compare.allowed_dtypes`)."""

    name: str
    dtypes: tuple[str, ...] | None


@dataclass(frozen=True)
class Task:
    """The facts of one task. A solver's copy has no "graded" entry in `shapes`, `work` and `floor`."""

    name: str
    title: str
    version: str
    spec_digest: str
    module: str
    func: str
    parameters: tuple[str, ...]
    metric: str
    """"GB/s" or "TFLOP/s", decimal."""
    compare: str
    """"tensor" or "tuple"."""
    outputs: tuple[Output, ...]
    tol: float
    tile_kappa: float
    tile_epsilon: float
    has_regions: bool
    shape_names: tuple[str, ...]
    cases: tuple[str, ...]
    shapes: dict[str, tuple[tuple[int, ...], ...]]
    work: dict[str, tuple[int, ...]]
    """Canonical work of each shape: bytes for GB/s, FLOPs for TFLOP/s."""
    floor: dict[str, tuple[tuple[float, float], ...]] | None
    """Unavoidable (bytes, FLOPs) of each shape, or None if the spec declares none."""

    @property
    def work_unit(self) -> float:
        """Divide work per second by this to get the metric."""
        return 1e9 if self.metric == "GB/s" else 1e12


def load_task(directory: Path) -> Task:
    """Read `task.json` of a task directory.

    Raises:
        TaskError: missing, malformed, of another schema, or with unknown or missing fields.
    """
    path = directory / "task.json"
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        hint = "a task directory is a bundle's environment/app or tests"
        raise TaskError(f"{path}: no such file; {hint}") from None
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: {error}") from None
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise TaskError(f"{path}: not a task of schema {SCHEMA}; rebuild the bundle with this version of taskfactory")
    return _task(path, data)


def _task(path: Path, data: dict[str, Any]) -> Task:
    known = {field.name for field in dataclasses.fields(Task)}
    if data.keys() != known:
        strange = sorted(data.keys() ^ known)
        raise TaskError(f"{path}: unknown or missing fields: {', '.join(strange)}; rebuild the bundle")
    try:
        return Task(
            **{
                **data,
                "parameters": tuple(data["parameters"]),
                "outputs": tuple(
                    Output(o["name"], None if o["dtypes"] is None else tuple(o["dtypes"])) for o in data["outputs"]
                ),
                "shape_names": tuple(data["shape_names"]),
                "cases": tuple(data["cases"]),
                "shapes": {kind: tuple(tuple(s) for s in shapes) for kind, shapes in data["shapes"].items()},
                "work": {kind: tuple(work) for kind, work in data["work"].items()},
                "floor": data["floor"]
                and {kind: tuple((float(b), float(f)) for b, f in floor) for kind, floor in data["floor"].items()},
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(f"{path}: malformed ({error!r}); rebuild the bundle") from None


def read_submission(path: Path) -> bytes:
    """The submission's bytes: one UTF-8 Python file of at most 1 MiB.

    Raises:
        TaskError: missing, not a regular file, too large, not UTF-8, or holding NUL bytes.
    """
    try:
        if not path.is_file():
            raise TaskError(f"{path}: no such submission file")
        with path.open("rb") as file:
            data = file.read(MAX_SUBMISSION_BYTES + 1)
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from None
    if len(data) > MAX_SUBMISSION_BYTES:
        raise TaskError(f"{path}: larger than 1 MiB")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 ({error})") from None
    if "\0" in text:
        raise TaskError(f"{path}: contains a NUL byte")
    return data
