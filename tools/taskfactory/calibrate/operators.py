"""The ways in which one node of a reference's syntax tree can be damaged.

`alternatives` yields (operator, replacement) pairs; a replacement of None deletes the statement. Casts between floating
dtypes are left alone: what precision costs is measured by `taskfactory.calibrate.precision`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

Alternative = tuple[str, ast.AST | None]

HELPERS = '''
def _wrapped(x, amounts):
    """Like F.pad with zeros, but the padding repeats the far side."""
    for place in range(len(amounts) // 2):
        axis, size = -1 - place, x.shape[-1 - place]
        index = torch.arange(-amounts[2 * place], size + amounts[2 * place + 1], device=x.device) % size
        x = x.index_select(axis, index)
    return x


def _around(x, padding):
    """The padding of a convolution, wrapped around."""
    amounts = [padding] * (x.dim() - 2) if isinstance(padding, int) else list(padding)
    return _wrapped(x, [amount for amount in reversed(amounts) for _ in range(2)])

'''
"""Functions that mutants may call; put in front of each."""

_OPPOSITE = {
    "max": "min", "amax": "amin", "argmax": "argmin", "maximum": "minimum", "tril": "triu", "zeros": "ones",
    "zeros_like": "ones_like", "new_zeros": "new_ones", "logical_or_": "logical_and_", "logical_or": "logical_and",
    "any": "all", "sin": "cos", "rsqrt": "sqrt", "floor": "ceil", "cumsum": "cumprod", "sum": "amax",
    "softmax": "log_softmax", "exp": "expm1",
}  # fmt: skip
_OPPOSITE |= {b: a for a, b in list(_OPPOSITE.items()) if a not in ("sum", "softmax", "exp", "rsqrt")}
_CASTS = {"float", "double", "half", "bfloat16", "to", "type", "int", "long", "bool", "tolist", "item", "dim", "size"}
"""Methods that are not dropped: casts, and those whose result is no tensor."""
_MODULES = {"torch", "F", "nn", "functional", "math", "backends", "cudnn"}
_PLUMBING = {"dtype", "device", "enabled", "allow_tf32", "generator", "strict", "out"}
"""Keywords that do not say what is computed."""
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.GtE: (ast.Gt, ast.LtE), ast.Gt: (ast.GtE, ast.Lt), ast.LtE: (ast.Lt, ast.GtE), ast.Lt: (ast.LtE, ast.Gt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], tuple[str, type[ast.operator]]] = {
    ast.Add: ("sign", ast.Sub), ast.Sub: ("sign", ast.Add), ast.Mult: ("inverse", ast.Div),
    ast.Div: ("inverse", ast.Mult), ast.BitAnd: ("logic", ast.BitOr), ast.BitOr: ("logic", ast.BitAnd),
    ast.LShift: ("shift", ast.RShift), ast.RShift: ("shift", ast.LShift),
}  # fmt: skip


def alternatives(node: ast.AST) -> Iterator[Alternative]:
    """Every damage to one node. The node itself is not changed, but replacements share parts with it."""
    if isinstance(node, ast.Constant):
        yield from _constant(node)
    elif isinstance(node, ast.BinOp):
        yield from _binary(node)
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not) or not isinstance(node.operand, ast.Constant):
            yield "sign", node.operand
    elif isinstance(node, ast.Compare):
        for other in _COMPARISONS.get(type(node.ops[0]), ()):
            yield "comparison", ast.Compare(node.left, [other(), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.IfExp):
        yield "branch", node.body
        yield "branch", node.orelse
    elif isinstance(node, ast.Slice):
        yield from _slice(node)
    elif isinstance(node, ast.Call):
        yield from _call(node)
    elif isinstance(node, ast.Attribute) and node.attr in ("mT", "T", "mH", "H"):
        yield "transposed", node.value
    else:
        yield from _statement(node)


def _constant(node: ast.Constant) -> Iterator[Alternative]:
    value = node.value
    if type(value) is int:
        yield "constant", ast.Constant(value + 1)
        yield "constant", ast.Constant(value - 1) if value > 0 else ast.UnaryOp(ast.USub(), ast.Constant(1 - value))
        if value >= 8:
            yield "constant", ast.Constant(value // 2)
    elif type(value) is float:
        yield "constant", ast.Constant(value * 2 if value else 1.0)
        yield "constant", ast.Constant(value * 0.75 if value else 0.5)


def _binary(node: ast.BinOp) -> Iterator[Alternative]:
    if isinstance(node.op, ast.MatMult):
        yield "swapped", ast.BinOp(node.right, node.op, node.left)
        return
    yield "dropped", node.left
    if not isinstance(node.op, ast.Pow | ast.Mod | ast.FloorDiv):
        yield "dropped", node.right
    if isinstance(node.op, ast.Sub | ast.Div | ast.Pow):
        yield "swapped", ast.BinOp(node.right, node.op, node.left)
    if type(node.op) in _OPERATORS:
        name, other = _OPERATORS[type(node.op)]
        yield name, ast.BinOp(node.left, other(), node.right)


def _slice(node: ast.Slice) -> Iterator[Alternative]:
    lower, upper = node.lower, node.upper
    if lower is not None or upper is not None:
        yield "slice", ast.Slice(_plus(lower, 1), _plus(upper, 1), node.step)
    yield "slice", ast.Slice(lower, _plus(upper, -1) or ast.UnaryOp(ast.USub(), ast.Constant(1)), node.step)


def _plus(node: ast.expr | None, step: int) -> ast.expr | None:
    if node is None:
        return None
    return ast.BinOp(copy.deepcopy(node), ast.Add() if step > 0 else ast.Sub(), ast.Constant(abs(step)))


def _call(node: ast.Call) -> Iterator[Alternative]:
    function = node.func
    name = _last(function)
    if isinstance(function, ast.Attribute):
        if name in _OPPOSITE:
            yield "opposite", _with(node, func=ast.Attribute(function.value, _OPPOSITE[name], ast.Load()))
        if not (isinstance(function.value, ast.Name | ast.Attribute) and _last(function.value) in _MODULES):
            if name not in _CASTS:
                yield "omitted", function.value
        elif node.args and name not in ("arange", "zeros", "ones", "full", "tensor", "empty", "cat", "stack", "flags"):
            yield "omitted", node.args[0]
        if name == "pad" and len(node.args) == 2 and not node.keywords:
            yield "wrapped", ast.Call(ast.Name("_wrapped", ast.Load()), node.args, [])
    padding = [keyword for keyword in node.keywords if keyword.arg == "padding"]
    if padding and node.args:
        around = ast.Call(ast.Name("_around", ast.Load()), [node.args[0], padding[0].value], [])
        others = [keyword for keyword in node.keywords if keyword.arg != "padding"]
        yield "wrapped", ast.Call(function, [around, *node.args[1:]], others)
    if name == "slice" and len(node.args) >= 2:
        shifted = [_plus(node.args[0], 1), _plus(node.args[1], 1), *node.args[2:]]
        yield "slice", ast.Call(function, [a for a in shifted if a is not None], [])
        shorter = [node.args[0], _plus(node.args[1], -1), *node.args[2:]]
        yield "slice", ast.Call(function, [a for a in shorter if a is not None], [])
        return
    for place in range(len(node.args) - 1):
        left, right = node.args[place : place + 2]
        if not any(isinstance(a, ast.Starred) for a in (left, right)) and ast.dump(left) != ast.dump(right):
            args = [*node.args[:place], right, left, *node.args[place + 2 :]]
            yield "swapped", _with(node, args=args)
    for keyword in node.keywords:
        if keyword.arg not in _PLUMBING and keyword.arg is not None:
            yield "keyword", _with(node, keywords=[k for k in node.keywords if k is not keyword])


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _with(node: ast.Call, **fields: object) -> ast.Call:
    return ast.Call(**{"func": node.func, "args": node.args, "keywords": node.keywords, **fields})  # type: ignore[arg-type]


def _statement(node: ast.AST) -> Iterator[Alternative]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "deleted", None
    elif isinstance(node, ast.AugAssign):
        yield "deleted", None
        yield "overwritten", ast.Assign([node.target], node.value)
    elif isinstance(node, ast.For):
        listed = ast.Call(ast.Name("list", ast.Load()), [node.iter], [])
        last = ast.UnaryOp(ast.USub(), ast.Constant(1))
        for part in (ast.Slice(None, last), ast.Slice(ast.Constant(1), None)):
            yield "skipped", ast.For(node.target, ast.Subscript(listed, part, ast.Load()), node.body, node.orelse)
    elif isinstance(node, ast.If):
        yield "branch", ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        names = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if node.targets[0].id in names:
            yield "deleted", None
