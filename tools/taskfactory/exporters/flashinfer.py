"""flashinfer-trace: a Definition, one Workload a public shape, and the values of inputs that are not random floats.

Axes are found by running the input generator on the CPU at the correct shapes: a dimension that always equals a shape's
integer is named after it, one that never changes is a constant, any other gets a name of its own.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taskfactory.errors import UsageError
from taskfactory.exporters import Export
from taskfactory.exporters.carry import ALWAYS_LOST, metadata, module_text
from taskfactory.load import SpecFile
from taskfactory.prose import environment, render_prose

if TYPE_CHECKING:
    import torch

DTYPES = {
    "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "bool",
}  # fmt: skip
_SAFETENSORS = {
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float32": "F32",
    "float16": "F16", "bfloat16": "BF16",
}  # fmt: skip
_LOST = (
    "Tolerance, tiles, regions and accepted dtypes have no place in a Definition; flashinfer-bench has its own.",
    "Cases, which vary the inputs for correctness only, and the mixing of timed inputs have no place.",
    "Canonical work and the metric have no place: flashinfer-bench reports latency and speed-up.",
    "Float inputs are drawn by flashinfer-bench, not by the generator, which may shape their distribution.",
)


def export(file: SpecFile) -> Export:
    """See the module.

    Raises:
        UsageError: an input or output has a dtype that the format does not know.
    """
    spec = file.spec
    samples = [_sample(file, shape, seed) for seed, shape in enumerate(spec.correct_shapes)]
    parameters = list(samples[0][0])
    axes = Axes(spec.shape_names, spec.correct_shapes)
    inputs = {name: axes.describe(name, [sample[0][name] for sample in samples]) for name in parameters}
    outputs = {name: axes.describe(name, [sample[1][name] for sample in samples]) for name in samples[0][1]}
    losses = [*ALWAYS_LOST, *_LOST]
    viewed = [name for name, each in (inputs | outputs).items() if each["dtype"] == "uint8"]
    for name in viewed:
        (inputs | outputs)[name]["dtype"] = "int8"
        losses.append(f"{name}: the format knows no uint8, so its bytes are passed as int8.")
    strange = sorted({each["dtype"] for each in (*inputs.values(), *outputs.values())} - DTYPES)
    if strange:
        raise UsageError(f"{file.path}: flashinfer-trace knows no dtype {', '.join(strange)}")
    bound = {axis for each in inputs.values() for axis in each["shape"] or ()}
    samples_kept, fixed = axes.fix(outputs, bound)
    if fixed:
        losses.append(
            f"{', '.join(fixed)}: only outputs have this dimension, which inputs do not bind; it is a constant here, "
            f"and {len(samples) - len(samples_kept)} of {len(samples)} workloads with another value are left out."
        )
    used = {axis for each in (*inputs.values(), *outputs.values()) for axis in each["shape"] or ()}
    idle = [name for name in spec.shape_names if name not in used]
    if idle:
        losses.append(f"{', '.join(idle)}: no tensor has this dimension, so no axis holds it.")
    stored = [name for name in parameters if inputs[name]["shape"] is not None and "float" not in inputs[name]["dtype"]]
    if stored:
        losses.append(f"{', '.join(stored)}: values that are no random floats are stored, for correct shapes alone.")
    glue = environment().get_template("flashinfer-trace/run.py.jinja").render(
        func=spec.func, arguments=axes.call(samples[0][2]), parameters=parameters,
        bytes_in=[name for name in viewed if name in inputs], single=spec.compare == "tensor",
        outputs=[(name, name in viewed) for name in outputs],
    )  # fmt: skip
    data = metadata(file, losses)
    name = spec.name.replace("-", "_")
    definition = {
        "name": name, "op_type": "taskfactory", "description": f"{spec.title}. {render_prose(file)['blurb']}",
        "tags": [f"keyword:{word}" for word in spec.keywords], "axes": axes.to_json(used), "inputs": inputs,
        "outputs": outputs, "reference": module_text(file, data, glue), "constraints": [], "taskfactory": data,
    }  # fmt: skip
    files = {f"definitions/taskfactory/{name}.json": json.dumps(definition, indent=1).encode()}
    rows = []
    for k in samples_kept:
        sample = samples[k]
        path = f"blob/workloads/taskfactory/{name}/{k}.safetensors"
        if stored:
            files[path] = safetensors({each: sample[0][each] for each in stored})
        rows.append(_trace(name, spec.correct_shapes[k], axes.values(k, used), sample[0], stored, path))
    files[f"workloads/taskfactory/{name}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return Export(files, tuple(losses))


def _sample(file: SpecFile, shape: Sequence[int], seed: int) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Inputs by name with tuples taken apart, outputs by name, and the call's shape: names and tuples of names."""
    from taskfactory.describe import parameters
    from taskfactory.grader.compare import as_tuple
    from taskfactory.grader.sources import Part, load_namespace

    spec = file.spec
    names = ("reference_imports", "flops_src", "make_inputs_src", "reference_src")
    space = load_namespace([Part(getattr(spec, name), str(file.path)) for name in names], "cpu")
    args = space["_mk"](*shape, seed)
    flat: dict[str, Any] = {}
    call: list[Any] = []
    for name, value in zip(parameters(spec), args, strict=False):
        if isinstance(value, tuple | list):
            parts = [f"{name}_{k}" for k in range(len(value))]
            flat.update(zip(parts, value, strict=True))
            call.append(parts)
        elif value is None:
            call.append(None)
        else:
            flat[name] = value
            call.append(name)
    outputs = dict(zip(spec.tuple_names or ("out",), as_tuple(space[spec.func](*args)), strict=True))
    return flat, {name if name not in flat else f"{name}_out": value for name, value in outputs.items()}, call


class Axes:
    """Names for the dimensions of tensors, found from their sizes at several shapes."""

    def __init__(self, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> None:
        columns = zip(*shapes, strict=True)
        self.known: dict[str, tuple[int, ...]] = dict(zip(names, columns, strict=True))
        self.fixed: list[str] = []
        self.count = len(shapes)

    def describe(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        """A TensorSpec; `shape` is null for a Python scalar."""
        from taskfactory.grader.compare import dtype_name

        first = values[0]
        if not hasattr(first, "shape"):
            kind = "bool" if isinstance(first, bool) else "int64" if isinstance(first, int) else "float32"
            return {"shape": None, "dtype": kind}
        sizes = zip(*(tuple(value.shape) for value in values), strict=True)
        dims = [self._name(f"{name}_{k}", size) for k, size in enumerate(sizes)]
        return {"shape": dims, "dtype": dtype_name(first.dtype)}

    def _name(self, proposed: str, sizes: tuple[int, ...]) -> str:
        for known, values in self.known.items():
            if values == sizes:
                return known
        name = f"const_{sizes[0]}" if len(set(sizes)) == 1 else proposed
        self.known[name] = sizes
        return name

    def fix(self, outputs: Mapping[str, Any], bound: set[str]) -> tuple[list[int], list[str]]:
        """Make constants of the axes that only outputs have, with the first sample's size.

        Returns the samples that still fit, and the axes in question.
        """
        found = dict.fromkeys(axis for each in outputs.values() for axis in each["shape"] if axis not in bound)
        self.fixed = [axis for axis in found if not axis.startswith("const_")]
        fits = [k for k in range(self.count) if all(self.known[a][k] == self.known[a][0] for a in self.fixed)]
        return fits, self.fixed

    def _constant(self, name: str) -> bool:
        return name.startswith("const_") or name in self.fixed

    def to_json(self, used: set[str]) -> dict[str, Any]:
        """The axes of a Definition: constants where the size never changed."""
        return {
            name: {"type": "const", "value": sizes[0]} if self._constant(name) else {"type": "var"}
            for name, sizes in self.known.items()
            if name in used
        }

    def values(self, k: int, used: set[str]) -> dict[str, int]:
        """Sizes of the variable axes in the k-th sample."""
        varying = (name for name in self.known if name in used and not self._constant(name))
        return {name: self.known[name][k] for name in varying}

    @staticmethod
    def call(words: Sequence[Any]) -> str:
        """The arguments of the reference from the parameters of `run`."""
        return ", ".join(f"({', '.join(w)},)" if isinstance(w, list) else str(w) for w in words)


def _trace(
    name: str, shape: Sequence[int], axes: dict[str, int], inputs: dict[str, Any], stored: Sequence[str], path: str
) -> dict[str, Any]:
    """A Trace that holds a workload and nothing else."""
    values: dict[str, dict[str, Any]] = {}
    for key, value in inputs.items():
        if not hasattr(value, "shape"):
            values[key] = {"type": "scalar", "value": value}
        elif key in stored:
            values[key] = {"type": "safetensors", "path": path, "tensor_key": key}
        else:
            values[key] = {"type": "random"}
    identity = str(uuid.uuid5(uuid.NAMESPACE_URL, f"taskfactory:{name}:{list(shape)}"))
    return {"definition": name, "workload": {"axes": axes, "inputs": values, "uuid": identity}}


def safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    """Tensors in the safetensors format: the header's length in 8 bytes, the header as JSON, the data."""
    import torch

    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        kind = _SAFETENSORS[str(tensor.dtype).removeprefix("torch.")]
        kind = "I8" if kind == "U8" else kind
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data
