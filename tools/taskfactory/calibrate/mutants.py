"""Mutants: the reference with one small damage each, made from its syntax tree. Nothing is executed here.

Every function and constant of `reference_src` is mutated. A mutant is named `<function>.<operator>.<number>`, the
number counting that operator's places in that function, so that a name survives edits elsewhere. Bit-equal mutants are
recognised later, by running them; what is the same text as another mutant is left out here.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from taskfactory.calibrate.operators import HELPERS, alternatives

MOST = 400
"""Mutants of one reference; of more, every n-th is kept."""


@dataclass(frozen=True)
class Mutant:
    """One damaged reference."""

    name: str
    before: str
    """The piece of the reference that was replaced, as Python."""
    after: str
    """What stands in its place; empty if it was deleted."""
    source: str
    """The whole of `reference_src` with the damage in it."""

    @property
    def change(self) -> str:
        """The damage in one line."""
        return f"{self.before} -> {self.after or 'nothing'}"


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a reference source, in the order of its text.

    Raises:
        SyntaxError: it does not parse.
    """
    found: list[Mutant] = []
    seen = {ast.unparse(ast.parse(source))}
    numbers: Counter[tuple[str, str]] = Counter()
    for function, index, count in _places(source):
        for choice in range(count):
            operator, before, after, text = _mutated(source, index, choice)
            if text in seen:
                continue
            seen.add(text)
            numbers[function, operator] += 1
            name = f"{function}.{operator}.{numbers[function, operator]}"
            found.append(Mutant(name, before, after, HELPERS + text))
    step = -(-len(found) // MOST) if found else 1
    return found[::step]


def _places(source: str) -> Iterator[tuple[str, int, int]]:
    """(function, index of a node in `ast.walk`, number of ways to damage it), in the order of the text."""
    tree = ast.parse(source)
    order = {id(node): index for index, node in enumerate(ast.walk(tree))}
    for top in tree.body:
        if isinstance(top, ast.FunctionDef):
            name, parts = top.name, top.body
        elif isinstance(top, ast.Assign) and isinstance(top.targets[0], ast.Name):
            name, parts = top.targets[0].id, [top]
        else:
            continue
        inside = [node for statement in parts for node in ast.walk(statement) if hasattr(node, "lineno")]
        for node in sorted(inside, key=_position):
            ways = len(list(alternatives(node)))
            if ways:
                yield name, order[id(node)], ways


def _position(node: ast.AST) -> tuple[int, int, int, int]:
    """Where a node begins; of two that begin together, the outer one first."""
    place: dict[str, int] = vars(node)
    return place["lineno"], place["col_offset"], -place["end_lineno"], -place["end_col_offset"]


def _mutated(source: str, index: int, choice: int) -> tuple[str, str, str, str]:
    """(operator, before, after, text of the whole source) of one damage, done to a fresh tree."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    node = nodes[index]
    operator, new = list(alternatives(copy.deepcopy(node)))[choice]
    before, after = _shown(node), _shown(new)
    replacement = ast.Pass() if new is None else new
    for parent in nodes:
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, replacement)
            elif isinstance(value, list) and any(item is node for item in value):
                value[[item is node for item in value].index(True)] = replacement
    return operator, before, after, ast.unparse(ast.fix_missing_locations(tree))


def _shown(node: ast.AST | None) -> str:
    """A node as one line of Python; of a loop or a condition, its head."""
    if node is None:
        return ""
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).strip().split("\n")[0][:160]
