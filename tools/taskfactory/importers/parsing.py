"""Reading other people's modules by their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path

from taskfactory.errors import UsageError


def parse(path: Path) -> tuple[ast.Module, str]:
    """The tree and the text of a module.

    Raises:
        UsageError: it cannot be read or is not Python.
    """
    try:
        text = path.read_text("utf-8")
        return ast.parse(text), text
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as Python: {error}") from None


def function(node: ast.Module | ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """The function or method of that name."""
    return next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == name), None)


def constants(tree: ast.Module) -> dict[str, int]:
    """Module-level names bound to a positive integer, or to a product or sum of integers, in order."""
    found: dict[str, int] = {}
    for node in tree.body:
        value = _integer(node.value) if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and value is not None and value > 0:
            found.update((target.id, value) for target in node.targets if isinstance(target, ast.Name))
    return found


def _integer(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add):
        left, right = _integer(node.left), _integer(node.right)
        if left is not None and right is not None:
            return left * right if isinstance(node.op, ast.Mult) else left + right
    return None


def dependent(tree: ast.Module, names: Collection[str]) -> list[ast.Assign]:
    """The module-level assignments whose values follow from `names`, in order."""
    reached, found = set(names), []
    for node in tree.body:
        if isinstance(node, ast.Assign) and names_read(node.value) & reached:
            found.append(node)
            reached |= targets(node)
    return found


def targets(node: ast.Assign) -> set[str]:
    """The names that an assignment binds."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def names_read(node: ast.AST) -> set[str]:
    """Every name that is read in a piece of code."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def without(tree: ast.Module, text: str, left_out: Collection[str]) -> str:
    """The module's statements without its docstring and those that define one of the names."""
    kept = []
    for k, node in enumerate(tree.body):
        defined = {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()
        if isinstance(node, ast.ImportFrom):
            defined = {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            defined = targets(node)
        docstring = k == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not (defined and defined <= set(left_out)):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(each.lineno for each in decorators)])
            kept.append("\n".join(text.split("\n")[first - 1 : node.end_lineno]))
    return "\n\n\n".join(kept)
