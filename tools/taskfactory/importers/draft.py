"""The fields an importer found, completed by guesses that say so, as the text of a spec file."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskfactory.spec import FIELDS

TOL = 1e-2
_UNKNOWN_LICENCE = "LicenseRef-unknown"


@dataclass
class Draft:
    """Fields of a spec as far as they are known, and sentences on what has to be looked at."""

    fields: dict[str, Any]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Imported:
    """A spec file's text, the task's name, and what is left to do."""

    name: str
    text: str
    notes: tuple[str, ...]


def task_name(text: str) -> str:
    """Any text as kebab-case that begins with a letter and is no module's name."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", text).lower())
    name = "-".join(words)[:56].strip("-") or "problem"
    return name if name[0].isalpha() and "-" in name else f"task-{name}"


def identifier(text: str) -> str:
    """Any text as a lower-case identifier."""
    name = re.sub(r"\W+", "_", text).strip("_").lower() or "kernel"
    return f"kernel_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def render(draft: Draft, source: str, licence: str | None) -> Imported:
    """Complete a draft and write it as a spec."""
    known = draft.fields
    notes = list(draft.notes)
    name = known["name"]
    values: dict[str, Any] = {**_guesses(known, source, notes), **known}
    if licence is not None:
        values["license"] = licence
    elif "license" not in known:
        values["license"] = _UNKNOWN_LICENCE
        notes.append("license: the problem's files do not name one; find out before you publish anything made of it.")
    lines = ["from taskfactory import TaskSpec", "", f"# Imported from {source}. What is left to do:"]
    lines += [f"# TODO {note}" for note in notes] or ["# TODO nothing that is known of."]
    lines += ["", "SPEC = TaskSpec("]
    for key in FIELDS:
        if key in values and values[key] not in (None, {}):
            lines.append(f"    {key}={_literal(values[key])},")
    return Imported(name, "\n".join([*lines, ")"]) + "\n", tuple(notes))


def _guesses(known: Mapping[str, Any], source: str, notes: list[str]) -> dict[str, Any]:
    """A value for every field that a spec needs and the problem does not give."""
    names = known["shape_names"]
    guesses: dict[str, Any] = {
        "title": known["name"].replace("-", " ").capitalize(),
        "blurb": f"An operation imported from {source}; nothing is written about it yet.",
        "keywords": ("imported", source),
        "module": known["name"].replace("-", "_") + "_kernel.py",
        "returns_doc": "See `reference.py` for the arguments and what is returned.",
        "reference_imports": "import torch",
        "metric": "GB/s",
        "compare": "tensor",
        "tol": TOL,
        "spec_md": "The operation is what `reference.py` computes.",
        "contract_md": "The arguments are those that `make_inputs.py` makes, in that order.",
        "regime_md": "Shapes like the public ones.",
        "correctness_md": "The relative error must not exceed {{ tol }}.",
        "perf_md": "Nothing is known about where the time goes.",
        "precision_md": "The dtypes are those of the reference; accumulate in float32.",
        "difficulty": "medium",
        "flops_src": _work(names),
        "version": "0.1.0",
    }
    if "tol" not in known:
        notes.append(f"tol: {TOL:g} is a guess; run `taskfactory calibrate`.")
    if "flops_src" not in known:
        notes.append(
            "flops_src: canonical_work is a placeholder (4 bytes for each element of the product of the shape)."
        )
    prose = [
        key for key in ("blurb", "spec_md", "contract_md", "regime_md", "perf_md", "precision_md") if key not in known
    ]
    if prose:
        notes.append(f"{', '.join(prose)}: the prose is yours to write.")
    if "grader_shapes" not in known:
        guesses["grader_shapes"] = tuple(_other(shape) for shape in known["measure_shapes"])
        notes.append(
            "grader_shapes: the measure shapes with another first integer; choose what is really to be graded."
        )
    return guesses


def _other(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0] + max(1, shape[0] // 8), *shape[1:])


def _work(names: tuple[str, ...]) -> str:
    return f"def canonical_work({', '.join(names)}):\n    return 4 * {' * '.join(names)}\n"


def _literal(value: Any) -> str:
    if isinstance(value, str) and "\n" in value:
        body = value.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        if body.endswith('"'):
            body = body[:-1] + '\\"'
        return f'"""{body}"""'
    if isinstance(value, tuple):
        return "(" + "".join(f"{_literal(each)}, " for each in value).rstrip() + ")" if value else "()"
    return repr(value)
