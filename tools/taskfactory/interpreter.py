"""An interpreter of the arithmetic subset of Python, over its syntax tree, with bounds on everything.

Values: int, float, bool, str, None, tuple, list, dict, set, range. Statements: assignment, if, for, while,
break, continue, return, pass, assert. Expressions: arithmetic, comparison, boolean, conditional, subscript and slice,
displays, comprehensions, f-strings, calls of the sources' own functions, of some builtins and of some of `math`.
Anything else stops with its line. It is not a sandbox around Python: there is no Python in it to escape to, because a
value of none of these types ever exists here and attributes are looked up in fixed tables only.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskfactory.formulas import Source

MAX_STEPS = 2_000_000
MAX_INT_BITS = 4096
MAX_LENGTH = 1_000_000
MAX_DEPTH = 40
MAX_REMEMBERED = 20_000

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
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
_GROWS_LITTLE = {ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
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
_WALKING: dict[str, Callable[..., Any]] = {
    "sum": sum, "min": min, "max": max, "any": any, "all": all, "sorted": sorted, "list": list, "tuple": tuple,
    "set": set, "enumerate": enumerate, "zip": zip, "dict": dict,
}  # fmt: skip
_PLAIN: dict[str, Callable[..., Any]] = {
    "len": len, "abs": abs, "int": int, "float": float, "bool": bool, "round": round, "divmod": divmod, "range": range,
    "pow": pow,
}  # fmt: skip
_MATH = {
    name: getattr(math, name)
    for name in ("ceil", "floor", "trunc", "sqrt", "isqrt", "log", "log2", "log10", "exp", "gcd", "lcm", "prod", "fabs")
}  # fmt: skip
_MATH_CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf}
_METHODS: dict[tuple[type, str], Callable[..., Any]] = {
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
_REMEMBERED = (int, bool, str)
_ABSENT = object()
_FORMAT = re.compile(r"[,_]?(\.\d{1,2})?[dfgeE%]?")
_CONTAINERS = (list, tuple, dict, set)
_FAILURES = (ArithmeticError, TypeError, ValueError, LookupError)


Memory = dict[tuple[str, tuple[Any, ...], tuple[bool, ...]], Any]
"""Results by function name and arguments."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a source."""

    node: ast.FunctionDef
    source: Source


class Stop(Exception):
    """Evaluation ended early. `line` counts from 1 within `source`."""

    def __init__(self, message: str, line: int, source: Source) -> None:
        super().__init__(message)
        self.message, self.line, self.source = message, line, source


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


@dataclass(slots=True)
class _Frame:
    """Names of one call, and where its text comes from."""

    names: dict[str, Any]
    source: Source
    line: int = 1


class Machine:
    """Evaluates one call of one function, and whatever that calls; made anew for every call.

    `memory` outlives it: results of calls whose arguments are ints and strings. That is sound because functions are
    pure: they see their arguments and values at module level, and the latter cannot be changed.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        constants: Mapping[str, tuple[ast.expr, Source]],
        modules: Mapping[str, str],
        memory: Memory,
    ) -> None:
        self._functions, self._constants, self._modules, self._memory = functions, constants, modules, memory
        self._globals: dict[str, Any] = {}
        self._frozen: set[int] = set()
        self._steps = 0
        self._depth = 0

    def start(
        self, function: Function, args: list[Any], kwargs: dict[str, Any], *, traced: bool
    ) -> tuple[Any, dict[str, Any]]:
        """The result of the call, and the function's final local names if it is traced."""
        frame = _Frame({}, function.source, function.node.lineno)
        try:
            value = self._run(function, args, kwargs, frame) if traced else self._recall(function, args, kwargs, frame)
            self._weigh(value, frame)
        except RecursionError:
            raise Stop("nested too deeply", frame.line, frame.source) from None
        except RuntimeError as error:  # a dict or set that changes while it is walked over
            raise Stop(f"RuntimeError: {error}", frame.line, frame.source) from None
        return value, frame.names

    def _recall(self, function: Function, args: list[Any], kwargs: dict[str, Any], frame: _Frame) -> Any:
        """The result of a call, remembered or worked out."""
        if kwargs or any(type(arg) not in _REMEMBERED for arg in args):
            return self._run(function, args, kwargs, frame)
        key = (function.node.name, tuple(args), tuple(type(arg) is bool for arg in args))
        if key in self._memory:
            return _copied(self._memory[key])
        value = self._run(function, args, kwargs, frame)
        if len(self._memory) < MAX_REMEMBERED and _is_flat(value):
            self._memory[key] = _copied(value)
        return value

    def _run(self, function: Function, args: list[Any], kwargs: dict[str, Any], frame: _Frame) -> Any:
        if self._depth >= MAX_DEPTH:
            raise self._stop(frame, f"calls are nested more than {MAX_DEPTH} deep")
        self._depth += 1
        try:
            self._bind(function, args, kwargs, frame)
            self._block(function.node.body, frame)
        except _Return as result:
            return result.value
        finally:
            self._depth -= 1
        return None

    def _bind(self, function: Function, args: list[Any], kwargs: dict[str, Any], frame: _Frame) -> None:
        spec, name = function.node.args, function.node.name
        if spec.vararg or spec.kwarg:
            raise self._stop(frame, f"{name}() takes * or ** arguments, which formulas may not")
        positional = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        if len(args) > len(positional):
            raise self._stop(frame, f"{name}() takes {len(positional)} arguments, and got {len(args)}")
        names = dict(zip(positional, args, strict=False))
        for key, value in kwargs.items():
            if key in names or key not in {*positional, *(a.arg for a in spec.kwonlyargs)}:
                raise self._stop(frame, f"{name}() cannot take {key!r}")
            names[key] = value
        defaults = dict(zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True))
        defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        outside = _Frame({}, function.source, function.node.lineno)
        for key in (*positional, *(a.arg for a in spec.kwonlyargs)):
            if key not in names:
                if key not in defaults:
                    raise self._stop(frame, f"{name}() lacks its argument {key!r}")
                names[key] = self._value(defaults[key], outside)
        frame.names.update(names)

    # Statements.

    def _block(self, body: list[ast.stmt], frame: _Frame) -> None:
        for statement in body:
            self._step(statement, frame)
            handler = _STATEMENTS.get(type(statement))
            if handler is None:
                raise self._stop(frame, f"`{_spelling(statement)}` is outside the subset that formulas may use")
            handler(self, statement, frame)

    def _expr(self, node: ast.Expr, frame: _Frame) -> None:
        if not isinstance(node.value, ast.Constant):
            self._value(node.value, frame)

    def _return(self, node: ast.Return, frame: _Frame) -> None:
        raise _Return(self._value(node.value, frame) if node.value is not None else None)

    def _assign(self, node: ast.Assign, frame: _Frame) -> None:
        value = self._value(node.value, frame)
        for target in node.targets:
            self._store(target, value, frame)

    def _ann_assign(self, node: ast.AnnAssign, frame: _Frame) -> None:
        if node.value is not None:
            self._store(node.target, self._value(node.value, frame), frame)

    def _aug_assign(self, node: ast.AugAssign, frame: _Frame) -> None:
        load = ast.copy_location(_as_load(node.target), node.target)
        value = self._binary(node.op, self._value(load, frame), self._value(node.value, frame), frame)
        self._store(node.target, value, frame)

    def _if(self, node: ast.If, frame: _Frame) -> None:
        self._block(node.body if self._value(node.test, frame) else node.orelse, frame)

    def _for(self, node: ast.For, frame: _Frame) -> None:
        for item in self._walk(self._value(node.iter, frame), node.iter, frame):
            self._store(node.target, item, frame)
            try:
                self._block(node.body, frame)
            except _Continue:
                continue
            except _Break:
                return
        self._block(node.orelse, frame)

    def _while(self, node: ast.While, frame: _Frame) -> None:
        while self._value(node.test, frame):
            self._step(node, frame)
            try:
                self._block(node.body, frame)
            except _Continue:
                continue
            except _Break:
                return
        self._block(node.orelse, frame)

    def _assert(self, node: ast.Assert, frame: _Frame) -> None:
        if not self._value(node.test, frame):
            said = self._value(node.msg, frame) if node.msg is not None else ""
            raise self._stop(
                frame, f"assertion failed: {said}" if isinstance(said, str) and said else "assertion failed"
            )

    def _store(self, target: ast.expr, value: Any, frame: _Frame) -> None:
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, list(self._walk(value, target, frame)), frame)
        elif isinstance(target, ast.Subscript):
            container = self._value(target.value, frame)
            if not isinstance(container, list | dict) or isinstance(target.slice, ast.Slice):
                raise self._stop(frame, "only an item of a list or a dict can be assigned")
            self._check_changeable(container, frame)
            self._guard(frame, operator.setitem, container, self._key(target.slice, frame), value)
        else:
            raise self._stop(frame, f"`{_spelling(target)}` cannot be assigned in a formula")

    def _unpack(self, targets: list[ast.expr], values: list[Any], frame: _Frame) -> None:
        star = next((i for i, t in enumerate(targets) if isinstance(t, ast.Starred)), None)
        if star is None:
            if len(targets) != len(values):
                raise self._stop(frame, f"{len(values)} values do not fit {len(targets)} names")
            pairs = list(zip(targets, values, strict=True))
        else:
            after = len(targets) - star - 1
            if len(values) < star + after:
                raise self._stop(frame, f"{len(values)} values do not fit {len(targets)} names")
            starred = targets[star]
            assert isinstance(starred, ast.Starred)
            middle = values[star : len(values) - after]
            tail = values[len(values) - after :] if after else []
            pairs = [*zip(targets[:star], values[:star], strict=True), (starred.value, middle)]
            pairs += zip(targets[star + 1 :], tail, strict=True)
        for target, value in pairs:
            self._store(target, value, frame)

    # Expressions.

    def _value(self, node: ast.expr, frame: _Frame) -> Any:
        self._steps += 1
        if self._steps > MAX_STEPS:
            self._charge(0, frame)
        kind = type(node)
        if kind is ast.Name:  # by far the most frequent, and it cannot fail
            value = frame.names.get(node.id, _ABSENT)  # type: ignore[attr-defined]
            if value is not _ABSENT:
                return value
        frame.line = node.lineno
        handler = _EXPRESSIONS.get(kind)
        if handler is None:
            raise self._stop(frame, f"`{_spelling(node)}` is outside the subset that formulas may use")
        return handler(self, node, frame)

    def _constant(self, node: ast.Constant, frame: _Frame) -> Any:
        if node.value is None or isinstance(node.value, bool | int | float | str):
            return self._bounded(node.value, frame)
        raise self._stop(frame, f"a {type(node.value).__name__} is outside the subset that formulas may use")

    def _name(self, node: ast.Name, frame: _Frame) -> Any:
        name = node.id
        if name in frame.names:
            return frame.names[name]
        if name in self._globals:
            return self._globals[name]
        if name in self._constants:
            expression, source = self._constants[name]
            outside = _Frame({}, source, expression.lineno)
            if self._depth >= MAX_DEPTH:
                raise self._stop(frame, f"{name!r} is defined in terms of itself")
            self._depth += 1
            self._globals[name] = self._value(expression, outside)
            self._depth -= 1
            self._freeze(self._globals[name], frame)
            return self._globals[name]
        if self._modules.get(name, "").startswith("math.") and name not in self._functions:
            constant = _MATH_CONSTANTS.get(self._modules[name].removeprefix("math."))
            if constant is not None:
                return constant
        if name in self._functions or name in _WALKING or name in _PLAIN:
            raise self._stop(frame, f"the function {name!r} can only be called")
        raise self._stop(frame, f"the name {name!r} is not defined here, or not available to formulas")

    def _bin_op(self, node: ast.BinOp, frame: _Frame) -> Any:
        return self._binary(node.op, self._value(node.left, frame), self._value(node.right, frame), frame)

    def _binary(self, op: ast.operator, left: Any, right: Any, frame: _Frame) -> Any:
        function = _BINARY.get(type(op))
        if type(left) is int and type(right) is int and type(op) in _GROWS_LITTLE:
            return self._bounded(self._guard(frame, function, left, right), frame)  # type: ignore[arg-type]
        if function is None or isinstance(left, dict) or isinstance(right, dict):
            raise self._stop(frame, "this operation is outside the subset that formulas may use")
        if isinstance(op, ast.Mod) and isinstance(left, str):
            raise self._stop(frame, "% formatting is outside the subset that formulas may use; use an f-string")
        self._check_growth(op, left, right, frame)
        return self._bounded(self._guard(frame, function, left, right), frame)

    def _check_growth(self, op: ast.operator, left: Any, right: Any, frame: _Frame) -> None:
        """Refuse an operation whose result would be too large, before the time and memory are spent on it."""
        if isinstance(op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
            if abs(left) > 1 and right > 0 and left.bit_length() * right > MAX_INT_BITS:
                raise self._stop(frame, f"the power has more than {MAX_INT_BITS} bits")
        elif isinstance(op, ast.LShift) and isinstance(left, int) and isinstance(right, int):
            if right > MAX_INT_BITS:
                raise self._stop(frame, f"the shift makes more than {MAX_INT_BITS} bits")
        elif isinstance(op, ast.Mult):
            for sequence, factor in ((left, right), (right, left)):
                if isinstance(sequence, list | tuple | str) and isinstance(factor, int):
                    self._charge(len(sequence) * max(factor, 0), frame)
        elif isinstance(op, ast.Add) and isinstance(left, list | tuple | str) and isinstance(right, list | tuple | str):
            self._charge(len(left) + len(right), frame)

    def _unary_op(self, node: ast.UnaryOp, frame: _Frame) -> Any:
        return self._guard(frame, _UNARY[type(node.op)], self._value(node.operand, frame))

    def _bool_op(self, node: ast.BoolOp, frame: _Frame) -> Any:
        is_and = isinstance(node.op, ast.And)
        value: Any = None
        for operand in node.values:
            value = self._value(operand, frame)
            if bool(value) is not is_and:
                break
        return value

    def _compare(self, node: ast.Compare, frame: _Frame) -> Any:
        left = self._value(node.left, frame)
        result: Any = True
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self._value(comparator, frame)
            self._weigh(left, frame)
            self._weigh(right, frame)
            result = self._guard(frame, _COMPARE[type(op)], left, right)
            if not result:
                break
            left = right
        return result

    def _if_exp(self, node: ast.IfExp, frame: _Frame) -> Any:
        return self._value(node.body if self._value(node.test, frame) else node.orelse, frame)

    def _elements(self, nodes: list[ast.expr], frame: _Frame) -> list[Any]:
        values: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                values.extend(self._walk(self._value(node.value, frame), node, frame))
            else:
                values.append(self._value(node, frame))
        return values

    def _tuple(self, node: ast.Tuple, frame: _Frame) -> Any:
        return tuple(self._elements(node.elts, frame))

    def _list(self, node: ast.List, frame: _Frame) -> Any:
        return self._elements(node.elts, frame)

    def _set(self, node: ast.Set, frame: _Frame) -> Any:
        elements = self._elements(node.elts, frame)
        self._weigh(elements, frame)
        return self._guard(frame, set, elements)

    def _dict(self, node: ast.Dict, frame: _Frame) -> Any:
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

    def _subscript(self, node: ast.Subscript, frame: _Frame) -> Any:
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

    def _attribute(self, node: ast.Attribute, frame: _Frame) -> Any:
        if self._is_math(node.value, frame) and node.attr in _MATH_CONSTANTS:
            return _MATH_CONSTANTS[node.attr]
        raise self._stop(frame, f"`.{node.attr}` is outside the subset that formulas may use")

    def _joined(self, node: ast.JoinedStr, frame: _Frame) -> Any:
        parts: list[str] = []
        for piece in node.values:
            if isinstance(piece, ast.Constant):
                parts.append(str(piece.value))
                continue
            assert isinstance(piece, ast.FormattedValue)
            value = self._value(piece.value, frame)
            form = self._joined(piece.format_spec, frame) if isinstance(piece.format_spec, ast.JoinedStr) else ""
            if not isinstance(value, str | int | float) or piece.conversion != -1 or not _FORMAT.fullmatch(form):
                raise self._stop(frame, "this f-string is outside the subset that formulas may use")
            parts.append(self._guard(frame, format, value, form))
        return self._bounded("".join(parts), frame)

    # Comprehensions are evaluated in a frame of their own, like Python's.

    def _produce(
        self, generators: list[ast.comprehension], make: Callable[[_Frame], Any], frame: _Frame
    ) -> Iterator[Any]:
        first, *rest = generators
        for item in self._walk(self._value(first.iter, frame), first.iter, frame):
            self._store(first.target, item, frame)
            if all(self._value(test, frame) for test in first.ifs):
                if rest:
                    yield from self._produce(rest, make, frame)
                else:
                    yield make(frame)

    def _comprehension(self, node: Any, frame: _Frame) -> Any:
        inner = _Frame(dict(frame.names), frame.source, frame.line)
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

    def _call(self, node: ast.Call, frame: _Frame) -> Any:
        if any(keyword.arg is None for keyword in node.keywords):
            raise self._stop(frame, "** in a call is outside the subset that formulas may use")
        if isinstance(node.func, ast.Attribute) and not self._is_math(node.func.value, frame):
            return self._method(node, node.func, frame)
        args = self._elements(node.args, frame)
        kwargs = {str(keyword.arg): self._value(keyword.value, frame) for keyword in node.keywords}
        if isinstance(node.func, ast.Attribute):
            return self._library(node.func.attr, _MATH, args, kwargs, node, frame, prefix="math.")
        if not isinstance(node.func, ast.Name) or node.func.id in frame.names:
            raise self._stop(frame, "only a function that is called by its name can be called")
        name = node.func.id
        if name in self._functions:
            function = self._functions[name]
            value = self._recall(function, args, kwargs, _Frame({}, function.source, function.node.lineno))
            frame.line = node.lineno
            return value
        imported = self._modules.get(name, "")
        if imported.startswith("math."):
            return self._library(imported.removeprefix("math."), _MATH, args, kwargs, node, frame, prefix="math.")
        if name in _WALKING:
            if len(args) == 1 or name not in ("min", "max"):
                args = [self._walk(a, node, frame) if self._walkable(a) else a for a in args]
            else:
                self._weigh(args, frame)
            return self._library(name, _WALKING, args, kwargs, node, frame)
        return self._library(name, _PLAIN, args, kwargs, node, frame)

    def _library(
        self,
        name: str,
        table: Mapping[str, Callable[..., Any]],
        args: list[Any],
        kwargs: dict[str, Any],
        node: ast.Call,
        frame: _Frame,
        prefix: str = "",
    ) -> Any:
        if name not in table:
            raise self._stop(frame, f"the name '{prefix}{name}' is not defined here, or not available to formulas")
        if name == "pow" and not prefix:
            if len(args) != 2 or kwargs:
                raise self._stop(frame, "pow() takes two arguments in a formula")
            return self._binary(ast.Pow(), args[0], args[1], frame)
        if name == "prod":
            args = [self._walk(args[0], node, frame), *args[1:]] if args else args
            result: Any = kwargs.get("start", 1)
            for factor in self._guard(frame, iter, args[0] if args else ()):
                result = self._binary(ast.Mult(), result, factor, frame)
            return result
        if len(args) > 1000 or any(isinstance(n, int) and abs(n) > 400 for n in args[1:] if name == "round"):
            raise self._stop(frame, f"{name}() is outside its bounds")
        if name in ("int", "float") and args and isinstance(args[0], str):
            raise self._stop(frame, f"{name}() of a string is outside the subset that formulas may use")
        if name == "sum" and len(args) + len(kwargs) > 1:
            start = args[1] if len(args) > 1 else kwargs.get("start", 0)
            if not isinstance(start, int | float):
                raise self._stop(frame, "sum() adds numbers only in a formula")
        result = self._guard(frame, table[name], *args, **kwargs)
        if name == "range" and len(result) > MAX_LENGTH:
            raise self._stop(frame, f"the range is longer than {MAX_LENGTH:,}")
        if isinstance(result, enumerate | zip):
            return list(self._guard(frame, list, result))
        return self._bounded(result, frame)

    def _method(self, node: ast.Call, func: ast.Attribute, frame: _Frame) -> Any:
        owner = self._value(func.value, frame)
        method = _METHODS.get((type(owner), func.attr))
        if method is None or node.keywords:
            raise self._stop(frame, f"`.{func.attr}()` is outside the subset that formulas may use")
        if func.attr in ("append", "add"):
            self._check_changeable(owner, frame)
        arguments = self._elements(node.args, frame)
        if func.attr in ("append", "get"):
            self._weigh(arguments[:1] if func.attr == "get" else [], frame)
        else:
            self._weigh([owner, *arguments], frame)
        return self._guard(frame, method, owner, *arguments)

    def _is_math(self, node: ast.expr, frame: _Frame) -> bool:
        # `import math` may stand in any field (reference_imports is not among the sources), so it is not asked for.
        if not isinstance(node, ast.Name) or node.id in frame.names:
            return False
        return self._modules.get(node.id, "math" if node.id == "math" else "") == "math"

    def _freeze(self, value: Any, frame: _Frame) -> None:
        self._weigh(value, frame)
        pending = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, _CONTAINERS):
                self._frozen.add(id(item))
                pending.extend(item.values() if isinstance(item, dict) else item)

    def _check_changeable(self, value: Any, frame: _Frame) -> None:
        if id(value) in self._frozen:
            raise self._stop(frame, "a formula may not change a value at module level")

    # Bounds.

    def _walkable(self, value: Any) -> bool:
        return isinstance(value, Iterator | list | tuple | set | dict | range | str)

    def _walk(self, value: Any, node: ast.AST, frame: _Frame) -> Iterator[Any]:
        """The items of a value, each charged as a step."""
        if not self._walkable(value):
            raise self._stop(frame, f"cannot walk over a {type(value).__name__}")
        return self._charged(value, frame)

    def _charged(self, value: Iterable[Any], frame: _Frame) -> Iterator[Any]:
        if isinstance(value, set):  # the order of a set of strings changes from process to process
            value = sorted(value, key=lambda item: (type(item).__name__, item))
        for item in value:
            self._charge(1, frame)
            if isinstance(item, _CONTAINERS):  # it may get compared or hashed
                self._weigh(item, frame)
            yield item

    def _key(self, node: ast.expr, frame: _Frame) -> Any:
        """The value of an expression that is about to be hashed."""
        value = self._value(node, frame)
        self._weigh(value, frame)
        return value

    def _weigh(self, value: Any, frame: _Frame) -> None:
        """Charge everything inside a value, before Python walks over it at once.

        A container that holds another one twice, forty levels deep, is small in memory, and takes for ever to compare,
        hash or print.
        """
        if not isinstance(value, _CONTAINERS):
            return
        pending: list[Any] = [value]
        while pending:
            item = pending.pop()
            self._charge(1, frame)
            if isinstance(item, dict):
                pending.extend(item.keys())
                pending.extend(item.values())
            elif isinstance(item, list | tuple | set):
                pending.extend(item)

    def _charge(self, steps: int, frame: _Frame) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise self._stop(frame, f"took more than {MAX_STEPS:,} steps")

    def _step(self, node: ast.stmt | ast.expr, frame: _Frame) -> None:
        frame.line = node.lineno
        self._charge(1, frame)

    def _bounded(self, value: Any, frame: _Frame) -> Any:
        if type(value) is float:
            return value
        if isinstance(value, int):
            if value.bit_length() <= MAX_INT_BITS:
                return value
            raise self._stop(frame, f"the number has more than {MAX_INT_BITS} bits")
        if isinstance(value, complex):
            raise self._stop(frame, "the result is a complex number")
        if isinstance(value, str | list | tuple) and len(value) > MAX_LENGTH:
            raise self._stop(frame, f"the result is longer than {MAX_LENGTH:,}")
        return value

    def _guard(self, frame: _Frame, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call into Python, and turn its complaint into ours."""
        line = frame.line
        try:
            return function(*args, **kwargs)
        except _FAILURES as error:
            said = f"{error.args[0]!r} is not there" if isinstance(error, KeyError) and error.args else str(error)
            raise Stop(f"{type(error).__name__}: {said}", line, frame.source) from None

    def _stop(self, frame: _Frame, message: str) -> Stop:
        return Stop(message, frame.line, frame.source)


def _is_flat(value: Any) -> bool:
    """Whether a value is a scalar, or a short container of nothing but scalars."""
    if not isinstance(value, _CONTAINERS):
        return isinstance(value, int | float | str | None)
    items = value.values() if isinstance(value, dict) else value
    return len(value) <= 256 and not any(isinstance(item, _CONTAINERS) for item in items)


def _copied(value: Any) -> Any:
    """A copy that its receiver may change."""
    return value.copy() if isinstance(value, list | dict | set) else value


def _as_load(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(id=target.id, ctx=ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(value=target.value, slice=target.slice, ctx=ast.Load())
    return target


def _spelling(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 50 else text[:49] + "…"


def _break(machine: Machine, node: ast.stmt, frame: _Frame) -> None:
    raise _Break


def _continue(machine: Machine, node: ast.stmt, frame: _Frame) -> None:
    raise _Continue


def _pass(machine: Machine, node: ast.stmt, frame: _Frame) -> None:
    return None


_STATEMENTS: dict[type[ast.stmt], Callable[[Machine, Any, _Frame], None]] = {
    ast.Expr: Machine._expr,
    ast.Return: Machine._return,
    ast.Assign: Machine._assign,
    ast.AnnAssign: Machine._ann_assign,
    ast.AugAssign: Machine._aug_assign,
    ast.If: Machine._if,
    ast.For: Machine._for,
    ast.While: Machine._while,
    ast.Assert: Machine._assert,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.Pass: _pass,
    ast.Import: _pass,
    ast.ImportFrom: _pass,
}
_EXPRESSIONS: dict[type[ast.expr], Callable[[Machine, Any, _Frame], Any]] = {
    ast.Constant: Machine._constant,
    ast.Name: Machine._name,
    ast.BinOp: Machine._bin_op,
    ast.UnaryOp: Machine._unary_op,
    ast.BoolOp: Machine._bool_op,
    ast.Compare: Machine._compare,
    ast.IfExp: Machine._if_exp,
    ast.Tuple: Machine._tuple,
    ast.List: Machine._list,
    ast.Set: Machine._set,
    ast.Dict: Machine._dict,
    ast.Subscript: Machine._subscript,
    ast.Attribute: Machine._attribute,
    ast.JoinedStr: Machine._joined,
    ast.ListComp: Machine._comprehension,
    ast.SetComp: Machine._comprehension,
    ast.DictComp: Machine._comprehension,
    ast.GeneratorExp: Machine._comprehension,
    ast.Call: Machine._call,
}
