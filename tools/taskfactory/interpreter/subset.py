"""What formulas may use: the operators, functions and methods, and the bounds on all of it."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

MAX_STEPS = 2_000_000
MAX_INT_BITS = 4096
MAX_LENGTH = 1_000_000
MAX_DEPTH = 40
MAX_REMEMBERED = 20_000

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
# At most doubles the bits of bounded ints, so it may be done first and judged afterwards.
GROWS_LITTLE = {ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
# Builtins that walk an iterable get it through a counter; the others see plain values.
WALKING: dict[str, Callable[..., Any]] = {
    "sum": sum, "min": min, "max": max, "any": any, "all": all, "sorted": sorted, "list": list, "tuple": tuple,
    "set": set, "enumerate": enumerate, "zip": zip, "dict": dict,
}  # fmt: skip
PLAIN: dict[str, Callable[..., Any]] = {
    "len": len, "abs": abs, "int": int, "float": float, "bool": bool, "round": round, "divmod": divmod, "range": range,
    "pow": pow,
}  # fmt: skip
MATH = {
    name: getattr(math, name)
    for name in ("ceil", "floor", "trunc", "sqrt", "isqrt", "log", "log2", "log10", "exp", "gcd", "lcm", "prod", "fabs")
}  # fmt: skip
MATH_CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf}
METHODS: dict[tuple[type, str], Callable[..., Any]] = {
    (list, "append"): list.append,
    (list, "index"): list.index,
    (list, "count"): list.count,
    (tuple, "index"): tuple.index,
    (tuple, "count"): tuple.count,
    (dict, "get"): dict.get,
    (dict, "items"): lambda d: list(d.items()),
    (dict, "keys"): lambda d: list(d.keys()),
    (dict, "values"): lambda d: list(d.values()),
    (set, "add"): set.add,
}
# Floats are left out, since 0.0 and -0.0 are one key.
REMEMBERED = (int, bool, str)
ABSENT = object()
FORMAT = re.compile(r"[,_]?(\.\d{1,2})?[dfgeE%]?")
CONTAINERS = (list, tuple, dict, set)
FAILURES = (ArithmeticError, TypeError, ValueError, LookupError)


def as_load(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(id=target.id, ctx=ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(value=target.value, slice=target.slice, ctx=ast.Load())
    return target


def spelling(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 50 else text[:49] + "…"
