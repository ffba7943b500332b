"""The corpus: one file an attack, whose head says what it does and how it must end. Files are parsed, never executed.

A file of the corpus is a module that defines `attack(honest, *args)`, and optionally `begin(facts, honest)`, which is
called once when the submission is imported. Its docstring starts with the mechanism in one line and has a line
`Source: ...`. These upper-case names are read as literals:

    CLASS      what kind of attack it is
    EXPECTED   statuses in which the attack is defeated; "passed" among them means: harmless, and it must gain nothing
    ON_CPU     the same for a run without a GPU, where nothing is timed and no graded shape is run (default: EXPECTED)
    NEEDS      what it cannot run without: "cuda", "nvcc", "gcc", "triton"
    APPLIES    names of the tasks it is about; empty: any
    COMPARE    "tensor" or "tuple" if it applies only to tasks that return that
    OPTIONS    limits of the job, so that waiting for a time-out is short
    OPEN       a weakness that is known and not yet closed: why, and since when
    RAW        pass on what `attack` returns as it is, instead of as the contract's tensor or tuple
"""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskfactory.errors import UsageError
from taskfactory.grader.result import Status
from taskfactory.paths import exploits_dir

NEEDS = ("cuda", "nvcc", "gcc", "triton")


@dataclass(frozen=True)
class Attack:
    """One file of the corpus."""

    name: str
    path: Path
    text: str
    mechanism: str
    """First line of the docstring."""
    source: str
    """Public account of the attack, or "own"."""
    kind: str
    """CLASS."""
    expected: tuple[Status, ...]
    on_cpu: tuple[Status, ...]
    control: bool = False
    """An honest variant that must pass, not an attack."""
    needs: tuple[str, ...] = ()
    applies: tuple[str, ...] = ()
    compare: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    open: str = ""
    raw: bool = False

    def statuses(self, device: str) -> tuple[Status, ...]:
        """How it must end on "cuda" or "cpu"."""
        return self.expected if device == "cuda" else self.on_cpu

    def applicable(self, task: str, compare: str) -> bool:
        """Whether it is about a task of this name that returns a "tensor" or a "tuple"."""
        return (not self.applies or task in self.applies) and self.compare in ("", compare)


def load_corpus(folder: Path | None = None) -> list[Attack]:
    """All attacks, then all controls, each in order of class and name.

    Raises:
        UsageError: a file's head is missing something or says what cannot be.
    """
    root = folder or exploits_dir()
    attacks = [load_attack(path, control=False) for path in root.glob("*.py")]
    controls = [load_attack(path, control=True) for path in (root / "controls").glob("*.py")]
    return sorted([*attacks, *controls], key=lambda attack: (attack.control, attack.kind, attack.name))


def find(corpus: list[Attack], name: str) -> Attack:
    """The attack of that name.

    Raises:
        UsageError: there is none.
    """
    for attack in corpus:
        if attack.name == name:
            return attack
    raise UsageError(f"no attack named {name!r}; `taskfactory redteam --list` names them")


def load_attack(path: Path, control: bool) -> Attack:
    """Read one file's head.

    Raises:
        UsageError: see `load_corpus`.
    """
    text = path.read_text("utf-8")
    try:
        tree = ast.parse(text)
        head = _head(tree)
        document = ast.get_docstring(tree) or ""
        expected = _statuses(head.pop("EXPECTED"))
        attack = Attack(
            path.stem, path, text, document.split("\n", 1)[0], _source(document), head.pop("CLASS"), expected,
            _statuses(head.pop("ON_CPU")) if "ON_CPU" in head else expected, control,
        )  # fmt: skip
        attack = dataclasses.replace(attack, **{name.lower(): value for name, value in head.items()})
        _check(attack, tree)
    except (KeyError, SyntaxError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    return attack


def _head(tree: ast.Module) -> dict[str, Any]:
    """The upper-case names of the corpus that a module binds to literals."""
    known = {"CLASS", "EXPECTED", "ON_CPU", "NEEDS", "APPLIES", "COMPARE", "OPTIONS", "OPEN", "RAW"}
    head = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in known:
            head[node.targets[0].id] = ast.literal_eval(node.value)
    return head


def _statuses(names: tuple[str, ...]) -> tuple[Status, ...]:
    return tuple(Status(name) for name in names)


def _source(document: str) -> str:
    """What follows "Source:" up to the end of its paragraph, on one line."""
    _, found, rest = document.partition("\nSource:")
    if not found:
        raise ValueError("the docstring has no line 'Source: ...'")
    return " ".join(rest.split("\n\n", 1)[0].split())


def _check(attack: Attack, tree: ast.Module) -> None:
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "attack" not in functions:
        raise ValueError("defines no function attack(honest, *args)")
    if not attack.expected or not attack.on_cpu:
        raise ValueError("EXPECTED or ON_CPU is empty")
    if set(attack.needs) - set(NEEDS):
        raise ValueError(f"NEEDS may name {', '.join(NEEDS)}")
    if attack.control and attack.expected != (Status.PASSED,):
        raise ValueError("a control must pass")
