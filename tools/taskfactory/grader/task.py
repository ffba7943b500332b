"""A task as the grader sees it: the facts of `task.json` and the executable sources beside it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
MAX_SUBMISSION_BYTES = 1 << 20
SHAPE_KINDS = ("correct", "quick", "measure", "graded")
MIXED = "mixed"
"""The case under which the inputs of timed calls are verified on correct shapes, where a task mixes them."""


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
    mixed: bool
    """Whether timed calls get the inputs of `mix`; those of `_mk` otherwise."""
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
    data.setdefault("mixed", False)  # a bundle from before there was such a thing
    task = _task(path, data)
    for problem in _problems(task):
        raise TaskError(f"{path}: {problem}; rebuild the bundle")
    return task


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
                "floor": None
                if data["floor"] is None
                else {kind: tuple((float(b), float(f)) for b, f in floor) for kind, floor in data["floor"].items()},
            }
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TaskError(f"{path}: malformed ({error!r}); rebuild the bundle") from None


def _problems(task: Task) -> Iterator[str]:
    """What is wrong with a task of the right fields."""
    for name in ("name", "title", "version", "spec_digest", "module", "func"):
        if not isinstance(getattr(task, name), str):
            yield f"{name} is not a text"
            return
    if task.module != os.path.basename(task.module) or not task.module.endswith(".py"):
        yield f"module {task.module!r} is not the name of a Python file"
    if task.metric not in ("GB/s", "TFLOP/s") or task.compare not in ("tensor", "tuple"):
        yield "metric or compare has an unknown value"
    if not task.outputs or (task.compare == "tensor" and len(task.outputs) != 1):
        yield f"{len(task.outputs)} outputs with compare {task.compare!r}"
    for name in ("tol", "tile_kappa", "tile_epsilon"):
        value = getattr(task, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            yield f"{name} is not a number of 0 or more"
    for name in ("has_regions", "mixed"):
        if not isinstance(getattr(task, name), bool):
            yield f"{name} is not a bool"
    yield from _shape_problems(task)


def _shape_problems(task: Task) -> Iterator[str]:
    if not task.shapes.keys() <= set(SHAPE_KINDS):
        yield f"shapes of an unknown kind; there are {', '.join(SHAPE_KINDS)}"
    for facts in (task.work, task.floor):
        if facts is not None and {k: len(v) for k, v in facts.items()} != {k: len(v) for k, v in task.shapes.items()}:
            yield "work or floor does not belong to the shapes"
    for shape in (shape for shapes in task.shapes.values() for shape in shapes):
        if len(shape) != len(task.shape_names) or any(type(n) is not int for n in shape):
            yield f"shape {shape} is not {len(task.shape_names)} whole numbers"
    if any(type(n) is not int or n <= 0 for work in task.work.values() for n in work):
        yield "work is not a whole number above 0"


def read_submission(path: Path) -> bytes:
    """The submission's bytes: one UTF-8 Python file of at most 1 MiB. Symbolic links are followed.

    Raises:
        TaskError: missing, not a regular file, too large, not UTF-8, or holding NUL bytes.
    """
    try:
        # O_NONBLOCK: a FIFO must not make the grader wait
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TaskError(f"{path}: not a regular file")
            data = file.read(MAX_SUBMISSION_BYTES + 1)
    except FileNotFoundError:
        raise TaskError(f"{path}: no such submission file") from None
    except IsADirectoryError:
        raise TaskError(f"{path}: a directory, not a submission file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise TaskError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_SUBMISSION_BYTES:
        raise TaskError(f"{path}: larger than 1 MiB")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 ({error})") from None
    if "\0" in text:
        raise TaskError(f"{path}: contains a NUL byte")
    return data
