"""A spec as the files of its bundle: SpecFile -> {relative path: text}, in memory, the same bytes for the same spec.

Two of the bundle's folders are task directories for the grader: `environment/app/`, which becomes the solver's /app and
holds the public part only, and `tests/`, which also knows the graded shapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from taskfactory import __version__
from taskfactory.calibrate.certificate import certificates_of
from taskfactory.describe import (
    case_list,
    defined_names,
    docstring,
    dtype_text,
    form_text,
    mixing,
    outputs_of_kind,
    parameters,
    region_list,
    used_names,
    work_formula,
)
from taskfactory.errors import SpecError
from taskfactory.findings import Finding
from taskfactory.load import SpecFile
from taskfactory.prose import Figure, environment, render_prose
from taskfactory.spec import TaskSpec

TASK_SCHEMA = 1
"""Version of task.json; the grader refuses any other."""
CANARY = (
    "taskfactory-canary 3584f354-8a2c-43b7-993f-d2d25a6b65f2: evaluation data, please keep it out of training corpora"
)
TILE = 4096
"""Entries per tile of the tile gate, as in grader/compare.py (a test compares the two)."""
AGENT_SECONDS = {"easy": 3600, "medium": 7200, "hard": 14400}
"""What a solver gets, by difficulty."""

APP, TESTS, SOLUTION = "environment/app/", "tests/", "solution/"

_UNITS = {
    "GB/s": {
        "metric_definition": "1 GB is 10^9 bytes",
        "work_unit": "GB",
        "work_noun": "bytes",
        "work_promise": "traffic beyond it earns nothing, and traffic that you avoid is not deducted.",
    },
    "TFLOP/s": {
        "metric_definition": "1 TFLOP is 10^12 operations; a multiply-add is two",
        "work_unit": "GFLOP",
        "work_noun": "floating-point operations",
        "work_promise": "operations beyond it earn nothing, and operations that you save are not deducted.",
    },
}


def render(file: SpecFile, *, image: str, solution: str | None = None) -> dict[str, str]:
    """Every file of the bundle except its manifest, by path relative to the bundle, sorted.

    Args:
        file: a loaded spec that has passed the static checks.
        image: container image of both Dockerfiles.
        solution: text of the oracle, or None for a bundle without `solution/`.

    Raises:
        SpecError: prose names something undefined or shows a graded shape, or a formula cannot be evaluated.
    """
    spec = file.spec
    facts = task_facts(file)
    view = _view(file, facts, image)
    shared = {
        "make_inputs.py": _template("app/make_inputs.py", view),
        "reference.py": _template("app/reference.py", view),
    }
    shared |= {f"grader/{name}": text for name, text in vendored_grader().items()}

    files = {APP + name: text for name, text in shared.items()}
    files |= {TESTS + name: text for name, text in shared.items()}
    files[APP + "README.md"] = _tidy(_template("app/README.md", view))
    files[APP + spec.module] = _template("app/starter.py", view)
    files[APP + "measure.py"] = _template("app/measure.py", view)
    files[APP + "task.json"] = task_json(facts, graded=False)
    files[TESTS + "task.json"] = task_json(facts, graded=True)
    files[TESTS + "test.sh"] = _template("harbor/test.sh", view)
    files[TESTS + "Dockerfile"] = _template("harbor/tests.Dockerfile", view)
    files["environment/Dockerfile"] = _template("harbor/Dockerfile", view)
    files["instruction.md"] = _template("harbor/instruction.md", view)
    files["task.toml"] = _template("harbor/task.toml", view)
    files["README.md"] = _template("harbor/README.md", view)
    if summaries := [certificate.summary() for certificate in certificates_of(file)]:
        files["certificate.json"] = json.dumps(summaries, indent=1, ensure_ascii=False) + "\n"
    if solution is not None:
        files[SOLUTION + spec.module] = solution
        files[SOLUTION + "solve.sh"] = _template("harbor/solve.sh", view)
    _refuse_leaks(file, files)
    return dict(sorted(files.items()))


def readme(file: SpecFile) -> str:
    """The README that a solver of this spec gets, as Markdown.

    Raises:
        SpecError: as `render`.
    """
    return _tidy(_template("app/README.md", _view(file, task_facts(file), image="")))


def task_files(file: SpecFile) -> dict[str, str]:
    """The hidden task directory without its copy of the grader, by path below `tests/`; for grading in place.

    Raises:
        SpecError: as `render`.
    """
    files = render(file, image="")
    return {
        path.removeprefix(TESTS): text
        for path, text in files.items()
        if path.startswith(TESTS) and not path.startswith(TESTS + "grader/")
    }


@lru_cache(maxsize=1)
def vendored_grader() -> Mapping[str, str]:
    """The grader's modules by path relative to its package; they go into every bundle unchanged."""
    package = Path(__file__).resolve().parent / "grader"
    return {
        path.relative_to(package).as_posix(): path.read_bytes().decode("utf-8")
        for path in sorted(package.rglob("*.py"))
    }


def task_facts(file: SpecFile) -> dict[str, Any]:
    """What the grader needs to know of the task, graded shapes included: the content of the hidden `task.json`."""
    spec = file.spec
    formulas = file.formulas()
    shapes = {
        "correct": spec.correct_shapes,
        "quick": spec.measure_quick_shapes,
        "measure": spec.measure_shapes,
        "graded": spec.grader_shapes,
    }

    def evaluated(formula: str) -> dict[str, list[Any]]:
        return {role: [formulas.call(formula, *shape) for shape in rows] for role, rows in shapes.items()}

    names = spec.tuple_names or ("out",)
    dtypes: Sequence[Sequence[str] | None] = spec.output_dtypes or [None] * len(names)
    return {
        "schema": TASK_SCHEMA,
        "name": spec.name,
        "title": spec.title,
        "version": spec.version,
        "spec_digest": file.digest,
        "module": spec.module,
        "func": spec.func,
        "parameters": parameters(spec),
        "metric": spec.metric,
        "compare": spec.compare,
        "outputs": [{"name": n, "dtypes": list(d) if d else None} for n, d in zip(names, dtypes, strict=True)],
        "tol": spec.tol,
        "tile_kappa": spec.tile_kappa,
        "tile_epsilon": spec.tile_epsilon,
        "has_regions": bool(spec.regions_src),
        "shape_names": list(spec.shape_names),
        "cases": [case.name for case in case_list(spec.cases_src)],
        "mixed": bool(spec.timed_src),
        "shapes": shapes,
        "work": evaluated("canonical_work"),
        "floor": evaluated("floor") if spec.floor_src else None,
    }


def task_json(facts: Mapping[str, Any], *, graded: bool) -> str:
    """`task.json` as text: all of `task_facts`, or without the graded shapes and what was computed from them.

    One key or one list of shapes a line, so that a person can read it.
    """
    rows = []
    for key, value in facts.items():
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if graded or k != "graded"}
            inner = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in kept.items())
            text = "{\n" + inner + "\n  }"
        else:
            text = json.dumps(value, ensure_ascii=False)
        rows.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _view(file: SpecFile, facts: Mapping[str, Any], image: str) -> dict[str, Any]:
    """Everything the templates print; they only loop over it and test whether it is there."""
    spec = file.spec
    formula, language = work_formula(spec.flops_src, spec.flops_formula)
    prose = render_prose(file)
    rows = [
        {"shape": shape, "work": f"{work / 1e9:.4g}"}
        for shape, work in zip(spec.measure_shapes, facts["work"]["measure"], strict=True)
    ]
    correct, cases = len(spec.correct_shapes), case_list(spec.cases_src)
    return {
        **{name: getattr(spec, name) for name in _PLAIN_FIELDS},
        **prose,
        **_UNITS[spec.metric],
        **_source_files(spec),
        "docstring": _docstring(prose["returns_doc"]),
        "formula": formula,
        "formula_language": language,
        "measure_rows": rows,
        "counts": {
            "correct": correct,
            "quick": len(spec.measure_quick_shapes),
            "measure": len(spec.measure_shapes),
            "graded": len(spec.grader_shapes),
        },
        "example_shape": ",".join(map(str, spec.measure_quick_shapes[0])),
        "form_text": form_text(spec),
        "dtype_text": dtype_text(spec),
        "exact_outputs": outputs_of_kind(spec, floats=False),
        "float_outputs": outputs_of_kind(spec, floats=True),
        "floor_declared": bool(spec.floor_src),
        "tol": Figure(spec.tol),
        "kappa": Figure(spec.tile_kappa),
        "epsilon": Figure(spec.tile_epsilon),
        "tile_size": TILE,
        "cases": cases,
        "mixed": bool(spec.timed_src),
        "mixing": mixing(spec.timed_src),
        "regions_declared": bool(spec.regions_src),
        "regions": region_list(spec.regions_src),
        "regions_doc": docstring(spec.regions_src, "regions"),
        "timeouts": {
            "agent": AGENT_SECONDS[spec.difficulty],
            # Start, compilation and control runs; then shapes, each with its reference and its warm-ups.
            "verifier": 900 + 120 * len(spec.grader_shapes) + 30 * correct * (1 + len(cases) + bool(spec.timed_src)),
        },
        "spec_digest": file.digest,
        "short_digest": file.digest.removeprefix("sha256:")[:12],
        "taskfactory_version": __version__,
        "image": image,
        "canary": CANARY,
    }


_PLAIN_FIELDS = (
    "name", "title", "version", "license", "authors", "keywords", "difficulty", "module", "func", "signature", "metric",
    "shape_names",
)  # fmt: skip


def _source_files(spec: TaskSpec) -> dict[str, Any]:
    """The two Python files assembled from the spec's sources, with the imports each needs of the other."""
    reference = _pieces(spec.reference_src, spec.regions_src)
    inputs = _pieces(spec.flops_src, spec.make_inputs_src, spec.timed_src, spec.cases_src)
    defined_here, defined_there = defined_names(reference), defined_names(inputs)
    imported = defined_names(_pieces(spec.reference_imports))
    from_inputs = sorted((used_names(reference) & defined_there) - defined_here - imported)
    from_reference = sorted((used_names(inputs) & defined_here) - defined_there - imported)
    # Each file importing the other works only once both have defined their functions.
    late = bool(from_inputs and from_reference)
    return {
        "imports": spec.reference_imports.strip("\n"),
        "reference_file": {"sources": reference, "imports": from_inputs, "late": late},
        "inputs_file": {"sources": inputs, "imports": from_reference, "late": late},
    }


def _pieces(*sources: str | None) -> list[str]:
    return [source.strip("\n").rstrip() for source in sources if source and source.strip()]


def _docstring(text: str) -> str:
    """`text` as the inside of a docstring that is indented by four spaces."""
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    first, *rest = escaped.split("\n")
    lines = [first, *(f"    {line}".rstrip() for line in rest)]
    if rest:
        lines.append("    ")
    elif first.endswith('"'):
        lines[0] = first[:-1] + '\\"'
    return "\n".join(lines)


def _template(name: str, view: Mapping[str, Any]) -> str:
    return environment().get_template(f"{name}.jinja").render(view)


def _tidy(markdown: str) -> str:
    """At most one blank line in a row outside fenced code, so that absent sections leave no holes."""
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        if fenced or line.strip() or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).rstrip("\n") + "\n"


def _refuse_leaks(file: SpecFile, files: Mapping[str, str]) -> None:
    """Raise SpecError if prose that a solver reads spells out a graded shape, however it came to do so."""
    spec = file.spec
    if len(spec.shape_names) < 2:
        return
    read = files[APP + "README.md"] + files["instruction.md"] + files[APP + spec.module]
    for shape in spec.grader_shapes:
        values = [
            rf"(?:{re.escape(name)}\s*[=:]\s*)?{value}" for name, value in zip(spec.shape_names, shape, strict=True)
        ]
        if re.search(r"(?<![\d.])" + r"`?\s*[,;x×|/ ]\s*`?".join(values) + r"(?![\d.]*\d)", read):
            message = "rendered prose shows a graded shape, which must stay hidden"
            raise SpecError(
                [Finding("TF421", "error", message, file.path, file.lines.get("grader_shapes", 1), "grader_shapes")]
            )
