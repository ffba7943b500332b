"""GPU MODE: a problem folder with task.yml and reference.py (`generate_input`, `ref_kernel`).

The function to write is `custom_kernel(data)` as it is there, with all inputs in one flat tuple. Tests become the
correct shapes, benchmarks the measure shapes. Needs PyYAML.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from taskfactory.errors import InfrastructureError, UsageError
from taskfactory.exporters.carry import read_module
from taskfactory.importers.draft import Draft, task_name
from taskfactory.importers.parsing import function, names_read, parse, without

_THEIRS = ("utils", "task", "eval")
_TYPES = "from typing import Any\n\ninput_t = output_t = Any"
_MAKE_INPUTS = """
def _mk({names}, seed):
    data = generate_input({words}, seed=seed)
    return (tuple(data) if isinstance(data, (list, tuple)) else data,)
"""
_REFERENCE = """
def custom_kernel(data):
    return ref_kernel(data)
"""


def read(problem: Path) -> Draft:
    """See the module.

    Raises:
        UsageError: files are missing or say what a spec cannot hold. InfrastructureError: PyYAML is not installed.
    """
    folder = problem if problem.is_dir() else problem.parent
    task = _yaml(folder / "task.yml")
    tests, benchmarks = (_cases(task, key, folder) for key in ("tests", "benchmarks"))
    tree, text = parse(folder / "reference.py")
    carried = read_module(text)
    if carried is not None:
        names = carried["shape_names"]
        return Draft(carried | {"correct_shapes": _shapes(tests, names), "measure_shapes": _shapes(benchmarks, names)})
    generate, reference = function(tree, "generate_input"), function(tree, "ref_kernel")
    if generate is None or reference is None:
        raise UsageError(f"{folder / 'reference.py'}: defines no generate_input and ref_kernel")
    names = tuple(name for name in tests[0] if name != "seed")
    if (
        "seed" not in tests[0]
        or not names
        or not all(type(v) is int for case in (*tests, *benchmarks) for v in case.values())
    ):
        raise UsageError(f"{folder / 'task.yml'}: tests must have a seed and integers, which become the shape")
    unused, missing = _left_out(tree), set()
    for node in (generate, reference):
        missing |= names_read(node) & unused
    notes = [f"{', '.join(sorted(missing))}: comes from their utils.py and has to be replaced."] if missing else []
    notes.append("check_implementation is not taken over: outputs are compared by relative error within tol.")
    several = _returns_tuple(reference)
    if several:
        notes.append(f"tuple_names: {several} outputs, named by number; give them names.")
    body = without(tree, text, unused | {"check_implementation", "input_t", "output_t"})
    shapes = _shapes(tests, names)
    words = ", ".join(f"{name}={name}" for name in names)
    fields: dict[str, Any] = {
        "name": task_name(folder.resolve().name), "title": str(task.get("description", "")).strip().split("\n")[0][:100]
        or "Imported problem", "func": "custom_kernel", "signature": "custom_kernel(data)",
        "reference_imports": "import torch", "reference_src": _REFERENCE.strip("\n"),
        "make_inputs_src": "\n\n\n".join(
            (_TYPES, body, _MAKE_INPUTS.strip("\n").format(names=", ".join(names), words=words))
        ),
        "compare": "tuple" if several else "tensor",
        "tuple_names": tuple(f"out_{k}" for k in range(several)) if several else None,
        "shape_names": names, "correct_shapes": shapes, "measure_quick_shapes": shapes[:1],
        "measure_shapes": _shapes(benchmarks, names) or shapes[-1:], "keywords": ("imported", "gpu-mode"),
    }  # fmt: skip
    return Draft(fields, notes)


def _yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise InfrastructureError("reading task.yml needs PyYAML: pip install pyyaml") from None
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict) or data.get("lang") != "py":
        raise UsageError(f'{path}: not a Python problem (lang: "py")')
    return data


def _cases(task: Mapping[str, Any], key: str, folder: Path) -> list[dict[str, Any]]:
    cases = task.get(key) or []
    if not all(isinstance(case, dict) for case in cases) or (key == "tests" and not cases):
        raise UsageError(f"{folder / 'task.yml'}: {key} must be a list of mappings")
    return [dict(case) for case in cases]


def _shapes(cases: Iterable[Mapping[str, int]], names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The cases' integers, once each, in order; variants of one shape are one shape."""
    return tuple(dict.fromkeys(tuple(case[name] for name in names) for case in cases))


def _left_out(tree: ast.Module) -> set[str]:
    """Names imported from their own modules, and what is made of these at module level."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _THEIRS:
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign) and names_read(node.value) & names:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names - {"input_t", "output_t"}


def _returns_tuple(node: ast.FunctionDef) -> int:
    """How many values a function returns, where it returns a tuple as such; else 0."""
    sizes = {
        len(each.value.elts)
        for each in ast.walk(node)
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Tuple)
    }
    return sizes.pop() if len(sizes) == 1 else 0
