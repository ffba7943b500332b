"""Small problems in the formats of other benchmarks, written for our tests."""

from __future__ import annotations

from typing import Any

from taskfactory.load import SpecFile

KERNELBENCH = '''"""A made-up problem."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """A linear layer whose result is scaled by a given gain, and a threshold kept in a buffer."""

    def __init__(self, features, shape):
        super().__init__()
        self.linear = nn.Linear(shape[0], features)
        self.register_buffer("threshold", torch.full((features,), 0.1))

    def forward(self, x, gain):
        return torch.maximum(self.linear(x.mean(1)) * gain, self.threshold)


rows = 16 * 32
width = height = 64
features = 32
size = (width, height)


def get_inputs():
    return [torch.randn(rows, height, width), 0.5]


def get_init_inputs():
    return [features, size]
'''

DEFINITION: dict[str, Any] = {
    "name": "shifted_sum_h8",
    "op_type": "norm",
    "description": "Sum of entries above a shift. Made up.",
    "axes": {"batch": {"type": "var"}, "length": {"type": "var"}, "hidden": {"type": "const", "value": 8}},
    "inputs": {
        "x": {"shape": ["batch", "length", "hidden"], "dtype": "bfloat16"},
        "used": {"shape": ["batch"], "dtype": "int32"},
        "shift": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "total": {"shape": ["batch"], "dtype": "float32"},
        "count": {"shape": ["batch"], "dtype": "int32"},
    },
    "reference": "import torch\n\n\ndef run(x, used, shift):\n    above = x.float() > shift\n"
    "    total = (x.float() * above).sum((1, 2)) * used\n    return total, above.sum((1, 2)).to(torch.int32)\n",
}
WORKLOADS = [
    {
        "definition": "shifted_sum_h8",
        "workload": {
            "axes": {"batch": batch, "length": length},
            "inputs": {"x": {"type": "random"}, "used": {"type": "random"}, "shift": {"type": "scalar", "value": 0.25}},
            "uuid": f"{batch}",
        },
    }
    for batch, length in ((4, 100), (8, 200))
]

GPU_MODE_REFERENCE = """import torch
from task import input_t, output_t
from utils import make_match_reference


def generate_input(rows: int, width: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return torch.randn(rows, width, device="cuda", generator=gen), torch.ones(width, device="cuda")


def ref_kernel(data: input_t) -> output_t:
    x, weight = data
    return (x * weight).sum(-1)


check_implementation = make_match_reference(ref_kernel)
"""
GPU_MODE_TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
lang: "py"
description: |
  Weighted sums of rows.
config:
  main: "eval.py"
tests:
  - {"rows": 4, "width": 33, "seed": 1}
  - {"rows": 7, "width": 16, "seed": 2}
benchmarks:
  - {"rows": 4096, "width": 1024, "seed": 3}
"""


def solution_of(file: SpecFile) -> str:
    """A correct submission: the reference itself, moved from "cuda" to the CPU."""
    spec = file.spec
    parts = (spec.reference_imports, spec.flops_src, spec.make_inputs_src, spec.reference_src)
    return "\n\n\n".join(parts).replace('"cuda"', '"cpu"')
