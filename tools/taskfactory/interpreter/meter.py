"""The bounds on an evaluation: every step is charged, and nothing may grow or nest beyond measure."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskfactory.interpreter.subset import CONTAINERS, FAILURES, MAX_INT_BITS, MAX_LENGTH, MAX_STEPS


@dataclass(frozen=True, slots=True)
class Source:
    """Python text embedded in a spec; its first line is line `first_line` of `path`."""

    text: str
    path: Path | str
    first_line: int = 1
    field: str = ""


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


@dataclass(slots=True)
class Frame:
    """Names of one call, and where its text comes from."""

    names: dict[str, Any]
    source: Source
    line: int = 1


class Meter:
    """Counts steps, and refuses what would take too long or too much memory. Knows values, not syntax."""

    def __init__(self) -> None:
        self._frozen: set[int] = set()
        self._steps = 0

    def _freeze(self, value: Any, frame: Frame) -> None:
        self._weigh(value, frame)
        pending = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, CONTAINERS):
                self._frozen.add(id(item))
                pending.extend(item.values() if isinstance(item, dict) else item)

    def _check_changeable(self, value: Any, frame: Frame) -> None:
        if id(value) in self._frozen:
            raise self._stop(frame, "a formula may not change a value at module level")

    def _walkable(self, value: Any) -> bool:
        return isinstance(value, Iterator | list | tuple | set | dict | range | str)

    def _walk(self, value: Any, frame: Frame) -> Iterator[Any]:
        """The items of a value, each charged as a step."""
        if not self._walkable(value):
            raise self._stop(frame, f"cannot walk over a {type(value).__name__}")
        return self._charged(value, frame)

    def _charged(self, value: Iterable[Any], frame: Frame) -> Iterator[Any]:
        if isinstance(value, set):  # the order of a set of strings changes from process to process
            value = self._guard(frame, sorted, value, key=lambda item: (type(item).__name__, item))
        for item in value:
            self._charge(1, frame)
            if isinstance(item, CONTAINERS):  # it may get compared or hashed
                self._weigh(item, frame)
            yield item

    def _weigh(self, value: Any, frame: Frame) -> None:
        """Charge everything inside a value, before Python walks over it at once.

        A container that holds another one twice, forty levels deep, is small in memory, and takes for ever to compare,
        hash or print.
        """
        if not isinstance(value, CONTAINERS):
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

    def _charge(self, steps: int, frame: Frame) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise self._stop(frame, f"took more than {MAX_STEPS:,} steps")

    def _step(self, node: ast.stmt | ast.expr, frame: Frame) -> None:
        frame.line = node.lineno
        self._charge(1, frame)

    def _bounded(self, value: Any, frame: Frame) -> Any:
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

    def _guard(self, frame: Frame, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call into Python, and turn its complaint into ours."""
        line = frame.line
        try:
            return function(*args, **kwargs)
        except FAILURES as error:
            said = f"{error.args[0]!r} is not there" if isinstance(error, KeyError) and error.args else str(error)
            raise Stop(f"{type(error).__name__}: {said}", line, frame.source) from None

    def _stop(self, frame: Frame, message: str) -> Stop:
        return Stop(message, frame.line, frame.source)


def is_flat(value: Any) -> bool:
    """Whether a value is a scalar, or a short container of nothing but scalars."""
    if not isinstance(value, CONTAINERS):
        return isinstance(value, int | float | str | None)
    items = value.values() if isinstance(value, dict) else value
    return len(value) <= 256 and not any(isinstance(item, CONTAINERS) for item in items)


def copied(value: Any) -> Any:
    """A copy that its receiver may change."""
    return value.copy() if isinstance(value, list | dict | set) else value
