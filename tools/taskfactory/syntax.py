"""Small questions to the syntax tree of a spec file, for `taskfactory.load`."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Any


def assignments(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The names a statement binds, each with the value."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def bound_to_spec(node: ast.stmt) -> Iterator[ast.expr]:
    """The values a statement binds to SPEC."""
    for name, value in assignments(node):
        if name == "SPEC":
            yield value


def callee(call: ast.Call) -> str:
    """The last part of the name that is called, empty if it has none."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def kind_of(node: ast.expr) -> str:
    """What to call an expression in a message."""
    kinds: dict[type[ast.expr], str] = {
        ast.Name: f"the name {getattr(node, 'id', '')}",
        ast.JoinedStr: "an f-string",
        ast.Call: "a call",
        ast.BinOp: "an expression",
        ast.Attribute: "an attribute",
        ast.Set: "a set",
        ast.Starred: "an unpacked value",
    }
    return kinds.get(type(node), "this expression")


def literal_hint(node: ast.expr) -> str:
    """What to write in place of an expression that is not a literal."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return "strings that stand next to each other are joined without a +"
    if isinstance(node, ast.JoinedStr):
        return "prose may use {{ graded.NAME }} instead, which is rendered from the shapes"
    return "a spec is read without being run: write the value itself"


def defined_function(source: str, signature: Any) -> str | None:
    """The function a source stands for: the one with the signature's parameters, else the last one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Still a source; that it does not parse is reported by the checks, under the name it seems to define.
        names = re.findall(r"^def\s+(\w+)", source, re.M)
        return names[-1] if names else None
    if not functions:
        return None
    wanted = re.findall(r"[(,]\s*(\w+)", signature) if isinstance(signature, str) else []
    matching = [f for f in functions if [a.arg for a in f.args.args] == wanted]
    return (matching or functions)[-1].name


def line_within(node: ast.expr | None, loc: tuple[int | str, ...]) -> int:
    """The line of an element inside a literal."""
    for part in loc:
        if isinstance(node, ast.Tuple | ast.List) and isinstance(part, int) and part < len(node.elts):
            node = node.elts[part]
        elif isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            if part not in keys:
                break
            node = node.values[keys.index(part)]
        else:
            break
    return node.lineno if node is not None else 0
