"""Names that a source uses and nobody defines (TF209), by Python's own scoping rules.

In a bundle and in the checks the sources share names: imports, `flops_src`, `reference_src`, `make_inputs_src`,
`timed_src`, `cases_src` and `regions_src` see one another, and alternates and ablations see all of them.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import warnings
from collections.abc import Iterator, Mapping

from taskfactory.checks.report import Report

SHARED = (
    "reference_imports", "flops_src", "reference_src", "make_inputs_src", "timed_src", "cases_src", "regions_src",
)  # fmt: skip
_ALWAYS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}


def check_scopes(report: Report, trees: Mapping[str, ast.Module]) -> None:
    """Report names that would raise NameError. Says nothing where `import *` makes them unknowable."""
    tables = {name: _table(report.file.value(name)) for name in trees}
    if any("*" in report.file.value(name) and _imports_star(tree) for name, tree in trees.items() if name in SHARED):
        return
    # A source that does not parse may define anything.
    if any(report.file.value(name) and name not in trees for name in SHARED):
        return
    shared = frozenset().union(*(_defined(tables[name]) for name in SHARED if name in tables)) | _ALWAYS
    for name, table in tables.items():
        if name in SHARED:
            known = shared
        elif "." in name:
            known = shared | _defined(table)
        else:
            continue  # derived_src and floor_src are evaluated, which reports what they lack
        for missing in sorted(_used(table) - known):
            report.add("TF209", name, f"the name {missing!r} is not defined anywhere", row=_row(trees[name], missing))


def _table(text: str) -> symtable.SymbolTable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return symtable.symtable(text, "<source>", "exec")


def _walk(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _walk(child)


def _defined(table: symtable.SymbolTable) -> frozenset[str]:
    names = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    for inner in _walk(table):
        if inner is not table:
            names |= {s.get_name() for s in inner.get_symbols() if s.is_declared_global() and s.is_assigned()}
    return frozenset(names)


def _used(table: symtable.SymbolTable) -> set[str]:
    used: set[str] = set()
    for inner in _walk(table):
        for symbol in inner.get_symbols():
            if symbol.is_referenced() and (inner is table or symbol.is_global()):
                used.add(symbol.get_name())
    return used


def _row(tree: ast.Module, name: str) -> int:
    return next((n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name), 1)


def _imports_star(tree: ast.Module) -> bool:
    # Python allows it at module level only.
    return any(isinstance(n, ast.ImportFrom) and any(a.name == "*" for a in n.names) for n in tree.body)
