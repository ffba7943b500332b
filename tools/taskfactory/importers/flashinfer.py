"""flashinfer-trace: a Definition, with the workloads beside it if they are there.

Variable axes become the shape; inputs are drawn at random. The work is what all inputs and outputs measure in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from taskfactory.errors import UsageError
from taskfactory.exporters.carry import frozen, read_module
from taskfactory.importers.draft import Draft, identifier, task_name

_BYTES = {"float32": 4, "int32": 4, "int64": 8, "int16": 2, "float16": 2, "bfloat16": 2}
_SMALL, _LARGE = 16, 256


def read(problem: Path) -> Draft:
    """See the module.

    Raises:
        UsageError: not a Definition, or one that a spec cannot hold.
    """
    try:
        data = json.loads(problem.read_text("utf-8"))
        axes, inputs, outputs = data["axes"], data["inputs"], data["outputs"]
        name, reference = str(data["name"]), str(data["reference"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{problem}: not a Definition: {error!r}") from None
    carried = read_module(reference)
    if carried is not None:
        return Draft(carried)
    names = tuple(axis for axis, each in axes.items() if each["type"] == "var")
    if not names or not all(axis.isidentifier() for axis in axes):
        raise UsageError(f"{problem}: needs a variable axis, and axes whose names are identifiers")
    workloads = list(_workloads(problem, name))
    scalars = {key: spec.get("value", 1) for row in workloads[:1] for key, spec in row["inputs"].items()}
    shapes = tuple(dict.fromkeys(tuple(row["axes"][axis] for axis in names) for row in workloads))
    func = identifier(name)
    words = ", ".join(inputs)
    sizes = {axis: str(each["value"]) for axis, each in axes.items() if each["type"] == "const"}
    fields: dict[str, Any] = {
        "name": task_name(name), "func": func, "signature": f"{func}({words})",
        "title": str(data.get("description") or name).split(". ")[0][:100],
        "reference_imports": "import torch",
        "reference_src": f"{reference.strip()}\n\n\ndef {func}({words}):\n    return run({words})",
        "make_inputs_src": _generator(names, inputs, sizes, scalars),
        "flops_src": _work(names, [*inputs.values(), *outputs.values()], sizes),
        "compare": "tensor" if len(outputs) == 1 else "tuple",
        "tuple_names": None if len(outputs) == 1 else tuple(outputs),
        "output_dtypes": frozen([[each["dtype"]] for each in outputs.values()]),
        "shape_names": names, "correct_shapes": ((_SMALL,) * len(names),),
        "measure_quick_shapes": ((2 * _SMALL,) * len(names),),
        "measure_shapes": shapes or ((_LARGE,) * len(names),), "keywords": ("imported", "flashinfer-trace"),
    }  # fmt: skip
    notes = [
        "canonical_work counts every input and output once; say so if an algorithm needs less.",
        f"correct_shapes: every axis is {_SMALL}; choose shapes that exercise the edges.",
        "_mk draws floats from a normal distribution and integers as zeros and ones; indices and masks need more care.",
    ]
    if not shapes:
        notes.append("measure_shapes: no workloads were found beside the definition, so the shapes are guesses.")
    if data.get("constraints"):
        notes.append(f"constraints are not checked: {'; '.join(data['constraints'])}")
    return Draft(fields, notes)


def _workloads(problem: Path, name: str) -> Iterator[Mapping[str, Any]]:
    """The workloads of a definition in a data set laid out as theirs: definitions/<type>/, workloads/<type>/."""
    path = problem.parents[1].parent / "workloads" / problem.parent.name / f"{name}.jsonl"
    if path.is_file():
        for line in path.read_text("utf-8").splitlines():
            if line.strip():
                yield json.loads(line)["workload"]


def _generator(
    names: tuple[str, ...], inputs: Mapping[str, Any], sizes: Mapping[str, str], scalars: Mapping[str, Any]
) -> str:
    lines = [f"def _mk({', '.join(names)}, seed):", '    rng = torch.Generator(device="cuda").manual_seed(seed)']
    for key, each in inputs.items():
        if each["shape"] is None:
            lines.append(f"    {key} = {scalars.get(key, 1)!r}")
            continue
        shape = "(" + "".join(f"{sizes.get(axis, axis)}, " for axis in each["shape"]).strip() + ")"
        if "float" in each["dtype"]:
            lines.append(f'    {key} = torch.randn({shape}, device="cuda", generator=rng).to(torch.{each["dtype"]})')
        else:
            made = f'torch.randint(0, 2, {shape}, device="cuda", generator=rng)'
            lines.append(f"    {key} = {made}.to(torch.{each['dtype']})")
    return "\n".join([*lines, f"    return {', '.join(inputs)}" + ("," if len(inputs) == 1 else "")])


def _work(names: tuple[str, ...], tensors: list[Mapping[str, Any]], sizes: Mapping[str, str]) -> str:
    terms = [
        " * ".join([str(_BYTES.get(each["dtype"], 1)), *(sizes.get(axis, axis) for axis in each["shape"])])
        for each in tensors
        if each["shape"] is not None
    ]
    return f"def canonical_work({', '.join(names)}):\n    return {' + '.join(terms)}"
