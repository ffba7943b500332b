"""Operators, builtins, `math` and methods, on values that are worked out already."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from taskfactory.interpreter.meter import Frame, Meter
from taskfactory.interpreter.subset import BINARY, GROWS_LITTLE, MAX_INT_BITS, MAX_LENGTH, METHODS


class Arithmetic(Meter):
    """Applies the tables of the subset within the bounds of the meter."""

    def _binary(self, op: ast.operator, left: Any, right: Any, frame: Frame) -> Any:
        function = BINARY.get(type(op))
        if type(left) is int and type(right) is int and type(op) in GROWS_LITTLE:
            return self._bounded(self._guard(frame, function, left, right), frame)  # type: ignore[arg-type]
        if function is None or isinstance(left, dict) or isinstance(right, dict):
            raise self._stop(frame, "this operation is outside the subset that formulas may use")
        if isinstance(op, ast.Mod) and isinstance(left, str):
            raise self._stop(frame, "% formatting is outside the subset that formulas may use; use an f-string")
        self._check_growth(op, left, right, frame)
        return self._bounded(self._guard(frame, function, left, right), frame)

    def _check_growth(self, op: ast.operator, left: Any, right: Any, frame: Frame) -> None:
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

    def _library(
        self,
        name: str,
        table: Mapping[str, Callable[..., Any]],
        args: list[Any],
        kwargs: dict[str, Any],
        frame: Frame,
        prefix: str = "",
    ) -> Any:
        if name not in table:
            raise self._stop(frame, f"the name '{prefix}{name}' is not defined here, or not available to formulas")
        if name == "pow" and not prefix:
            if len(args) != 2 or kwargs:
                raise self._stop(frame, "pow() takes two arguments in a formula")
            return self._binary(ast.Pow(), args[0], args[1], frame)
        if name == "prod":
            args = [self._walk(args[0], frame), *args[1:]] if args else args
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

    def _method(self, owner: Any, name: str, arguments: list[Any], frame: Frame) -> Any:
        method = METHODS.get((type(owner), name))
        if method is None:
            raise self._stop(frame, f"`.{name}()` is outside the subset that formulas may use")
        if name in ("append", "add"):
            self._check_changeable(owner, frame)
        if name in ("append", "get"):
            self._weigh(arguments[:1] if name == "get" else [], frame)
        else:
            self._weigh([owner, *arguments], frame)
        return self._guard(frame, method, owner, *arguments)
