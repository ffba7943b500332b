"""Figures of the two-GPU study: every grading with its times, speed-up, and how far a busy neighbour shifts what."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taskfactory.grader.result import geometric_mean
from taskfactory.store.store import Store


def raw(store: Store, phases: dict[str, Any], uuids: list[str], log: Path) -> list[dict[str, Any]]:
    """Every grading: phase, GPU, begin and end, share of it in which the other GPU graded too, and all its times."""
    spans = {line["source"]: line for line in map(json.loads, log.read_text().splitlines())}
    zero = min(span["begin"] for span in spans.values())
    rows = []
    for name, phase in phases.items():
        for result in store.results(phase["runs"]):
            span, record = spans.get(result.source_sha256), json.loads(result.record)
            if span is None:  # refused as shared, or its worker died
                continue
            others = [s for s in spans.values() if s["gpu"] != span["gpu"]]
            both = sum(max(0.0, min(span["end"], s["end"]) - max(span["begin"], s["begin"])) for s in others)
            shapes = [
                {key: _rounded(shape[key]) for key in SHAPE_FIELDS} for shape in record["shapes"] if shape["wall_ms"]
            ]
            rows.append(
                {
                    "phase": name, "gpu": uuids.index(span["gpu"]), "begin_s": round(span["begin"] - zero, 3),
                    "end_s": round(span["end"] - zero, 3),
                    "neighbour_busy": round(both / (span["end"] - span["begin"]), 3),
                    "status": result.status, "message": record["message"], "score": score_of(shapes),
                    "duration_s": round(result.duration_s, 3), "ceilings": record["ceilings"], "clock": record["clock"],
                    "tier": result.tier, "conditions": result.conditions, "shapes": shapes,
                }
            )  # fmt: skip
    return rows


SHAPE_FIELDS = (
    "ordinal", "score_ms", "delta_ms", "c_ms", "c_next_ms", "bounded", "metric", "claim_ms", "wall_ms",
)  # fmt: skip


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [round(entry, 5) for entry in value]
    return round(value, 5) if isinstance(value, float) else value


def score_of(shapes: Sequence[dict[str, Any]]) -> float | None:
    """What the score is or would be: also where the clock's noise kept the grader from giving one."""
    metrics = [shape["metric"] for shape in shapes if shape["metric"]]
    return geometric_mean(metrics) if metrics else None


def shared_gpu(rows: Sequence[dict[str, Any]]) -> int:
    """How many pairs of gradings overlapped in time on one GPU; the locks promise none."""
    count = 0
    for gpu in (0, 1):
        own = sorted((row["begin_s"], row["end_s"]) for row in rows if row["gpu"] == gpu)
        count += sum(later[0] < earlier[1] for earlier, later in itertools.pairwise(own))
    return count


def pace_s(rows: Sequence[dict[str, Any]], phase: str) -> float | None:
    """Median seconds from the begin of a grading to that of the next on the same GPU, in one phase."""
    steps = []
    for gpu in (0, 1):
        begins = sorted(row["begin_s"] for row in rows if row["gpu"] == gpu and row["phase"] == phase)
        steps += [later - earlier for earlier, later in itertools.pairwise(begins)]
    return statistics.median(steps) if steps else None


def shift(alone: Sequence[float], busy: Sequence[float], draws: int = 4000) -> dict[str, Any]:
    """Ratio of the medians, busy over alone, with a 95 % bootstrap interval, and both spreads."""
    dice = random.Random(1)
    ratios = sorted(
        statistics.median(dice.choices(busy, k=len(busy))) / statistics.median(dice.choices(alone, k=len(alone)))
        for _ in range(draws)
    )
    return {
        "alone": statistics.median(alone), "busy": statistics.median(busy), "n": [len(alone), len(busy)],
        "ratio": statistics.median(busy) / statistics.median(alone),
        "interval": [ratios[int(0.025 * draws)], ratios[int(0.975 * draws) - 1]],
        "spread_alone": spread(alone), "spread_busy": spread(busy),
    }  # fmt: skip


def spread(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 for a single value."""
    return statistics.stdev(values) / statistics.mean(values) if len(values) > 1 else 0.0


def summary(rows: Sequence[dict[str, Any]], phases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Speed-up and shifts. A grading counts as busy if the other GPU graded for nine tenths of it, and as alone if
    for less than one hundredth."""
    alone_s = [pace for gpu in (0, 1) if (pace := pace_s(rows, f"alone, GPU {gpu}")) is not None]
    both_s = pace_s(rows, "both")
    both = phases["both"]
    rate = {name: phase["gradings"] / phase["seconds"] for name, phase in phases.items()}
    one = statistics.mean(rate[f"alone, GPU {gpu}"] for gpu in (0, 1))
    shifts: dict[str, Any] = {}
    for gpu in (0, 1):
        alone = [
            row for row in rows if row["gpu"] == gpu and row["phase"] != "two runs" and row["neighbour_busy"] < 0.01
        ]
        busy = [row for row in rows if row["gpu"] == gpu and row["phase"] == "both" and row["neighbour_busy"] > 0.9]
        for name, figure in FIGURES.items():
            sides = [[value for row in side if (value := figure(row)) is not None] for side in (alone, busy)]
            if all(sides):
                shifts[f"GPU {gpu}, {name}"] = shift(*sides)
    steady = 2 * statistics.mean(alone_s) / both_s if alone_s and both_s else None
    return {
        "phases": {name: {**phase, "a_minute": 60 * rate[name]} for name, phase in phases.items()},
        "speed_up": rate["both"] / one, "speed_up_without_start": steady,
        "pace_s": {"alone": alone_s, "both": both_s}, "gradings_on_both": both["gradings"],
        "shared_a_gpu": shared_gpu(rows), "shifts": shifts, "statuses": Counter(row["status"] for row in rows),
    }  # fmt: skip


def _of_shape(ordinal: int, name: str) -> Any:
    def figure(row: dict[str, Any]) -> float | None:
        found = [shape for shape in row["shapes"] if shape["ordinal"] == ordinal]
        value = found[0][name] if found else None
        return statistics.median(value) if isinstance(value, list) else value

    return figure


FIGURES: dict[str, Any] = {
    "score": lambda row: row["score"],
    "duration": lambda row: row["duration_s"],
    "copy ceiling": lambda row: row["ceilings"].get("copy_gbps"),
    "matmul ceiling": lambda row: row["ceilings"].get("matmul_tflops"),
    **{
        f"shape {k} {name}": _of_shape(k, name) for k in (1, 2) for name in ("score_ms", "claim_ms", "delta_ms", "c_ms")
    },
}


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [f"{'phase':<14}{'GPUs':>5}{'gradings':>10}{'seconds':>9}{'a minute':>10}"]
    for name, phase in figures["phases"].items():
        row = f"{name:<14}{phase['gpus']:>5}{phase['gradings']:>10}{phase['seconds']:>9.1f}{phase['a_minute']:>10.2f}"
        lines.append(row)
    steady = figures["speed_up_without_start"]
    lines.append(
        f"speed-up {figures['speed_up']:.2f}{f', {steady:.2f} without the start of the workers' if steady else ''}; "
        f"gradings that shared a GPU: {figures['shared_a_gpu'] + figures['refused_as_shared']}"
    )
    lines.append(f"{'':<24}{'alone':>10}{'busy':>10}{'ratio':>8}  {'interval':<16}{'spread':<16}{'n':<8}")
    for name, s in figures["shifts"].items():
        interval = f"{s['interval'][0]:.4f}-{s['interval'][1]:.4f}"
        spreads = f"{100 * s['spread_alone']:.2f}%, {100 * s['spread_busy']:.2f}%"
        ends = f"{s['alone']:>10.4g}{s['busy']:>10.4g}{s['ratio']:>8.4f}  {interval:<16}{spreads:<16}"
        lines.append(f"{name:<24}{ends}{s['n'][0]}, {s['n'][1]}")
    return "\n".join(lines)
