"""What a certificate lacks of all that a calibration measures; a release needs certificates that lack nothing.

A gap that the machine imposes, such as a mutant for which no time was left at a graded shape, is named in the
certificate and is no lack. What must not be missing are the sections, their rows, every alternate and ablation, and on
a GPU honest work at each measure and graded shape, delta from a grading, and scores to correlate.
Nothing here executes a spec or imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from taskfactory.calibrate.gradings import NOMINAL
from taskfactory.calibrate.quality import large_shapes
from taskfactory.spec import TaskSpec

Figures = Mapping[str, Any]
SECTIONS = {"work": "the work formulas were not verified", "graded_shapes": "graded shapes were not looked at"}
FEWEST_SEEDS = 2
_FIGURES = {"limit_ms": "limit, for which floor_src is needed", "working_set": "working set", "memory_gb": "memory"}
_Shapes = Iterable[tuple[int, ...]]


def lacking(data: Figures, spec: TaskSpec) -> list[str]:
    """What is not there, in sentences that name graded shapes by their numbers."""
    found = [text for name, text in SECTIONS.items() if name not in data]
    found += _subjects(data, spec)
    if "work" in data:
        found += _work(data["work"], spec)
    if "graded_shapes" in data:
        found += _shapes(data["graded_shapes"], spec)
        if data["device"] != "cpu":
            found += _timed(data["graded_shapes"])
    return found


def _subjects(data: Figures, spec: TaskSpec) -> Iterator[str]:
    if len(data["seeds"]) < FEWEST_SEEDS:
        yield f"{len(data['seeds'])} seed was measured; {FEWEST_SEEDS} are asked for"
    shapes = {tuple(shape) for shape in data["shapes"]}
    if missing := set(spec.correct_shapes) - shapes:
        yield f"{len(missing)} of the correct shapes were not measured"
    subjects = data["subjects"]
    names = [f"{field}.{name}" for field in ("alternates", "ablations") for name in getattr(spec, field)]
    yield from (f"{name} was not measured" for name in names if "use" not in subjects.get(name, {}))
    if any(
        "timed" not in row
        for entry in subjects.values()
        for row in entry.get("shapes", ())
        if spec.timed_src and entry["kind"] in ("alternate", "ablation") and tuple(row["shape"]) in spec.correct_shapes
    ):
        yield "its figures are of an earlier form, without those on timed inputs"
    if data["device"] != "cpu":
        yield from _large(subjects, spec)


def _large(subjects: Figures, spec: TaskSpec) -> Iterator[str]:
    """Measure and graded shapes at which no alternate was compared; ablations that were compared at no graded one."""

    def compared(name: str) -> set[tuple[int, ...]]:
        return {tuple(row["shape"]) for row in subjects.get(name, {}).get("shapes", ())}

    honest = set().union(*(compared(f"alternates.{name}") for name in spec.alternates))
    numbers = {"graded": 0, "measure": 0}
    for kind, shape in large_shapes(spec):
        numbers[kind] += 1
        if spec.alternates and shape not in honest:
            yield f"no alternate was compared at {kind} shape {numbers[kind]}"
    for name in spec.ablations:
        if not compared(f"ablations.{name}") & set(spec.grader_shapes):
            yield f"ablations.{name} was compared at no graded shape"


def _work(work: Figures, spec: TaskSpec) -> Iterator[str]:
    rows = {tuple(row["shape"]): row for row in work["rows"]}
    yield from _absent(rows, [*spec.correct_shapes, *spec.grader_shapes], "its work was not verified", spec)
    for shape, row in rows.items():
        if "outputs" not in row or "flops" not in row:
            yield f"sizes or FLOPs are missing {_at(shape, spec)}"
    underived = any("no derivative" in gap for gap in work["gaps"])
    if rows and not underived and not any("touched" in row for row in rows.values()):
        yield "touched bytes were measured at no shape"


def _shapes(section: Figures, spec: TaskSpec) -> Iterator[str]:
    rows = {tuple(row["shape"]): row for row in section["rows"]}
    yield from _absent(rows, [*spec.grader_shapes, *spec.measure_shapes], "it was not looked at", spec)
    for number, shape in enumerate(spec.grader_shapes, 1):
        row = rows.get(shape, {})
        for key, words in _FIGURES.items():
            if row and row.get(key) is None:
                yield f"graded shape {number} has no {words}"


def _timed(section: Figures) -> Iterator[str]:
    if section["delta_from"] == NOMINAL:
        yield "delta is nominal; give a result of the grader (--grading)"
    if section.get("rank_correlation") is None:
        yield "measured and graded scores were not correlated"


def _absent(rows: _Shapes, wanted: _Shapes, words: str, spec: TaskSpec) -> list[str]:
    return [f"{words} {_at(shape, spec)}" for shape in dict.fromkeys(wanted) if shape not in set(rows)]


def _at(shape: tuple[int, ...], spec: TaskSpec) -> str:
    if shape in spec.grader_shapes:
        return f"at graded shape {spec.grader_shapes.index(shape) + 1}"
    return f"at {shape}"
