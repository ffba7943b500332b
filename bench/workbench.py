"""What the scripts of this folder share: tasks read from their specs, solutions, the L2 flush, timing, verification.

A GPU machine often has torch and triton only, so a spec's literals are read here without pydantic. What verifies and
what measures the ceilings is the grader's own code; what times is not (`docs/grading.md` has the grader's clock).
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "tools") not in sys.path:
    sys.path.insert(0, str(ROOT / "tools"))

import torch  # noqa: E402

from taskfactory.grader.compare import Gates, as_tuple, build_regions, compare_outputs  # noqa: E402
from taskfactory.grader.sources import Part, load_namespace  # noqa: E402

SHAPES = {
    "graded": "grader_shapes",
    "measure": "measure_shapes",
    "quick": "measure_quick_shapes",
    "correct": "correct_shapes",
}
SOURCES = (
    "reference_imports",
    "flops_src",
    "reference_src",
    "make_inputs_src",
    "timed_src",
    "cases_src",
    "regions_src",
    "derived_src",
    "floor_src",
)
FLUSH_BYTES = 512 << 20
SEED = 7


@dataclass(frozen=True)
class Task:
    """A spec's fields, and its embedded sources executed."""

    name: str
    fields: dict[str, Any]
    space: dict[str, Any]

    def inputs(self, shape: tuple[int, ...]) -> tuple:
        """A shape's inputs, always of the same seed: those of a timed call, mixed where the spec mixes them."""
        return tuple(self.space.get("mix", self.space["_mk"])(*shape, SEED))

    def reference(self, args: tuple) -> tuple:
        return as_tuple(self.space[self.fields["func"]](*args))

    def regions(self, args: tuple) -> Any:
        return build_regions(self.space["regions"](*args), self.outputs) if "regions" in self.space else ()

    def work(self, shape: tuple[int, ...]) -> float:
        """Canonical work of a call: bytes or FLOPs."""
        return float(self.space["canonical_work"](*shape))

    def floor(self, shape: tuple[int, ...]) -> tuple[float, float] | None:
        """(bytes, FLOPs) that no implementation avoids, or None where the spec has no floor."""
        if "floor" not in self.space:
            return None
        nbytes, flops = self.space["floor"](*shape)
        return float(nbytes), float(flops)

    def rate(self, work: float, time_ms: float) -> float:
        """`work` done in `time_ms`, in the task's unit: GB/s or TFLOP/s."""
        return work / time_ms / (1e6 if self.unit == "GB/s" else 1e9)

    @property
    def unit(self) -> str:
        return str(self.fields["metric"])

    @property
    def solution(self) -> Path:
        return ROOT / "solutions" / self.fields["module"]

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.fields.get("tuple_names") or ("out",))

    @property
    def gates(self) -> Gates:
        fields = self.fields
        return Gates(fields["tol"], fields.get("tile_kappa", 4.0), fields.get("tile_epsilon", 0.1))


def spec_paths() -> dict[str, Path]:
    """Every task's name and the file of its spec."""
    return {path.stem.replace("_", "-"): path for path in sorted((ROOT / "specs").glob("*.py"))}


def load_task(name: str, path: Path, device: str = "cuda") -> Task:
    """Read the literals of `SPEC = TaskSpec(...)` and execute the sources among them."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            keywords = {k.arg: k.value for k in node.value.keywords if k.arg}
            fields = {key: ast.literal_eval(value) for key, value in keywords.items()}
            parts = [Part(fields[s], str(path), keywords[s].lineno) for s in SOURCES if fields.get(s)]
            return Task(name, fields, load_namespace(parts, device))
    raise ValueError(f"{path} has no SPEC = TaskSpec(...)")


def load_solution(path: Path, setting: dict[str, Any] | None = None) -> Any:
    """The solution's module, freshly executed, with the constants of `setting` replaced."""
    module_spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    for name, value in (setting or {}).items():
        if not hasattr(module, name):
            raise SystemExit(f"{path} has no constant {name}")
        setattr(module, name, value)
    return module


class Flusher:
    """Overwrites more memory than the L2 holds. Its time also hides the launch of what follows."""

    def __init__(self) -> None:
        self.junk = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def __call__(self) -> None:
        self.junk.zero_()


def timed(call: Callable[[], Any], flush: Flusher) -> tuple[Any, tuple[Any, Any]]:
    """The result of one call behind a flush, and the events around it; nothing is waited for."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush()
    start.record()
    result = call()
    end.record()
    return result, (start, end)


def time_calls(call: Callable[[], Any], flush: Flusher, repeats: int) -> tuple[list[float], Any]:
    """Milliseconds of `repeats` calls by events, and the last call's result."""
    pairs, result = [], None
    for _ in range(repeats):
        result = None  # so that the allocator can reuse the storage
        result, pair = timed(call, flush)
        pairs.append(pair)
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs], result


def judge(task: Task, expected: tuple, regions: Any, actual: Any) -> tuple[str, float]:
    """(failure or "", worst relative error)."""
    actual = as_tuple(actual)
    if len(actual) != len(expected):
        return f"{len(actual)} outputs, expected {len(expected)}", 0.0
    reports = compare_outputs(expected, actual, task.outputs, task.gates, task.fields.get("output_dtypes"), regions)
    return next((r.message for r in reports if r.failure), ""), max(r.error for r in reports)


def shape_of(text: str) -> tuple[int, ...]:
    """`1,2,3` -> (1, 2, 3)."""
    return tuple(int(part) for part in text.split(","))
