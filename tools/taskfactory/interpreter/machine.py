"""The interpreter: functions and statements of the subset, over the syntax tree."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from taskfactory.interpreter.expressions import Expressions
from taskfactory.interpreter.meter import Frame, Function, Stop, copied, is_flat
from taskfactory.interpreter.subset import (
    MAX_DEPTH,
    MAX_REMEMBERED,
    REMEMBERED,
    as_load,
    spelling,
)


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class Machine(Expressions):
    """Evaluates one call of one function, and whatever that calls; made anew for every call.

    `memory` outlives it: results of calls whose arguments are ints and strings. That is sound because functions are
    pure: they see their arguments and values at module level, and the latter cannot be changed.
    """

    def start(
        self, function: Function, args: list[Any], kwargs: dict[str, Any], *, traced: bool
    ) -> tuple[Any, dict[str, Any]]:
        """The result of the call, and the function's final local names if it is traced."""
        frame = Frame({}, function.source, function.node.lineno)
        try:
            value = self._run(function, args, kwargs, frame) if traced else self._recall(function, args, kwargs, frame)
            self._weigh(value, frame)
        except RecursionError:
            raise Stop("nested too deeply", frame.line, frame.source) from None
        except RuntimeError as error:  # a dict or set that changes while it is walked over
            raise Stop(f"RuntimeError: {error}", frame.line, frame.source) from None
        return value, frame.names

    def _recall(self, function: Function, args: list[Any], kwargs: dict[str, Any], frame: Frame) -> Any:
        """The result of a call, remembered or worked out."""
        if kwargs or any(type(arg) not in REMEMBERED for arg in args):
            return self._run(function, args, kwargs, frame)
        key = (function.node.name, tuple(args), tuple(type(arg) is bool for arg in args))
        if key in self._memory:
            return copied(self._memory[key])
        value = self._run(function, args, kwargs, frame)
        if len(self._memory) < MAX_REMEMBERED and is_flat(value):
            self._memory[key] = copied(value)
        return value

    def _run(self, function: Function, args: list[Any], kwargs: dict[str, Any], frame: Frame) -> Any:
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

    def _bind(self, function: Function, args: list[Any], kwargs: dict[str, Any], frame: Frame) -> None:
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
        outside = Frame({}, function.source, function.node.lineno)
        for key in (*positional, *(a.arg for a in spec.kwonlyargs)):
            if key not in names:
                if key not in defaults:
                    raise self._stop(frame, f"{name}() lacks its argument {key!r}")
                names[key] = self._value(defaults[key], outside)
        frame.names.update(names)

    # Statements.

    def _block(self, body: list[ast.stmt], frame: Frame) -> None:
        for statement in body:
            self._step(statement, frame)
            handler = _STATEMENTS.get(type(statement))
            if handler is None:
                raise self._stop(frame, f"`{spelling(statement)}` is outside the subset that formulas may use")
            handler(self, statement, frame)

    def _expr(self, node: ast.Expr, frame: Frame) -> None:
        if not isinstance(node.value, ast.Constant):
            self._value(node.value, frame)

    def _return(self, node: ast.Return, frame: Frame) -> None:
        raise _Return(self._value(node.value, frame) if node.value is not None else None)

    def _assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self._value(node.value, frame)
        for target in node.targets:
            self._store(target, value, frame)

    def _ann_assign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self._store(node.target, self._value(node.value, frame), frame)

    def _aug_assign(self, node: ast.AugAssign, frame: Frame) -> None:
        load = ast.copy_location(as_load(node.target), node.target)
        value = self._binary(node.op, self._value(load, frame), self._value(node.value, frame), frame)
        self._store(node.target, value, frame)

    def _if(self, node: ast.If, frame: Frame) -> None:
        self._block(node.body if self._value(node.test, frame) else node.orelse, frame)

    def _for(self, node: ast.For, frame: Frame) -> None:
        for item in self._walk(self._value(node.iter, frame), frame):
            self._store(node.target, item, frame)
            try:
                self._block(node.body, frame)
            except _Continue:
                continue
            except _Break:
                return
        self._block(node.orelse, frame)

    def _while(self, node: ast.While, frame: Frame) -> None:
        while self._value(node.test, frame):
            self._step(node, frame)
            try:
                self._block(node.body, frame)
            except _Continue:
                continue
            except _Break:
                return
        self._block(node.orelse, frame)

    def _assert(self, node: ast.Assert, frame: Frame) -> None:
        if not self._value(node.test, frame):
            said = self._value(node.msg, frame) if node.msg is not None else ""
            raise self._stop(
                frame, f"assertion failed: {said}" if isinstance(said, str) and said else "assertion failed"
            )

    def _store(self, target: ast.expr, value: Any, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, list(self._walk(value, frame)), frame)
        elif isinstance(target, ast.Subscript):
            container = self._value(target.value, frame)
            if not isinstance(container, list | dict) or isinstance(target.slice, ast.Slice):
                raise self._stop(frame, "only an item of a list or a dict can be assigned")
            self._check_changeable(container, frame)
            self._guard(frame, operator.setitem, container, self._key(target.slice, frame), value)
        else:
            raise self._stop(frame, f"`{spelling(target)}` cannot be assigned in a formula")

    def _unpack(self, targets: list[ast.expr], values: list[Any], frame: Frame) -> None:
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


def _break(machine: Machine, node: ast.stmt, frame: Frame) -> None:
    raise _Break


def _continue(machine: Machine, node: ast.stmt, frame: Frame) -> None:
    raise _Continue


def _pass(machine: Machine, node: ast.stmt, frame: Frame) -> None:
    return None


_STATEMENTS: dict[type[ast.stmt], Callable[[Machine, Any, Frame], None]] = {
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
