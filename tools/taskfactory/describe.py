"""What a bundle says about a spec, read from its fields and the syntax trees of its sources; nothing is executed."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taskfactory.prose import scientific
from taskfactory.spec import TaskSpec

_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Case:
    """A correctness-only variant of the inputs: `case_<name>` and the first line of its docstring."""

    name: str
    text: str


@dataclass(frozen=True)
class Region:
    """A declared part of an output with its own tolerance, as far as `regions` spells it out."""

    name: str
    output: str
    tol: str


def case_list(cases_src: str | None) -> list[Case]:
    """The cases in the order in which they are defined."""
    return [
        Case(node.name.removeprefix("case_"), _first_line(node))
        for node in _functions(cases_src)
        if node.name.startswith("case_")
    ]


def mixing(timed_src: str | None) -> str:
    """What `mix` says of itself, on one line; empty where timed calls get the inputs of `_mk`."""
    return next((_first_line(node) for node in _functions(timed_src) if node.name == "mix"), "")


def region_list(regions_src: str | None) -> list[Region]:
    """The regions whose name, output and tolerance `regions` writes as literals; a computed entry is left out."""
    if not regions_src:
        return []
    tree = ast.parse(regions_src)
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            pairs: Iterator[tuple[ast.expr | None, ast.expr]] = zip(node.keys, node.values, strict=True)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            pairs = iter([(node.targets[0].slice, node.value)])
        else:
            continue
        for key, value in pairs:
            if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 3:
                output, tol = (constants.get(e.id, e) if isinstance(e, ast.Name) else e for e in value.elts[::2])
                if isinstance(output, ast.Constant) and isinstance(tol, ast.Constant):
                    found.append(Region(str(key.value), str(output.value), scientific(float(tol.value))))  # type: ignore[arg-type]
    return found


def docstring(source: str | None, name: str) -> str:
    """The docstring of function `name` of a source, dedented; empty if there is none."""
    for node in _functions(source):
        if node.name == name:
            return inspect.cleandoc(ast.get_docstring(node) or "")
    return ""


def work_formula(flops_src: str, flops_formula: str | None) -> tuple[str, str]:
    """The formula to show for canonical work and the language to show it in: the author's, else the code's body."""
    if flops_formula:
        return flops_formula.strip("\n"), "text"
    for node in _functions(flops_src):
        if node.name == "canonical_work":
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = flops_src.split("\n")[body[0].lineno - 1 : node.end_lineno]
            return inspect.cleandoc("\n".join(lines)), "python"
    return "canonical_work(*shape)", "python"


def defined_names(sources: Sequence[str]) -> set[str]:
    """The names that the sources bind at module level."""
    names: set[str] = set()
    for source in sources:
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
            else:
                names.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return names


def used_names(sources: Sequence[str]) -> set[str]:
    """The names that the sources read anywhere, less the builtins."""
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - _BUILTINS


def parameters(spec: TaskSpec) -> list[str]:
    """The names of the function's parameters, in order."""
    function = ast.parse(f"def {spec.signature}: pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def form_text(spec: TaskSpec) -> str:
    """What is returned, as the beginning of a sentence."""
    if spec.compare == "tensor":
        return "One tensor"
    assert spec.tuple_names is not None
    names = ", ".join(spec.tuple_names)
    return f"A tuple of {len(spec.tuple_names)} tensors, `({names})` in this order, each"


def dtype_text(spec: TaskSpec) -> str:
    """The dtypes that are accepted, as the end of the sentence that `form_text` begins."""
    if spec.output_dtypes is None:
        return " and its dtype, where bfloat16 and float32 may stand for each other"
    allowed = [" or ".join(dtypes) for dtypes in spec.output_dtypes]
    if len(set(allowed)) == 1:
        return f", in {allowed[0]}"
    names = spec.tuple_names or ("out",)
    return " and dtype: " + ", ".join(f"`{name}` in {dtypes}" for name, dtypes in zip(names, allowed, strict=True))


def outputs_of_kind(spec: TaskSpec, *, floats: bool) -> str:
    """The outputs that are compared by error (`floats`) or exactly, where the spec declares dtypes; else empty."""
    pairs = zip(spec.tuple_names or ("out",), spec.output_dtypes or (), strict=False)
    return ", ".join(f"`{name}`" for name, dtypes in pairs if any("float" in d for d in dtypes) == floats)


def _functions(source: str | None) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(source or "").body if isinstance(node, ast.FunctionDef)]


def _first_line(node: ast.FunctionDef) -> str:
    """The first sentence-like paragraph of a docstring on one line, for a table cell."""
    paragraph = (ast.get_docstring(node) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")
