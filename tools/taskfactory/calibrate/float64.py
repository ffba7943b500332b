"""The reference evaluated in float64, by one mechanism: every floating dtype in its source is rewritten to float64.

`torch.float32`, `torch.bfloat16` and their like, `.float()`, `.bfloat16()` and `.half()`, floating arguments and
torch's default dtype are all promoted; integers and booleans stay. What a source writes otherwise (a dtype in a string,
a view of bits) is not promoted. Where an exactly compared output comes out differently, rounding is part of the task's
definition and the figure is no distance from a truth; the verdict says so.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import torch

from taskfactory.checks.lab import SHARED_SOURCES, Lab
from taskfactory.grader.sources import Part, load_namespace

_DTYPES = {"float", "float16", "float32", "bfloat16", "half"}
_CASTS = {"float", "half", "bfloat16"}


class _Promote(ast.NodeTransformer):
    """Floating dtypes and casts become float64."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in _DTYPES:
            return ast.copy_location(ast.Attribute(node.value, "float64", node.ctx), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _CASTS and not node.args:
            node.func.attr = "double"
        return node


def promoted_source(text: str) -> str:
    """A source with every floating dtype and cast in it rewritten to float64."""
    return ast.unparse(ast.fix_missing_locations(_Promote().visit(ast.parse(text))))


def in_float64(lab: Lab) -> Callable[..., Any]:
    """The reference, promoted; it takes the same arguments and returns float64 where it returned floats.

    Raises:
        SourceFailed: the promoted sources cannot be executed.
    """
    parts = []
    for name in SHARED_SOURCES:
        source = lab.file.source(name)
        if source.text:
            text = promoted_source(source.text) if name == "reference_src" else source.text
            parts.append(Part(text, str(source.path), source.first_line))
    with lab.guard("reference_src", "executing the reference in float64"):
        function: Callable[..., Any] = load_namespace(parts, lab.device)[lab.spec.func]

    def call(*args: Any) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return function(*_promoted(args))
        finally:
            torch.set_default_dtype(before)

    return call


def _promoted(args: Sequence[Any]) -> list[Any]:
    return [arg.double() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg for arg in args]
