"""Graded shapes given away in anything a solver will see (TF403, TF404).

Numbers that stand next to each other (`2, 24, 11`, `2x24x11`, `B=2, NH=24`, a row of a table) are taken as runs, and
each graded shape is looked for in them: the whole of it, or three consecutive sizes that no public shape has in
the same places, is an error; a pair of such sizes, one of them at least 100, is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from taskfactory.checks.report import Report
from taskfactory.spec import PROSE_FIELDS

# Shipped to the solver as they stand, docstrings and comments included.
_PUBLIC_SOURCES = ("reference_src", "make_inputs_src", "flops_src", "timed_src", "cases_src", "regions_src")
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*\d)(?!\.\d)|(?<=\d[x×])\d+|\d+(?=[x×]\d)")
_BETWEEN = re.compile(r"[\s,;|/*x×`'\"()\[\]]*(?:and\s+)?(?:`[A-Za-z_]\w*`\s*[=:]?\s*`?|[A-Za-z_]\w*\s*[=:]\s*)?")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

Run = tuple[list[int], list[int]]


def check_leaks(report: Report, rendered: Mapping[str, str]) -> None:
    """Look through every public field, and the rendered form of those that are templates."""
    spec = report.file.spec
    public = [*spec.measure_shapes, *spec.measure_quick_shapes, *spec.correct_shapes]
    pieces = [sorted(_distinctive(shape, public), key=len, reverse=True) for shape in spec.grader_shapes]
    for field in ("title", "flops_formula", *PROSE_FIELDS, *_PUBLIC_SOURCES):
        text = getattr(spec, field)
        if text:
            found = _leaks(text, spec.grader_shapes, pieces)
            for message, offset, code in found:
                report.add(code, field, message, offset=offset)
            if field in rendered and not found:
                for message, _, code in _leaks(rendered[field], spec.grader_shapes, pieces):
                    if code == "TF403":
                        report.add("TF421", field, f"rendered, {message}")


def _leaks(
    text: str, graded: Sequence[tuple[int, ...]], pieces: Sequence[Sequence[tuple[int, ...]]]
) -> list[tuple[str, int, str]]:
    """(message, offset, code) of each graded shape that shows: once a shape, the longest piece of it."""
    runs = [run for run in _runs(text) if len(run[0]) > 1]
    # With digit groups joined too, "1,048,576" is one number; offsets are kept by padding behind the number.
    if _GROUPED.search(text):
        joined = re.sub(r"\d{1,3}(?:,\d{3})+(?!\d)", lambda m: m[0].replace(",", "").ljust(len(m[0])), text)
        runs += _runs(joined)
    if not runs:
        return []
    found = []
    for ordinal, (shape, parts) in enumerate(zip(graded, pieces, strict=True), 1):
        for piece in parts:
            offset = next((at for run in runs if (at := _find(run, piece)) >= 0), -1)
            if offset >= 0:
                whole = len(piece) == len(shape)
                said = "all" if whole else "part"
                message = f"{', '.join(map(str, piece))} is {said} of graded shape {ordinal}"
                found.append((message, offset, "TF403" if whole or len(piece) > 2 else "TF404"))
                break
    return found


def _distinctive(shape: tuple[int, ...], public: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """The whole shape, and those runs of it which no public shape has in the same places."""
    if len(shape) > 2 or (len(shape) == 2 and max(shape) >= 32):
        yield shape
    for length in range(2, len(shape)):
        for start in range(len(shape) - length + 1):
            piece = shape[start : start + length]
            if any(other[start : start + length] == piece for other in public):
                continue
            # Small sizes meet in all kinds of prose: only pairs with a large one, and triples with a middling one.
            if max(piece) >= (100 if length == 2 else 32):
                yield piece


def _runs(text: str) -> Iterator[Run]:
    """Maximal sequences of integers with nothing but separators between them, with the offset of each integer."""
    values: list[int] = []
    offsets: list[int] = []
    end = -1
    for match in _NUMBER.finditer(text):
        if len(match[0]) > 18:
            continue
        if values and not _BETWEEN.fullmatch(text, end, match.start()):
            yield values, offsets
            values, offsets = [], []
        values.append(int(match[0]))
        offsets.append(match.start())
        end = match.end()
    if values:
        yield values, offsets


def _find(run: Run, piece: tuple[int, ...]) -> int:
    values, offsets = run
    for start in range(len(values) - len(piece) + 1):
        if tuple(values[start : start + len(piece)]) == piece:
            return offsets[start]
    return -1
