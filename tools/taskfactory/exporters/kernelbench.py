"""KernelBench: one file a public measure shape, with `Model`, `get_inputs` and `get_init_inputs`."""

from __future__ import annotations

from taskfactory.exporters import Export
from taskfactory.exporters.carry import ALWAYS_LOST, metadata, module_text
from taskfactory.load import SpecFile
from taskfactory.prose import environment
from taskfactory.spec import TaskSpec

_LOST = (
    "A problem has one shape, so every measure shape becomes a problem of its own.",
    "The tolerance is KernelBench's own, one per precision, elementwise; tile and region gates have no place.",
    "Cases, which vary the inputs for correctness only, have no place.",
    "KernelBench casts every input tensor to one precision: Model turns integers and flags back, and so must every "
    "ModelNew; bf16 rounds integers above 256, so the precision has to be fp32.",
    "Canonical work and the metric have no place: KernelBench reports a speed-up over eager PyTorch.",
)


def export(file: SpecFile) -> Export:
    """See the module."""
    spec = file.spec
    losses = [*ALWAYS_LOST, *_LOST]
    chosen = compared_output(spec)
    if spec.tuple_names:
        losses.append(f"KernelBench compares one tensor: of {', '.join(spec.tuple_names)} it gets {chosen} alone.")
    template = environment().get_template("kernelbench/problem.py.jinja")
    index = spec.tuple_names.index(chosen) if spec.tuple_names else None
    files = {}
    for k, shape in enumerate(spec.measure_shapes, 1):
        maker = "mix" if spec.timed_src else "_mk"
        glue = template.render(func=spec.func, index=index, shape=shape, names=spec.shape_names, maker=maker)
        name = f"{k}_{spec.name.replace('-', '_')}.py"
        files[name] = module_text(file, metadata(file, losses), glue).encode("utf-8")
    return Export(files, tuple(losses))


def compared_output(spec: TaskSpec) -> str:
    """The output that is compared: the first that may be a float, else the first."""
    names = spec.tuple_names or ("out",)
    dtypes = spec.output_dtypes or ((),) * len(names)
    floats = [n for n, allowed in zip(names, dtypes, strict=True) if not allowed or any("float" in d for d in allowed)]
    return (floats or list(names))[0]
