"""Our five solutions compute their tasks: on the CPU, in Triton's interpreter, judged by the grader's comparison."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TASKS = {
    "adaptive_sparsity_threshold": "adaptive_mask.py",
    "based_forward": "based.py",
    "cache_hit_skip_gate": "cache_gate.py",
    "conv3d_tiled_decode_blend": "tiledconv3d.py",
    "deepseek_v32_sparse_mla_decode": "sparse_mla.py",
}
"""Spec file (without suffix) -> solution file."""


def interpret(spec: str, *options: str, seconds: int) -> list[dict]:
    """Run tests/interpret_solution.py for one task; return its lines."""
    command = [sys.executable, str(ROOT / "tests/interpret_solution.py"), str(ROOT / f"specs/{spec}.py")]
    command += [str(ROOT / "solutions" / TASKS[spec]), *options]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tools")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [line for line in lines if line["failure"]]
    assert done.returncode == 0, f"{wrong}\n{done.stderr[-4000:]}"
    assert not wrong
    return lines


@pytest.mark.parametrize("spec", TASKS)
def test_solution_in_the_interpreter(spec):
    lines = interpret(spec, seconds=170)
    assert sum(line["case"] == "default" for line in lines) >= 4
    assert any(line["case"] != "default" for line in lines)


@pytest.mark.full
@pytest.mark.parametrize("spec", TASKS)
def test_solution_in_the_interpreter_on_every_case(spec):
    interpret(spec, "--every-case", seconds=1500)


@pytest.mark.parametrize("spec", TASKS)
def test_solution_is_self_contained(spec):
    """A solution is one file that imports torch, triton and the standard library only."""
    text = (ROOT / "solutions" / TASKS[spec]).read_text("utf-8")
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) <= {"torch", "triton"}
