"""The sections "work" and "graded_shapes" of a certificate: what was examined and timed, beside what the formulas say.

Nothing of a spec runs here. Whatever cannot be had is named in "gaps"; no failure here costs the other figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskfactory.calibrate.certificate import work_digest
from taskfactory.calibrate.examine import BUDGET_GB
from taskfactory.calibrate.gradings import NOMINAL, Clock
from taskfactory.calibrate.quality import large_shapes, spearman
from taskfactory.checks.watch import Limits, run_child
from taskfactory.errors import FormulaError, InfrastructureError
from taskfactory.load import SpecFile
from taskfactory.paths import solutions_dir

DELTA_MS = 0.01
"""What the grader's clock is expected to leave open where no grading has said."""
L2_BYTES = 60 * 10**6
"""Of an H200, where the device at hand is none."""
CEILINGS = {"copy_gbps": 4180.0, "matmul_tflops": 750.0}
"""What an H200 reaches, where the device at hand is none."""
TIMING_S = 18.0
"""What the stopwatch may take for one task, besides starting."""
_LIMITS = Limits(step_s=120.0, total_s=600.0)
_RESTARTS = 8
_FORMULAS = ("reference_flops", "touched_bytes")
Progress = Callable[[str], None]


@dataclass
class Examined:
    """What the children said."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    device: dict[str, Any] = field(default_factory=dict)
    times: dict[tuple[str, int], float] = field(default_factory=dict)
    """(implementation, place among measure and graded shapes) -> milliseconds."""
    time_gaps: dict[tuple[str, int], str] = field(default_factory=dict)


def examine(
    file: SpecFile,
    *,
    device: str = "cpu",
    timing_s: float = TIMING_S,
    memory_share: float = 1.0,
    memory: bool = True,
    progress: Progress | None = None,
) -> Examined:
    """Run a spec without storage, and on a GPU time its implementations.

    Args:
        file: a spec without errors in its static checks.
        device: "cpu" or "cuda".
        timing_s: seconds for the stopwatch on a GPU.
        memory_share: share of the GPU's memory that may be used.
        memory: whether to estimate what graded shapes need.
        progress: called with what is being done.

    Raises:
        InfrastructureError: children cannot be started here.
    """
    found = Examined()
    _look(file, found, memory, progress or (lambda _: None))
    if device == "cuda":
        _time(file, found, timing_s, memory_share, progress or (lambda _: None))
    return found


def _job(file: SpecFile, device: str) -> dict[str, Any]:
    spec = file.spec.as_dict()
    return {"path": str(file.path), "spec": spec, "lines": dict(file.lines), "text": file.text, "device": device}


def _look(file: SpecFile, found: Examined, memory: bool, progress: Progress) -> None:
    doing = "starting"

    def hear(message: dict[str, Any]) -> bool:
        nonlocal doing
        if "row" in message:
            found.rows.append(dict(message["row"]))
        elif "memory" in message:
            found.memory = list(message["memory"])
        elif "failed" in message:
            found.gaps.append(f"the sources fail: {str(message['failed'])[:160]}")
        elif "doing" in message:
            doing = str(message["doing"])
            progress(f"{file.spec.name}: {doing}")
        return "done" in message

    ending = run_child(_job(file, "cpu") | {"memory": memory}, _LIMITS, hear, entry="taskfactory.calibrate.examine")
    if ending.kind not in ("finished", "left"):
        if ending.kind == "exit" and doing == "starting":
            raise InfrastructureError(f"{file.spec.name}: cannot be examined: {ending.printed.strip()[-300:]}")
        found.gaps.append(f"the process ended ({ending.kind}) during {doing}")


def _time(file: SpecFile, found: Examined, timing_s: float, memory_share: float, progress: Progress) -> None:
    spec = file.spec
    solution = solutions_dir() / spec.module
    doing: tuple[str, int] = ("", -1)

    def hear(message: dict[str, Any]) -> bool:
        nonlocal doing
        if "time" in message:
            name, place, ms = message["time"]
            found.times[str(name), int(place)] = float(ms)
        elif "gap" in message:
            name, place, why = message["gap"]
            found.time_gaps[str(name), int(place)] = str(why)
        elif "device" in message:
            found.device = dict(message["device"])
        elif "failed" in message:
            found.gaps.append(f"timing: the sources fail: {str(message['failed'])[:160]}")
        elif "doing" in message:
            doing = (str(message["doing"][0]), int(message["doing"][1]))
            progress(f"{spec.name}: timing {doing[0]}, shape {doing[1] + 1}")
        return "done" in message

    job = _job(file, "cuda") | {"shapes": [list(shape) for _, shape in large_shapes(file.spec)]}
    job |= {"solution": str(solution) if solution.is_file() else "", "budget_s": timing_s, "memory_share": memory_share}
    for _ in range(_RESTARTS):
        done = [*found.times, *found.time_gaps]
        doing = ("", -1)
        ending = run_child(job | {"known": done}, _LIMITS, hear, entry="taskfactory.calibrate.timing")
        if ending.kind in ("finished", "left"):
            return
        if not doing[0]:
            tail = ending.printed.strip().split("\n")[-1][:160]
            found.gaps.append(f"timing: the process ended before the first call ({ending.kind}: {tail})")
            return
        found.time_gaps[doing] = f"its process ended ({ending.kind})"
    found.gaps.append(f"timing: given up after {_RESTARTS} processes")


def work_section(file: SpecFile, found: Examined) -> dict[str, Any]:
    """Measured work of every shape beside what the formulas say."""
    formulas, rows = file.formulas(), []
    gaps = list(found.gaps)
    for row in found.rows:
        shape = tuple(row["shape"])
        entry = {key: value for key, value in row.items() if key != "gaps"}
        entry["canonical"] = formulas.call("canonical_work", *shape)
        entry["floor"] = list(formulas.call("floor", *shape)) if formulas.defines("floor") else None
        for name in _FORMULAS:
            if formulas.defines(name):
                entry[name] = _number(formulas, name, shape)
        rows.append(entry)
        gaps += [f"{shape}: {gap}" for gap in row["gaps"] if not gap.startswith("touched")]
    underived = [row for row in found.rows if any(gap.startswith("touched") for gap in row["gaps"])]
    if underived:
        gaps.append("an output has no derivative, so every entry of the inputs counts as touched")
    return {"digest": work_digest(file.spec), "metric": file.spec.metric, "rows": rows, "gaps": gaps}


def _number(formulas: Any, name: str, shape: tuple[int, ...]) -> float | None:
    """A formula's value; None where it has none, which the verdict tells."""
    try:
        value = formulas.call(name, *shape)
    except FormulaError:
        return None
    good = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return (value if isinstance(value, int) else round(float(value), 1)) if good else None


def shapes_section(file: SpecFile, found: Examined, *, clock: Clock | None = None) -> dict[str, Any]:
    """Length, size and memory of graded shapes, and how measured and graded scores compare.

    Args:
        file: the spec.
        found: what was examined and timed.
        clock: deltas of a grading; the nominal one everywhere if None.
    """
    formulas = file.formulas()
    ceilings = {name: round(value, 1) for name, value in found.device.get("ceilings", CEILINGS).items()}
    sizes = {tuple(row["shape"]): row for row in found.rows}
    memory = {entry["graded"]: entry for entry in found.memory}
    rows: list[dict[str, Any]] = []
    for kind, shapes in (("graded", file.spec.grader_shapes), ("measure", file.spec.measure_shapes)):
        for number, shape in enumerate(shapes, 1):
            row: dict[str, Any] = {"kind": kind, "number": number, "shape": list(shape)}
            row |= limit(formulas, shape, ceilings)
            if shape in sizes and "outputs" in sizes[shape]:
                row["working_set"] = sizes[shape]["inputs"] + sizes[shape]["outputs"]
            if kind == "graded":
                row["delta_ms"] = DELTA_MS if clock is None else clock.deltas_ms[number - 1]
            if kind == "graded" and number in memory:
                row |= {"memory_gb": memory[number]["total_gb"], "memory_method": memory[number]["method"]}
            rows.append(row)
    section: dict[str, Any] = {
        "digest": work_digest(file.spec),
        "delta_from": NOMINAL if clock is None else clock.source,
        "l2_bytes": found.device.get("l2_bytes", L2_BYTES),
        "ceilings": ceilings,
        "budget_gb": BUDGET_GB,
        "rows": rows,
        "gaps": [gap for gap in found.gaps if gap.startswith("timing")],
    }
    return section | _scores(file, found, section["gaps"]) if found.device else section


def limit(formulas: Any, shape: tuple[int, ...], ceilings: Mapping[str, float]) -> dict[str, Any]:
    """`limit_ms`, milliseconds of the floor at the ceilings, and `bound`, which of the two bounds it."""
    if not formulas.defines("floor"):
        return {"limit_ms": None, "bound": ""}
    nbytes, flops = formulas.call("floor", *shape)
    byte_ms, flop_ms = nbytes / ceilings["copy_gbps"] / 1e6, flops / ceilings["matmul_tflops"] / 1e9
    return {"limit_ms": float(f"{max(byte_ms, flop_ms):.4g}"), "bound": "bytes" if byte_ms >= flop_ms else "FLOPs"}


def _scores(file: SpecFile, found: Examined, gaps: list[str]) -> dict[str, Any]:
    """Geometric means of the metric over graded and over measure shapes, and the correlation of their ranks.

    An implementation counts if it was timed at some shape of both kinds. Where one lacks shapes, all are compared on
    those it has, so that a mean is never over other shapes than its neighbour's.
    """
    shapes = large_shapes(file.spec)
    names = list(dict.fromkeys(name for name, _ in [*found.times, *found.time_gaps]))
    for (name, place), why in found.time_gaps.items():
        gaps.append(f"{name} was not timed at {shapes[place][1]}: {why}")
    unit = 1e6 if file.spec.metric == "GB/s" else 1e9
    work = {shape: file.formulas().call("canonical_work", *shape) for _, shape in shapes}
    has = {name: {place for n, place in found.times if n == name} for name in names}
    counted = [n for n in names if {shapes[place][0] for place in has[n]} == {"graded", "measure"}]
    shared = set.intersection(*(has[name] for name in counted)) if counted else set()
    kinds = {shapes[place][0] for place in shared}
    scores: dict[str, dict[str, float]] = {}
    for name in counted if kinds == {"graded", "measure"} else []:
        scores[name] = {}
        for kind in ("graded", "measure"):
            rates = [work[shapes[p][1]] / unit / found.times[name, p] for p in sorted(shared) if shapes[p][0] == kind]
            scores[name][kind] = float(f"{_geometric_mean(rates):.4g}")
    ranks = spearman([(entry["graded"], entry["measure"]) for entry in scores.values()])
    if ranks is None:
        gaps.append(f"no rank correlation: {len(scores)} implementations were timed at shapes of both kinds")
    times: dict[str, list[list[Any]]] = {name: [] for name in names}
    for (name, place), ms in found.times.items():
        times[name].append([shapes[place][0], list(shapes[place][1]), float(f"{ms:.4g}")])
    section: dict[str, Any] = {"times_ms": times, "scores": scores, "scored_shapes": len(shared)}
    return section | {"rank_correlation": None if ranks is None else round(ranks, 3)}


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
