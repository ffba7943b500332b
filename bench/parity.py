"""Compare the specs of `specs/` with other specs of the same task names: same inputs, same reference outputs.

    python bench/parity.py OTHER_SPEC_DIR [--device cpu] [--seed 0] [--only TASK]

For every correct shape, the default inputs must be equal bit for bit, integer and bool outputs too. A float output
must be exact or have E <= 1e-6 where this file says that the operator leaves no freedom (`STRICT`); otherwise
E <= 5e-4 and every entry within one bf16 ulp, or within 1e-6 of the output's RMS, of the other reference. The table
goes to stdout; the exit status is 1 if anything differs by more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from taskfactory.grader.sources import Part, load_namespace  # noqa: E402
from taskfactory.load import SpecFile, load_spec  # noqa: E402

SOURCES = ("reference_imports", "flops_src", "make_inputs_src", "reference_src")
STRICT = {"based-forward", "cache-hit-skip-gate"}
"""Tasks whose float outputs must agree to E <= 1e-6."""
TABLES = ("grader_shapes", "measure_shapes", "measure_quick_shapes", "correct_shapes")
FACTS = ("module", "func", "metric", "compare", "tuple_names", "tol", "shape_names")


@dataclass(frozen=True)
class Row:
    """How one output compared at one shape."""

    task: str
    shape: tuple[int, ...]
    output: str
    kind: str
    error: float
    """E; for integers 0.0 or 1.0."""
    ulp: float
    """Largest distance in bf16 ulp among entries that differ by more than 1e-6 RMS."""
    passed: bool


def execute(file: SpecFile, device: str) -> dict[str, Any]:
    """The namespace in which a spec's `_mk` and reference live."""
    parts = [file.source(name) for name in SOURCES if file.value(name)]
    return load_namespace([Part(part.text, str(part.path), part.first_line) for part in parts], device)


def same_value(a: Any, b: Any) -> bool:
    """Equality of two arguments: tensors by dtype, shape and bits, everything else by type and value."""
    import torch

    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and a == b


def ulp_distance(r: Any, o: Any) -> float:
    """Largest |o - r| in units of the bf16 spacing at r (subnormal spacing 2**-133), ignoring 1e-6 RMS and less."""
    import torch

    wide_r, wide_o = r.double(), o.double()
    gap = (wide_o - wide_r).abs()
    counts = gap > 1e-6 * wide_r.square().mean().sqrt()
    if not bool(counts.any()):
        return 0.0
    exponent = torch.frexp(torch.maximum(wide_r.abs(), wide_o.abs())[counts]).exponent - 1
    spacing = torch.ldexp(torch.ones_like(gap[counts]), exponent.clamp(min=-126) - 7)
    return float((gap[counts] / spacing).max())


def compare_output(task: str, shape: tuple[int, ...], name: str, r: Any, o: Any) -> Row:
    """Judge our output `o` against the other reference's `r`."""
    import torch

    kind = str(r.dtype).removeprefix("torch.")
    if o.dtype != r.dtype or o.shape != r.shape:
        return Row(task, shape, name, f"{kind} is not {o.dtype} {tuple(o.shape)}", float("inf"), float("inf"), False)
    if torch.equal(r, o):
        return Row(task, shape, name, kind, 0.0, 0.0, True)
    if not r.is_floating_point():
        return Row(task, shape, name, kind, 1.0, float("inf"), False)
    error = float((o.double() - r.double()).norm() / r.double().norm())
    ulp = ulp_distance(r, o)
    passed = error <= 1e-6 if task in STRICT else error <= 5e-4 and ulp <= 1.0
    return Row(task, shape, name, kind, error, ulp, passed)


def compare_specs(ours: SpecFile, other: SpecFile, device: str, seed: int) -> Iterator[Row]:
    """One row an output and correct shape, and one for the inputs."""
    a, b = execute(ours, device), execute(other, device)
    for shape in ours.spec.correct_shapes:
        mine, theirs = a["_mk"](*shape, seed), b["_mk"](*shape, seed)
        equal = len(mine) == len(theirs) and all(map(same_value, mine, theirs))
        yield Row(ours.spec.name, shape, "inputs", "bits", 0.0 if equal else 1.0, 0.0, equal)
        outputs = [ns[ours.spec.func](*args) for ns, args in ((a, mine), (b, theirs))]
        new, old = (value if isinstance(value, tuple) else (value,) for value in outputs)
        names = ours.spec.tuple_names or ("out",)
        for name, o, r in zip(names, new, old, strict=True):
            yield compare_output(ours.spec.name, shape, name, r, o)


def changed_facts(ours: SpecFile, other: SpecFile) -> list[str]:
    """Fields that should carry over and do not, as sentences. Shape lists are reported entry by entry."""
    found = [
        f"{name}: {getattr(other.spec, name)!r} became {getattr(ours.spec, name)!r}"
        for name in FACTS
        if getattr(ours.spec, name) != getattr(other.spec, name)
    ]
    for name in TABLES:
        new, old = getattr(ours.spec, name), getattr(other.spec, name)
        if len(new) != len(old):
            found.append(f"{name}: {len(old)} shapes became {len(new)}")
        found += [f"{name}: {p} became {q}" for p, q in zip(old, new, strict=False) if p != q]
    for name, shapes in ((n, getattr(ours.spec, n)) for n in TABLES):
        for shape in shapes:
            counts = [file.formulas().call("canonical_work", *shape) for file in (ours, other)]
            if counts[0] != counts[1]:
                found.append(f"{name}: canonical_work{shape} was {counts[1]}, is {counts[0]}")
    return found


def main() -> int:
    """Print the table; 1 on a breach, 2 when there is nothing to compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("other", type=Path, help="directory with the other specs")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one task name")
    options = parser.parse_args()
    others = {file.spec.name: file for file in map(load_spec, sorted(options.other.glob("*.py")))}
    failed = compared = 0
    print(f"{'task':32} {'shape':34} {'output':10} {'dtype':9} {'E':>9} {'ulp':>6}  verdict")
    for file in map(load_spec, sorted((ROOT / "specs").glob("*.py"))):
        name = file.spec.name
        if name not in others or options.only not in (None, name):
            continue
        for fact in changed_facts(file, others[name]):
            print(f"{name}: {fact}", file=sys.stderr)
        for row in compare_specs(file, others[name], options.device, options.seed):
            compared, failed = compared + 1, failed + (not row.passed)
            shape = "x".join(map(str, row.shape))
            verdict = "ok" if row.passed else "DIFFERS"
            print(f"{row.task:32} {shape:34} {row.output:10} {row.kind:9} {row.error:9.2e} {row.ulp:6.2f}  {verdict}")
    print(f"{compared} comparisons, {failed} differ", file=sys.stderr)
    return 2 if not compared else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
