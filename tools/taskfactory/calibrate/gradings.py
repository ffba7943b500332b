"""What the clock leaves open at each graded shape: delta, from results of the grader on the device at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskfactory.errors import UsageError
from taskfactory.load import SpecFile

NOMINAL = "nominal"
"""Where delta is from in a certificate that no grading has told it."""


@dataclass(frozen=True)
class Clock:
    """Delta of every graded shape of a task."""

    deltas_ms: tuple[float, ...]
    source: str
    """Where it is from, such as "a grading on NVIDIA H200"."""


def clock_of(path: Path, file: SpecFile) -> Clock:
    """The deltas of a task from a result of `taskfactory grade`, or from the newest that passed in a folder of results.

    Raises:
        UsageError: there is no such result, or its graded shapes are not those of the spec.
    """
    if not path.is_dir():
        return _clock(path, _read(path), file)
    found = []
    for candidate in sorted(path.glob("*.json")):
        try:
            result = _read(candidate)
            if result["task"] == file.spec.name and result["status"] == "passed" and result["timed"]:
                found.append((str(result["started_at"]), candidate, result))
        except (UsageError, KeyError, TypeError):
            continue  # a folder of results holds other files too
    if not found:
        raise UsageError(f"{path}: no passed and timed result of {file.spec.name}")
    _, newest, result = max(found, key=lambda entry: entry[:2])
    return _clock(newest, result, file)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        result = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a result of the grader ({type(error).__name__}: {error})") from error
    if not isinstance(result, dict):
        raise UsageError(f"{path}: not a result of the grader")
    return result


def _clock(path: Path, result: Mapping[str, Any], file: SpecFile) -> Clock:
    formulas = file.formulas()
    try:
        rows = [shape for shape in result["shapes"] if shape.get("kind") == "graded" and shape.get("delta_ms")]
        deltas = tuple(float(f"{float(row['delta_ms']):.4g}") for row in rows)
        work = [int(row["work"]) for row in rows]
        device = str(result["environment"]["device"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a result of the grader ({type(error).__name__}: {error})") from error
    if not deltas:
        raise UsageError(f"{path}: no graded shape has a delta; it takes a full result from a GPU")
    if work != [formulas.call("canonical_work", *shape) for shape in file.spec.grader_shapes]:
        raise UsageError(f"{path}: its graded shapes are not those of {file.spec.name}")
    return Clock(deltas, f"a grading on {device}")
