"""KernelBench: a file with `Model`, `get_inputs` and `get_init_inputs`.

The module's integer constants that these functions read become the shape. The model's weights are drawn once a call
from the call's seed and passed as one tuple, `weights`; the reference builds the model anew and puts them in.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taskfactory.errors import UsageError
from taskfactory.exporters.carry import read_module
from taskfactory.importers.draft import Draft, identifier, task_name
from taskfactory.importers.parsing import constants, dependent, function, names_read, parse, targets, without

_MAKE_INPUTS = """
def _mk({shape}, seed):
    with _seeded(seed):
        inputs = [x.to("cuda") if isinstance(x, torch.Tensor) else x for x in get_inputs({shape})]
        weights = tuple(w.detach().to("cuda") for w in Model(*get_init_inputs({shape})).state_dict().values())
    return (*inputs, weights, ({shape},))
"""
_REFERENCE = """
def {func}({inputs}, weights, shape):
    model = Model(*get_init_inputs(*shape)).to("cuda")
    state = dict(zip(model.state_dict(), weights))
    model.eval()
    with torch.no_grad():
        return torch.func.functional_call(model, state, ({inputs},))
"""
_HELPERS = """
import contextlib


@contextlib.contextmanager
def _seeded(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
"""
_SMALL = 16


def read(problem: Path) -> Draft:
    """See the module.

    Raises:
        UsageError: the file does not define what a problem has to.
    """
    tree, text = parse(problem)
    carried = read_module(text)
    if carried is not None:
        return Draft(carried)
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    inputs, initial = function(tree, "get_inputs"), function(tree, "get_init_inputs")
    forward = function(model, "forward") if model else None
    if model is None or forward is None or inputs is None or initial is None:
        raise UsageError(f"{problem}: defines no Model with forward, get_inputs and get_init_inputs")
    arguments = [each.arg for each in forward.args.args[1:]]
    if forward.args.vararg or forward.args.kwonlyargs or not arguments:
        raise UsageError(f"{problem}: the arguments of Model.forward are not plain")
    numbers = constants(tree)
    following = dependent(tree, numbers)
    read_here = tuple(_reached(each, following) for each in (inputs, initial))
    names = tuple(name for name in numbers if any(name in found for found in read_here))
    if not names:
        raise UsageError(f"{problem}: no integer constant of the module is read by get_inputs, so it has no shape")
    shape = tuple(numbers[name] for name in names)
    free = [name for name in names if name not in read_here[1] and numbers[name] > 1]
    small = tuple(min(numbers[name], _SMALL) if name in free else numbers[name] for name in names)
    func = f"{identifier(task_name(problem.stem))}_forward"
    shape_words = ", ".join(names)
    moved = {name for node in following for name in targets(node)}
    left = {"get_inputs", "get_init_inputs"}
    kept = {name for node in tree.body if getattr(node, "name", "") not in left for name in _read_inside(node)}
    body = without(tree, text, {*left, *(set(names) | moved) - kept})
    before = [f"    {ast.unparse(node)}" for node in following]
    getters = "\n\n\n".join(_with_parameters(text, each, shape_words, before) for each in (inputs, initial))
    fields: dict[str, Any] = {
        "name": task_name(problem.stem), "func": func,
        "signature": f"{func}({', '.join(arguments)}, weights, shape)",
        "returns_doc": "`weights` are the model's, in the order of its state_dict; `shape` holds "
        f"{shape_words}.",
        "reference_imports": "import torch",
        "make_inputs_src": "\n\n\n".join(
            (_HELPERS.strip(), body, getters, _MAKE_INPUTS.strip("\n").format(shape=shape_words))
        ),
        "reference_src": _REFERENCE.format(func=func, inputs=", ".join(arguments)),
        "shape_names": names, "measure_shapes": (shape,), "measure_quick_shapes": (small,),
        "correct_shapes": (small,), "keywords": ("imported", "kernelbench"),
    }  # fmt: skip
    notes = [
        f"correct_shapes: {', '.join(free) or 'nothing'} was made small; check that the model accepts it.",
        "inputs and weights are drawn on the CPU from one seed, in float32 as in the original.",
    ]
    return Draft(fields, notes)


def _read_inside(node: ast.stmt) -> set[str]:
    """What a class or function of the module reads: constants it names have to stay beside it."""
    return names_read(node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else set()


def _reached(node: ast.AST, following: Sequence[ast.Assign]) -> set[str]:
    """The names that a function reads, by way of the module's assignments too."""
    names = names_read(node)
    for each in reversed(following):
        if targets(each) & names:
            names |= names_read(each.value)
    return names


def _with_parameters(text: str, node: ast.FunctionDef, names: str, before: Sequence[str]) -> str:
    """A function with the shape's integers as its parameters, and what the module made of them in its first lines."""
    first, last = node.body[0].lineno, node.end_lineno
    body = text.split("\n")[first - 1 : last]
    if first == node.lineno:  # def f(): return ...
        body = [f"    {ast.unparse(statement)}" for statement in node.body]
    return "\n".join([f"def {node.name}({names}):", *before, *body])
