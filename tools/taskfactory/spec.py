"""`TaskSpec`: everything there is to say about one task, as data.

A spec file binds `SPEC = TaskSpec(...)` with literal values only, so that it can be read without running it
(`taskfactory.load`). It is an ordinary Python file all the same, and this class is what it imports.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, StrictFloat, StrictInt, StrictStr
from pydantic.dataclasses import dataclass

from taskfactory.errors import SpecError

Shape = tuple[StrictInt, ...]
Shapes = tuple[Shape, ...]
Names = tuple[StrictStr, ...]
Sources = dict[StrictStr, StrictStr]
Finite = Annotated[StrictFloat, Field(allow_inf_nan=False)]

# Grouped for the checks and for whoever renders them; the order is the order of a README.
PROSE_FIELDS = (
    "blurb",
    "returns_doc",
    "spec_md",
    "contract_md",
    "regime_md",
    "correctness_md",
    "precision_md",
    "perf_md",
)
SOURCE_FIELDS = (
    "reference_imports",
    "flops_src",
    "reference_src",
    "make_inputs_src",
    "derived_src",
    "floor_src",
    "timed_src",
    "cases_src",
    "regions_src",
)
SHAPE_FIELDS = ("grader_shapes", "measure_shapes", "measure_quick_shapes", "correct_shapes")


@dataclass(
    frozen=True,
    kw_only=True,
    config=ConfigDict(extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=False),
)
class TaskSpec:
    """One GPU-kernel-writing task. Every value is a literal; lists are accepted where tuples are declared.

    Raises:
        pydantic.ValidationError: a field is missing, unknown or of the wrong type. (`load_spec` reports the
            same as findings with lines.)
    """

    # What it is called.
    name: StrictStr
    """The task's name in kebab-case, unique among all specs; also the name of its bundle."""
    title: StrictStr
    """One line, shown as the heading of the README."""
    blurb: StrictStr
    """One paragraph: what the operation is for and what makes it hard. Markdown, may use Jinja."""
    keywords: Names
    """Search words."""
    module: StrictStr
    """File name of the submission, such as `based.py`; no folder."""
    func: StrictStr
    """The function a submission defines, and the reference defines too."""
    signature: StrictStr
    """`func(...)` with parameter names and defaults, as the solver sees it."""
    returns_doc: StrictStr
    """Docstring of the starter: arguments with shapes and dtypes, and what is returned. May use Jinja."""

    # What it computes.
    reference_imports: StrictStr
    """Import statements shared by all embedded sources."""
    reference_src: StrictStr
    """Defines `func`: slow, obvious PyTorch, the numerical truth."""
    make_inputs_src: StrictStr
    """Defines `_mk(*shape_names, seed)`, returning the positional arguments of one call; says `device="cuda"`."""
    flops_src: StrictStr
    """Defines `canonical_work(*shape_names)`: bytes (metric GB/s) or FLOPs (metric TFLOP/s) of one call, a positive
    int, plus any helpers. Evaluated by `taskfactory.formulas`, so plain Python arithmetic where it is reached."""
    flops_formula: StrictStr | None = None
    """`canonical_work` as a person would write it, for the README."""

    # How it is judged.
    metric: Literal["GB/s", "TFLOP/s"]
    """What a timing is turned into; decimal, 1e9 bytes or 1e12 FLOPs a second."""
    compare: Literal["tensor", "tuple"]
    """Whether `func` returns one tensor or a tuple of tensors."""
    tuple_names: Names | None = None
    """Names of the returned tensors, in order; given exactly when `compare` is `tuple`."""
    tol: Finite
    """Largest relative Frobenius error of a floating-point output, in (0, 1)."""
    tile_kappa: Finite = 4.0
    """Factor on `tol` for every tile of 4096 consecutive elements of a floating-point output."""
    tile_epsilon: Finite = 0.1
    """Share of the median tile norm below which a quiet tile's own norm is not used as its scale."""
    output_dtypes: tuple[Names, ...] | None = None
    """Allowed dtype names per output, such as `(("bfloat16", "float32"),)`. Without it integers and booleans are
    returned as the reference returns them, floats in bfloat16 or float32."""

    # Where it is run.
    shape_names: Names
    """Names of a shape's integers, in the order of `_mk` and `canonical_work`."""
    grader_shapes: Shapes
    """Hidden shapes a submission is scored on."""
    measure_shapes: Shapes
    """Public shapes close to the hidden ones, for `measure.py`."""
    measure_quick_shapes: Shapes
    """Small public shapes for a first timing."""
    correct_shapes: Shapes
    """Small public shapes on which outputs are verified; ragged and odd ones belong here."""

    # What the solver reads. Markdown; may use Jinja over ranges of shapes and derived values.
    spec_md: StrictStr
    """The operation, exactly."""
    contract_md: StrictStr
    """A table of the arguments (shape, dtype, meaning), what is returned, and what may be relied on."""
    regime_md: StrictStr
    """The range of shapes that are graded, without giving any of them away."""
    correctness_md: StrictStr
    """What is compared and how closely."""
    perf_md: StrictStr
    """Hints on speed."""
    precision_md: StrictStr
    """Which precision is expected where, and where the tolerance comes from."""

    # What makes it trustworthy. Optional in form; leaving them out is a warning.
    derived_src: StrictStr | None = None
    """Defines `derived(*shape_names) -> dict[str, number]` and/or `claims(*shape_names) -> dict[str, bool]`. Derived
    values may be used in prose; a claim's key is the sentence it backs, and it must hold at every graded shape. May
    also define `reference_flops(*shape_names)`, what torch's FLOP counter sees in the reference, and
    `touched_bytes(*shape_names)`, the bytes of inputs and outputs that the result depends on, where these are not
    those of `canonical_work`: calibration holds both against what it counts."""
    floor_src: StrictStr | None = None
    """Defines `floor(*shape_names) -> (bytes, flops)`: unique bytes and FLOPs no implementation can avoid."""
    timed_src: StrictStr | None = None
    """Defines `mix(*shape_names, seed)` like `_mk`: the inputs of every timed call, in which values that cases have
    apart are mixed at random, in arguments of the shapes and dtypes of `_mk`. Also verified on every correct shape, as
    the case `mixed`. Without it timed calls get the inputs of `_mk`, from which a submission can tell the cases."""
    cases_src: StrictStr | None = None
    """Defines `case_<name>(*shape_names, seed)` like `_mk`, for inputs that exercise what the default ones leave idle.
    Verified on every correct shape, never timed; None means that the case does not apply to that shape."""
    regions_src: StrictStr | None = None
    """Defines `regions(*args) -> {name: (output name, bool mask, tol)}` over one call's inputs: parts of an output that
    have to meet a relative Frobenius error of their own. The output of `compare="tensor"` is called `out`."""
    alternates: Sources = Field(default_factory=dict)
    """Independent correct implementations: name -> source of a function of that name. Must pass."""
    ablations: Sources = Field(default_factory=dict)
    """The reference with one feature left out: name -> source of a function of that name. Must fail."""
    survivors: Sources = Field(default_factory=dict)
    """What calibration finds too close to call, and why that is accepted: name -> explanation. Names are those of the
    certificate, `mutants.<name>`, `ablations.<name>` and `precision.<name>`; `work.flops` and `work.bytes`, for counts
    that differ from the formulas; and of graded shapes `shapes.duration` (short for the clock),
    `shapes.working_set` (small for the L2), `shapes.memory` (large for the device) and `shapes.regime` (unlike the
    shapes of `measure.py`)."""

    # Who and which.
    authors: Names = ()
    """People to ask about the task."""
    license: StrictStr = "Apache-2.0"
    """SPDX identifier of the task's licence."""
    difficulty: Literal["easy", "medium", "hard"] = "hard"
    """How hard the author believes it is."""
    version: StrictStr = "1.0.0"
    """Version of the task; raise it whenever scores stop being comparable."""

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values, in the order of declaration."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def digest(self) -> str:
        """`sha256:` and the hash of all fields; comments and layout of the file do not count."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()

    def validate(self) -> Self:
        """Run every static check and return self.

        Where the caller is the spec file itself, findings carry its lines.

        Raises:
            SpecError: at least one finding is an error; all findings are listed, warnings too.
        """
        from taskfactory.checks import check_spec
        from taskfactory.findings import failed

        findings = check_spec(_caller_file(self, sys._getframe(1).f_code.co_filename))
        if failed(findings):
            raise SpecError(findings)
        return self


def render_docs() -> str:
    """docs/spec.md: every field with its type, default and description."""
    lines = [
        "# The fields of a spec",
        "",
        "A spec file binds `SPEC = TaskSpec(...)` with literal values only; it is read without being run.",
        "Fields without a default are required. `taskfactory new NAME` writes a file that shows all of them at work.",
        "",
        "This page is generated: `python -m taskfactory.spec > docs/spec.md`.",
        "",
    ]
    described: dict[str, Any] = vars(TaskSpec)["__pydantic_fields__"]
    for field in fields(TaskSpec):
        info = described[field.name]
        default = "required" if info.is_required() else f"default `{info.get_default(call_default_factory=True)!r}`"
        lines.append(f"- **`{field.name}`** ({_KINDS.get(field.name, 'str')}; {default}). {info.description}")
    return "\n".join(" ".join(line.split()) if line.startswith("- ") else line for line in lines) + "\n"


_KINDS = {
    **dict.fromkeys(("tol", "tile_kappa", "tile_epsilon"), "float"),
    **dict.fromkeys(("keywords", "shape_names", "tuple_names", "authors"), "strings"),
    **dict.fromkeys(SHAPE_FIELDS, "tuples of ints"),
    **dict.fromkeys(("alternates", "ablations"), "dict of sources"),
    **dict.fromkeys(SOURCE_FIELDS, "Python source"),
    "survivors": "dict of strings",
    "output_dtypes": "tuples of strings",
    "metric": '`"GB/s"` or `"TFLOP/s"`',
    "compare": '`"tensor"` or `"tuple"`',
    "difficulty": '`"easy"`, `"medium"` or `"hard"`',
}

FIELDS: tuple[str, ...] = tuple(field.name for field in fields(TaskSpec))
"""Every field name, in the order of declaration."""


def _caller_file(spec: TaskSpec, filename: str) -> Any:
    """The spec with the lines of `filename` if that is the file it was written in, else without lines."""
    from pathlib import Path

    from taskfactory.load import SpecFile, load_spec

    try:
        loaded = load_spec(Path(filename))
    except (SpecError, OSError, ValueError):
        loaded = None
    if loaded is not None and loaded.spec.name == spec.name:
        return loaded
    return SpecFile(path=Path(filename), spec=spec, lines={})


if __name__ == "__main__":
    print(render_docs(), end="")
