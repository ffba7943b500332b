"""Expressions of the subset, evaluated over the syntax tree.

Values: int, float, bool, str, None, tuple, list, dict, set, range. Statements: assignment, if, for, while,
break, continue, return, pass, assert. Expressions: arithmetic, comparison, boolean, conditional, subscript and slice,
displays, comprehensions, f-strings, calls of the sources' own functions, of some builtins and of some of `math`.
Anything else stops with its line. It is not a sandbox around Python: there is no Python in it to escape to, because a
value of none of these types ever exists here and attributes are looked up in fixed tables only.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from taskfactory.interpreter.arithmetic import Arithmetic
from taskfactory.interpreter.meter import Frame, Function, Memory, Source
from taskfactory.interpreter.subset import (
    ABSENT,
    COMPARE,
    FORMAT,
    MATH,
    MATH_CONSTANTS,
    MAX_DEPTH,
    MAX_STEPS,
    PLAIN,
    UNARY,
    WALKING,
    spelling,
)


class Expressions(Arithmetic):
    """Values of expressions. Functions of the sources and targets of assignments are left to the machine below it."""

    def __init__(
        self,
        functions: Mapping[str, Function],
        constants: Mapping[str, tuple[ast.expr, Source]],
        modules: Mapping[str, str],
        memory: Memory,
    ) -> None:
        super().__init__()
        self._functions, self._constants, self._modules, self._memory = functions, constants, modules, memory
        self._globals: dict[str, Any] = {}
        self._depth = 0

    def _recall(self, function: Function, args: list[Any], kwargs: dict[str, Any], frame: Frame) -> Any:
        raise NotImplementedError

    def _store(self, target: ast.expr, value: Any, frame: Frame) -> None:
        raise NotImplementedError

    def _value(self, node: ast.expr, frame: Frame) -> Any:
        self._steps += 1
        if self._steps > MAX_STEPS:
            self._charge(0, frame)
        kind = type(node)
        if kind is ast.Name:  # by far the most frequent, and it cannot fail
            value = frame.names.get(node.id, ABSENT)  # type: ignore[attr-defined]
            if value is not ABSENT:
                return value
        frame.line = node.lineno
        handler = _EXPRESSIONS.get(kind)
        if handler is None:
            raise self._stop(frame, f"`{spelling(node)}` is outside the subset that formulas may use")
        return handler(self, node, frame)

    def _constant(self, node: ast.Constant, frame: Frame) -> Any:
        if node.value is None or isinstance(node.value, bool | int | float | str):
            return self._bounded(node.value, frame)
        raise self._stop(frame, f"a {type(node.value).__name__} is outside the subset that formulas may use")

    def _name(self, node: ast.Name, frame: Frame) -> Any:
        name = node.id
        if name in frame.names:
            return frame.names[name]
        if name in self._globals:
            return self._globals[name]
        if name in self._constants:
            expression, source = self._constants[name]
            outside = Frame({}, source, expression.lineno)
            if self._depth >= MAX_DEPTH:
                raise self._stop(frame, f"{name!r} is defined in terms of itself")
            self._depth += 1
            self._globals[name] = self._value(expression, outside)
            self._depth -= 1
            self._freeze(self._globals[name], frame)
            return self._globals[name]
        if self._modules.get(name, "").startswith("math.") and name not in self._functions:
            constant = MATH_CONSTANTS.get(self._modules[name].removeprefix("math."))
            if constant is not None:
                return constant
        if name in self._functions or name in WALKING or name in PLAIN:
            raise self._stop(frame, f"the function {name!r} can only be called")
        raise self._stop(frame, f"the name {name!r} is not defined here, or not available to formulas")

    def _bin_op(self, node: ast.BinOp, frame: Frame) -> Any:
        return self._binary(node.op, self._value(node.left, frame), self._value(node.right, frame), frame)

    def _unary_op(self, node: ast.UnaryOp, frame: Frame) -> Any:
        return self._guard(frame, UNARY[type(node.op)], self._value(node.operand, frame))

    def _bool_op(self, node: ast.BoolOp, frame: Frame) -> Any:
        is_and = isinstance(node.op, ast.And)
        value: Any = None
        for operand in node.values:
            value = self._value(operand, frame)
            if bool(value) is not is_and:
                break
        return value

    def _compare(self, node: ast.Compare, frame: Frame) -> Any:
        left = self._value(node.left, frame)
        result: Any = True
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self._value(comparator, frame)
            self._weigh(left, frame)
            self._weigh(right, frame)
            result = self._guard(frame, COMPARE[type(op)], left, right)
            if not result:
                break
            left = right
        return result

    def _if_exp(self, node: ast.IfExp, frame: Frame) -> Any:
        return self._value(node.body if self._value(node.test, frame) else node.orelse, frame)

    def _elements(self, nodes: list[ast.expr], frame: Frame) -> list[Any]:
        values: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                values.extend(self._walk(self._value(node.value, frame), frame))
            else:
                values.append(self._value(node, frame))
        return values

    def _tuple(self, node: ast.Tuple, frame: Frame) -> Any:
        return tuple(self._elements(node.elts, frame))

    def _list(self, node: ast.List, frame: Frame) -> Any:
        return self._elements(node.elts, frame)

    def _set(self, node: ast.Set, frame: Frame) -> Any:
        elements = self._elements(node.elts, frame)
        self._weigh(elements, frame)
        return self._guard(frame, set, elements)

    def _dict(self, node: ast.Dict, frame: Frame) -> Any:
        result: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                inner = self._value(value, frame)
                if not isinstance(inner, dict):
                    raise self._stop(frame, "only a dict can be unpacked into a dict")
                result.update(inner)
            else:
                self._guard(frame, result.__setitem__, self._key(key, frame), self._value(value, frame))
        return result

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        container = self._value(node.value, frame)
        if not isinstance(container, list | tuple | dict | str | range):
            raise self._stop(frame, f"a {type(container).__name__} has no items")
        if not isinstance(node.slice, ast.Slice):
            return self._guard(frame, operator.getitem, container, self._key(node.slice, frame))
        bounds = [
            None if b is None else self._value(b, frame) for b in (node.slice.lower, node.slice.upper, node.slice.step)
        ]
        if not isinstance(container, dict | range):
            self._charge(len(container), frame)
        return self._guard(frame, operator.getitem, container, slice(*bounds))

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        if self._is_math(node.value, frame) and node.attr in MATH_CONSTANTS:
            return MATH_CONSTANTS[node.attr]
        raise self._stop(frame, f"`.{node.attr}` is outside the subset that formulas may use")

    def _joined(self, node: ast.JoinedStr, frame: Frame) -> Any:
        parts: list[str] = []
        for piece in node.values:
            if isinstance(piece, ast.Constant):
                parts.append(str(piece.value))
                continue
            assert isinstance(piece, ast.FormattedValue)
            value = self._value(piece.value, frame)
            form = self._joined(piece.format_spec, frame) if isinstance(piece.format_spec, ast.JoinedStr) else ""
            if not isinstance(value, str | int | float) or piece.conversion != -1 or not FORMAT.fullmatch(form):
                raise self._stop(frame, "this f-string is outside the subset that formulas may use")
            parts.append(self._guard(frame, format, value, form))
        return self._bounded("".join(parts), frame)

    # Comprehensions are evaluated in a frame of their own, like Python's.

    def _produce(
        self, generators: list[ast.comprehension], make: Callable[[Frame], Any], frame: Frame
    ) -> Iterator[Any]:
        first, *rest = generators
        for item in self._walk(self._value(first.iter, frame), frame):
            self._store(first.target, item, frame)
            if all(self._value(test, frame) for test in first.ifs):
                if rest:
                    yield from self._produce(rest, make, frame)
                else:
                    yield make(frame)

    def _comprehension(self, node: Any, frame: Frame) -> Any:
        inner = Frame(dict(frame.names), frame.source, frame.line)
        if isinstance(node, ast.DictComp):
            pairs = self._produce(
                node.generators, lambda f: (self._key(node.key, f), self._value(node.value, f)), inner
            )
            return self._guard(frame, dict, pairs)
        make = self._key if isinstance(node, ast.SetComp) else self._value
        items = self._produce(node.generators, lambda f: make(node.elt, f), inner)
        if isinstance(node, ast.ListComp):
            return list(items)
        return self._guard(frame, set, items) if isinstance(node, ast.SetComp) else items

    # Calls.

    def _call(self, node: ast.Call, frame: Frame) -> Any:
        if any(keyword.arg is None for keyword in node.keywords):
            raise self._stop(frame, "** in a call is outside the subset that formulas may use")
        if isinstance(node.func, ast.Attribute) and not self._is_math(node.func.value, frame):
            if node.keywords:
                raise self._stop(frame, f"`.{node.func.attr}()` takes no keywords in a formula")
            owner = self._value(node.func.value, frame)
            return self._method(owner, node.func.attr, self._elements(node.args, frame), frame)
        args = self._elements(node.args, frame)
        kwargs = {str(keyword.arg): self._value(keyword.value, frame) for keyword in node.keywords}
        if isinstance(node.func, ast.Attribute):
            return self._library(node.func.attr, MATH, args, kwargs, frame, prefix="math.")
        if not isinstance(node.func, ast.Name) or node.func.id in frame.names:
            raise self._stop(frame, "only a function that is called by its name can be called")
        name = node.func.id
        if name in self._functions:
            function = self._functions[name]
            value = self._recall(function, args, kwargs, Frame({}, function.source, function.node.lineno))
            frame.line = node.lineno
            return value
        imported = self._modules.get(name, "")
        if imported.startswith("math."):
            return self._library(imported.removeprefix("math."), MATH, args, kwargs, frame, prefix="math.")
        if name in WALKING:
            if len(args) == 1 or name not in ("min", "max"):
                args = [self._walk(a, frame) if self._walkable(a) else a for a in args]
            else:
                self._weigh(args, frame)
            return self._library(name, WALKING, args, kwargs, frame)
        return self._library(name, PLAIN, args, kwargs, frame)

    def _is_math(self, node: ast.expr, frame: Frame) -> bool:
        # `import math` may stand in any field (reference_imports is not among the sources), so it is not asked for.
        if not isinstance(node, ast.Name) or node.id in frame.names:
            return False
        return self._modules.get(node.id, "math" if node.id == "math" else "") == "math"

    def _key(self, node: ast.expr, frame: Frame) -> Any:
        """The value of an expression that is about to be hashed."""
        value = self._value(node, frame)
        self._weigh(value, frame)
        return value


_EXPRESSIONS: dict[type[ast.expr], Callable[[Expressions, Any, Frame], Any]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.BinOp: Expressions._bin_op,
    ast.UnaryOp: Expressions._unary_op,
    ast.BoolOp: Expressions._bool_op,
    ast.Compare: Expressions._compare,
    ast.IfExp: Expressions._if_exp,
    ast.Tuple: Expressions._tuple,
    ast.List: Expressions._list,
    ast.Set: Expressions._set,
    ast.Dict: Expressions._dict,
    ast.Subscript: Expressions._subscript,
    ast.Attribute: Expressions._attribute,
    ast.JoinedStr: Expressions._joined,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.Call: Expressions._call,
}
