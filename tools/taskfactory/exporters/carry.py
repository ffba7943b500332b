"""What every exported Python file carries: the spec's plain fields as JSON, and its sources in marked sections.

So an importer gets the sources back as they were, and a reader of the foreign format still sees one ordinary module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from taskfactory import __version__
from taskfactory.errors import UsageError
from taskfactory.load import SpecFile
from taskfactory.render import CANARY

PLAIN = (
    "name", "title", "version", "license", "authors", "keywords", "difficulty", "module", "func", "signature",
    "metric", "compare", "tuple_names", "tol", "tile_kappa", "tile_epsilon", "output_dtypes", "shape_names",
    "flops_formula",
)  # fmt: skip
SHAPES = ("correct_shapes", "measure_quick_shapes", "measure_shapes")
"""Public shapes. The graded ones stay where they are."""
SOURCES = (
    "reference_imports", "flops_src", "make_inputs_src", "timed_src", "cases_src", "reference_src", "regions_src",
    "derived_src", "floor_src",
)  # fmt: skip
COMMON = (*PLAIN, *SHAPES, *SOURCES)
"""The fields that survive every export and import."""

ALWAYS_LOST = (
    "The graded shapes are hidden and are not exported; what is timed are the public measure shapes.",
    "The prose for the solver, other than title and blurb, has no place.",
    "Alternates and ablations, which prove that the gates are sound, have no place.",
    "The clock and the verdict outside of the submission's process: the target times and judges in its own way.",
)
_HEAD = "# taskfactory: "
_MARK = "# --- taskfactory: {} ---"
_MARKED = re.compile(r"^# --- taskfactory: (\w+) ---$", re.MULTILINE)
GLUE = "glue"
"""The section that a target's own interface is in."""


def metadata(file: SpecFile, losses: Sequence[str]) -> dict[str, Any]:
    """The plain fields, the public shapes, the digest of the spec, and what was lost."""
    spec = file.spec
    return {
        "taskfactory_version": __version__,
        "canary": CANARY,
        "spec_digest": file.digest,
        "losses": list(losses),
        **{name: getattr(spec, name) for name in (*PLAIN, *SHAPES)},
    }


def module_text(file: SpecFile, data: Mapping[str, Any], glue: str) -> str:
    """One Python module: metadata, the sources, and the target's interface.

    Raises:
        UsageError: a source contains a line that would be taken for a section's mark.
    """
    sections = {name: getattr(file.spec, name) or "" for name in SOURCES} | {GLUE: glue}
    for name, text in sections.items():
        if _MARKED.search(text):
            raise UsageError(f"{file.path}: {name} contains a line that marks sections in exported files")
    parts = [_MARK.format(name) + "\n" + text.strip("\n") for name, text in sections.items() if text.strip()]
    return _HEAD + json.dumps(data, ensure_ascii=True) + "\n\n" + "\n\n\n".join(parts) + "\n"


def read_module(text: str) -> dict[str, Any] | None:
    """The COMMON fields of a module made by `module_text`, or None for any other module.

    Raises:
        UsageError: the metadata is damaged.
    """
    head = next((line for line in text.split("\n") if line.startswith(_HEAD)), None)
    if head is None:
        return None
    try:
        data = json.loads(head.removeprefix(_HEAD))
        fields = {name: frozen(data[name]) for name in (*PLAIN, *SHAPES)}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the line that begins with {_HEAD.strip()!r} is damaged: {error!r}") from None
    pieces = _MARKED.split(text)
    return fields | {
        name: part.strip("\n") for name, part in zip(pieces[1::2], pieces[2::2], strict=True) if name != GLUE
    }


def frozen(value: Any) -> Any:
    """JSON's lists as tuples."""
    return tuple(frozen(each) for each in value) if isinstance(value, list) else value
