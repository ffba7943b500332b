"""Evaluate a spec's formulas without executing Python.

`canonical_work`, `derived`, `claims` and `floor` are arithmetic over a shape. They are written in Python and are
evaluated here by an interpreter of a small subset of it, so that validating or building a stranger's spec runs none of
the stranger's code, needs no torch, and cannot hang: steps, sizes and depth are bounded. Sources are parsed once;
functions that no formula reaches may use anything.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from taskfactory.errors import FormulaError
from taskfactory.findings import Finding
from taskfactory.interpreter.machine import Machine
from taskfactory.interpreter.meter import Function, Memory, Source, Stop

__all__ = ["Formulas", "Source"]


class Formulas:
    """The functions defined by some sources, callable by name.

    Later sources see and override the names of earlier ones. Formulas are pure: values at module level cannot be
    changed, so a call depends on its arguments alone, and results are remembered.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._functions: dict[str, Function] = {}
        self._constants: dict[str, tuple[ast.expr, Source]] = {}
        self._modules: dict[str, str] = {}
        self._memory: Memory = {}
        for source in sources:
            self._read(source)

    def _read(self, source: Source) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(source.text)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                line = source.first_line + (getattr(error, "lineno", None) or 1) - 1
                message = f"Python cannot parse this: {getattr(error, 'msg', None) or error}"
                raise FormulaError([Finding("TF201", "error", message, source.path, line, source.field)]) from None
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self._functions[node.name] = Function(node, source)
                self._constants.pop(node.name, None)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self._constants[target.id] = (node.value, source)
                        self._functions.pop(target.id, None)
            elif isinstance(node, ast.Import):
                self._modules.update({alias.asname or alias.name: alias.name for alias in node.names})
            elif isinstance(node, ast.ImportFrom):
                names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                self._modules.update(names)

    def defines(self, name: str) -> bool:
        """Whether one of the sources defines the function."""
        return name in self._functions

    def line(self, name: str) -> int:
        """The file line of a function's `def`."""
        function = self._functions[name]
        return function.source.first_line + function.node.lineno - 1

    def docstring(self, name: str) -> str:
        """The docstring of a function, empty if it has none."""
        return ast.get_docstring(self._functions[name].node) or ""

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function with plain values and return its plain result.

        Raises:
            FormulaError: it is not defined, left the subset, failed, or exceeded a bound; with file and line.
        """
        return self._evaluate(name, args, kwargs, traced=False)[0]

    def trace(self, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, Mapping[str, Any]]:
        """Like `call`, and the function's local variables as they were when it returned."""
        return self._evaluate(name, args, kwargs, traced=True)

    def _evaluate(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, traced: bool
    ) -> tuple[Any, Mapping[str, Any]]:
        if name not in self._functions:
            raise FormulaError([Finding("TF501", "error", f"no function {name!r} is defined", "", 0)])
        machine = Machine(self._functions, self._constants, self._modules, self._memory)
        try:
            return machine.start(self._functions[name], list(args), dict(kwargs), traced=traced)
        except Stop as stop:
            source = stop.source
            line = source.first_line + stop.line - 1
            raise FormulaError([Finding("TF501", "error", stop.message, source.path, line, source.field)]) from None
