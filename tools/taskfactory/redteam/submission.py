"""Put an attack and an honest implementation into one submission file.

Both are kept as text and written to the worker's scratch when the submission is imported, so that each is a module with
a file of its own: Triton and torch.compile read source files, and tracebacks show the lines of the corpus.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from taskfactory.errors import UsageError
from taskfactory.grader.task import Task
from taskfactory.paths import solutions_dir
from taskfactory.redteam.corpus import Attack

_TEXT = """\
# Made by `taskfactory redteam`: {name} around an honest implementation of {task}.
import importlib.util
import json
import os
import sys
import types

FACTS = json.loads({facts!r})


def _load(name, text):
    path = os.path.join(os.getcwd(), name + ".py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_honest = getattr(_load("honest_{stem}", {honest!r}), {func!r})
_attack = _load("attack_{name}", {attack!r})


def _outputs(*args):
    result = _honest(*args)
    return list(result) if isinstance(result, (tuple, list)) else [result]


if hasattr(_attack, "begin"):
    _attack.begin(types.SimpleNamespace(**FACTS), _outputs)


def {func}(*args):
    result = _attack.attack(_outputs, *args)
    if {raw!r} or type(result) is not list:
        return result
    return tuple(result) if {compare!r} == "tuple" else result[0]
"""


@dataclass(frozen=True)
class Facts:
    """What the threat model lets an attacker know; the argument of an attack's `begin`."""

    task: str
    func: str
    compare: str
    tol: float
    dtypes: list[list[str] | None]
    """Allowed dtypes of each output, None for the default."""
    public_shapes: list[list[int]]
    supervisor_pid: int
    hidden: list[str]
    """Files that must not be readable."""
    prized: list[str]
    """Files that must not be writable: results, rewards, manifests, caches."""
    outside: str
    """A directory in which nothing may appear."""
    secret: str
    """Text that stands in the hidden files and in the supervisor's environment and nowhere else."""


def facts_of(task: Task, supervisor_pid: int, hidden: list[str], prized: list[str], outside: str, secret: str) -> Facts:
    """The facts of one task."""
    public = [list(shape) for kind, shapes in task.shapes.items() if kind != "graded" for shape in shapes]
    dtypes = [None if output.dtypes is None else list(output.dtypes) for output in task.outputs]
    return Facts(
        task.name, task.func, task.compare, task.tol, dtypes, public, supervisor_pid, hidden, prized, outside, secret
    )


def compose(attack: Attack, honest: str, task: Task, facts: Facts) -> str:
    """The submission's text."""
    return _TEXT.format(
        name=attack.name, task=task.name, facts=json.dumps(asdict(facts)), honest=honest, attack=attack.text,
        stem=task.module.removesuffix(".py"), func=task.func, raw=attack.raw, compare=task.compare,
    )  # fmt: skip


def honest_source(task: Task, bundle: Path | None, given: Path | None) -> str:
    """The honest implementation: the given file, the bundle's solution, else our own.

    Raises:
        UsageError: there is none.
    """
    candidates = [given] if given else [bundle and bundle / "solution" / task.module, solutions_dir() / task.module]
    for path in candidates:
        if path is not None and path.is_file():
            return path.read_text("utf-8")
    if given is not None:
        raise UsageError(f"{given}: no such file")
    raise UsageError(f"no solution of {task.name} to attack with; name an honest implementation with --honest")
