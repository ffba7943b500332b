"""Results as plain text."""

from __future__ import annotations

import unicodedata

from .result import Result, ShapeResult, Status
from .task import Task

_OBEYED = frozenset(("Cc", "Cf", "Co", "Cs", "Zl", "Zp"))
"""Unicode categories that steer a terminal or reorder what it shows."""


def printable(text: str) -> str:
    """Text of a submission's making without control characters, which a terminal would obey; lines and tabs stay."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _OBEYED else c.encode("unicode_escape").decode()
        for c in text
    )


def _number(value: float | None, pattern: str) -> str:
    return "" if value is None else format(value, pattern)


def shape_label(shape: ShapeResult, task: Task) -> str:
    """Graded shapes by ordinal, public ones by their dimensions."""
    if shape.kind == "graded":
        return f"graded {shape.ordinal}"
    dims = " ".join(f"{name}={n}" for name, n in zip(task.shape_names, shape.shape, strict=True))
    return f"{shape.kind} {shape.ordinal}: {dims}"


def shape_row(shape: ShapeResult, task: Task, private: bool) -> list[str]:
    """Cells: shape, calls, worst E, claim, score time, delta, metric, fraction of limit; no times of graded shapes in
    public."""
    errors = ", ".join(f"{name} {error:.2g}" for name, error in shape.errors.items())
    if shape.score_ms is None:
        claim = min(shape.claim_ms) if shape.claim_ms else None
        return [shape_label(shape, task), str(shape.calls), errors, _number(claim, ".3f"), "", "", "not timed", ""]
    metric = _number(shape.metric, ".1f") if shape.bounded else "unbounded"
    times = [_number(time, ".4f") for time in (shape.claim_median_ms, shape.score_ms, shape.delta_ms)]
    if shape.kind == "graded" and not private:
        times = ["", "", ""]
    fraction = _number(shape.fraction_of_limit, ".3f")
    return [shape_label(shape, task), str(shape.calls), errors, *times, metric, fraction]


def result_table(result: Result, task: Task, private: bool = True) -> str:
    """An aligned table of all shapes."""
    head = ["shape", "calls", "worst E", "claim ms", "score ms", "delta ms", task.metric, "of limit"]
    rows = [head, *(shape_row(shape, task, private) for shape in result.shapes)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def describe_failure(result: Result, private: bool) -> str:
    """What failed, in a few lines; coordinates and tracebacks only in the private form."""
    data = result.to_json() if private else result.public_json()
    failure = data["failure"]
    lines = [f"{data['status']}: {data['message'] or result.status.meaning}"]
    if failure is not None:
        if private and failure["shape"]:
            lines.append(f"  at shape {tuple(failure['shape'])}, seed {failure['seed']}")
        lines += [
            f"  {output['name']}{d['index']}: {d['actual']}, expected {d['expected']}"
            for output in failure["outputs"]
            for d in output.get("differences", [])
        ]
        if failure["traceback"]:
            lines.append(failure["traceback"].rstrip())
    return printable("\n".join(lines))


def summary(result: Result) -> str:
    """The last line: verdict and score."""
    confined = "" if result.confinement.get("tier") != "unconfined" else " [unconfined]"
    if result.score is not None:
        return f"{result.task}: passed, {result.score:.1f} {result.metric}, {result.reward:.3f} of the limit{confined}"
    if result.status is Status.PASSED:
        return f"{result.task}: passed, not timed ({result.calls_verified} calls verified){confined}"
    return f"{result.task}: {result.status}{confined}"
