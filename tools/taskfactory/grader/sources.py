"""Execute a task's embedded Python sources (reference, input generator) in one namespace.

Only trusted processes call this: the broker, and the killable child of the dynamic checks. The sources are a task
author's, never a submission's.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TASK_FILES = ("make_inputs.py", "reference.py")
"""Files of a task directory, in execution order: helpers of the input generator may serve the reference."""


@dataclass(frozen=True)
class Part:
    """One piece of source text and where it stands, so that tracebacks show the file and line an author edits."""

    text: str
    path: str
    first_line: int = 1


class _Retarget(ast.NodeTransformer):
    """Replace the literal "cuda" by another device, and drop imports between the task's own two files."""

    def __init__(self, device: str) -> None:
        self.device = device

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value == "cuda" and self.device != "cuda":
            return ast.copy_location(ast.Constant(self.device), node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        siblings = {name.removesuffix(".py") for name in TASK_FILES}
        if node.module in siblings and node.level == 0:
            return ast.copy_location(ast.Pass(), node)
        return node


def load_namespace(parts: Iterable[Part], device: str = "cuda") -> dict[str, Any]:
    """Execute `parts` in order in one fresh namespace and return it.

    Args:
        parts: sources; each is compiled so that its lines are numbered from `first_line` of `path`.
        device: where the sources' literal `"cuda"` shall point: "cuda" or "cpu".

    Raises:
        SyntaxError: a part does not parse; whatever the executed sources raise.
    """
    namespace: dict[str, Any] = {"__name__": "task_sources", "__builtins__": __builtins__}
    for part in parts:
        tree = ast.parse(part.text, part.path)
        ast.increment_lineno(tree, part.first_line - 1)
        tree = ast.fix_missing_locations(_Retarget(device).visit(tree))
        if not Path(part.path).is_file():  # let tracebacks quote sources that are on no disk
            padded = "\n" * (part.first_line - 1) + part.text
            linecache.cache[part.path] = (len(padded), None, padded.splitlines(keepends=True), part.path)
        # dont_inherit: this module's own __future__ imports are none of the sources'
        exec(compile(tree, part.path, "exec", dont_inherit=True), namespace)
    return namespace


def load_directory(directory: Path, device: str = "cuda") -> dict[str, Any]:
    """Execute a task directory's `make_inputs.py` and `reference.py` in one namespace."""
    return load_namespace(
        [Part((directory / name).read_text("utf-8"), str(directory / name)) for name in TASK_FILES], device
    )


def case_functions(namespace: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The `case_<name>` functions of a namespace by `<name>`, in the order they were defined."""
    return {
        name.removeprefix("case_"): value
        for name, value in namespace.items()
        if name.startswith("case_") and callable(value)
    }
