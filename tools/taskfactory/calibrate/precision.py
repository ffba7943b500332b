"""Precision: the reference with operands, accumulators or parts of its result rounded to a narrower format.

One mechanism, a TorchFunctionMode around the unchanged reference, sees every operation and rounds what goes into it or
what comes out of it. 8-bit formats are given a scale, as any kernel would: fp8 (e4m3) one a tensor, int8 one a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from taskfactory.checks.inputs import Sample, copied
from taskfactory.checks.lab import Lab, Outputs
from taskfactory.grader.compare import as_tuple

Rounding = Callable[[torch.Tensor], torch.Tensor]

FORMATS = ("bf16", "fp16", "tf32", "fp8", "int8")
PLACES = {
    "arguments": "every floating argument",
    "products": "the operands of every product and convolution",
    "sums": "the result of every product, convolution and sum",
    "everything": "the result of every operation",
}
WORDS = {
    "bf16": "bfloat16", "fp16": "float16", "tf32": "10 bits of mantissa", "fp8": "fp8 (e4m3)", "int8": "8-bit integers",
}  # fmt: skip
PARTS = {"late": "the last seven eighths", "some": "every twelfth index"}
EIGHT_BITS = ("fp8", "int8")
"""Formats that a verdict asks about: they are rejected, or the spec says why they may pass."""

_PRODUCTS = {
    "matmul", "mm", "bmm", "einsum", "tensordot", "conv1d", "conv2d", "conv3d", "linear", "baddbmm", "addmm", "dot",
    "scaled_dot_product_attention", "__matmul__", "__rmatmul__", "mv", "outer",
}  # fmt: skip
_SUMS = _PRODUCTS | {
    "sum", "mean", "cumsum", "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "__rsub__", "__isub__",
}  # fmt: skip


def precision_names(sample: Sample, names: Sequence[str]) -> list[tuple[str, str]]:
    """(name, description) of every precision that is tried on a spec."""
    found = [
        (f"precision.{form}.{place}", f"{text} in {WORDS[form]}")
        for place, text in PLACES.items()
        for form in (FORMATS if place in ("arguments", "products") else ("bf16", "fp16"))
    ]
    for name, output in zip(names, sample.expected, strict=True):
        if output.is_floating_point():
            for part, text in PARTS.items():
                for axis in range(output.dim()):
                    about = f"{text} of axis {axis} of {name} computed from fp8 arguments"
                    found.append((f"precision.fp8.{part}_{name}_{axis}", about))
    return found


def rounded_outputs(lab: Lab, sample: Sample, name: str) -> Outputs | None:
    """The reference's outputs in one of the precisions; None where it cannot be told from the reference's own."""
    _, form, place = name.split(".")
    if place in PLACES:
        return _run(lab, sample, rounding(form), place)
    part, output, number = place.split("_", 1)[0], place.split("_", 1)[1].rpartition("_")[0], place.rpartition("_")[2]
    index, axis = lab.names.index(output), int(number)
    size = sample.expected[index].shape[axis] if sample.expected[index].dim() > axis else 1
    if size < 12:
        return None
    coarse = _run(lab, sample, rounding(form), "arguments")
    outputs = [value.clone() for value in sample.expected]
    chosen = torch.arange(size, device=outputs[index].device)
    chosen = chosen[chosen >= size // 8] if part == "late" else chosen[chosen % 12 == 0]
    outputs[index].index_copy_(axis, chosen, coarse[index].to(outputs[index].dtype).index_select(axis, chosen))
    return tuple(outputs)


def _run(lab: Lab, sample: Sample, coarse: Rounding, place: str) -> Outputs:
    args = [copied(value) for value in sample.args]
    if place == "arguments":
        args = [coarse(a) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
        return as_tuple(lab.call("reference_src", place, lab.reference, args))
    with _Coarse(coarse, place):
        return as_tuple(lab.call("reference_src", place, lab.reference, args))


class _Coarse(TorchFunctionMode):
    """Rounds operands or results of operations while it is active."""

    def __init__(self, coarse: Rounding, place: str) -> None:
        super().__init__()
        self._coarse, self._place = coarse, place

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._place == "products":
            if name in _PRODUCTS:
                args = tuple(self._operand(value) for value in args)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        wanted = name in _SUMS or (self._place == "everything" and not name.startswith("__get"))
        if wanted and isinstance(result, torch.Tensor) and result.is_floating_point():
            coarse = self._coarse(result)
            if args and result is args[0]:
                return result.copy_(coarse)  # in place: what the caller holds must be rounded too
            return coarse
        return result

    def _operand(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._coarse(value) if value.is_floating_point() else value
        return type(value)(map(self._operand, value)) if isinstance(value, list | tuple) else value


def rounding(form: str) -> Rounding:
    """The function that rounds a floating tensor to a format and returns it in its own dtype."""
    return {"bf16": _bf16, "fp16": _fp16, "tf32": _tf32, "fp8": _fp8, "int8": _int8}[form]


def _bf16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


def _fp16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float16).to(x.dtype)


def _tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounds to nearest, ties away from zero, after the tenth bit of the mantissa."""
    bits = x.float().contiguous().view(torch.int32)
    finite = torch.isfinite(x)
    short = ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(x.dtype)
    return torch.where(finite, short, x)


def _fp8(x: torch.Tensor) -> torch.Tensor:
    if not x.numel():
        return x
    scale = torch.nan_to_num(x.float().abs(), 0.0, 0.0, 0.0).amax().clamp(min=1e-30) / 448.0
    return ((x.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def _int8(x: torch.Tensor) -> torch.Tensor:
    if not x.numel() or not x.dim():
        return x
    wide = x.float()
    scale = torch.nan_to_num(wide.abs(), 0.0, 0.0, 0.0).amax(-1, keepdim=True).clamp(min=1e-30) / 127.0
    return ((wide / scale).round().clamp(-127, 127) * scale).to(x.dtype)
