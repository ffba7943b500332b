"""The A/A study: the same solutions graded again and again; how far do their scores spread?

    python bench/repeat.py --json FILE [--times 10] [--task NAME ...] [--stop-after SECONDS] [--plot FOLDER]

Every round grades each task once, in an order drawn anew, so that a slow phase of the machine meets all tasks alike.
FILE is written after every grading, and a later call goes on from it; it refuses one of another commit, device or
driver, since such figures are not merged. With `--stop-after` no grading starts after so many seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from taskfactory.fleet.leases import first_gpu
from taskfactory.grader.result import Result, dumps, write_atomically
from taskfactory.grader.supervisor import resolve_device
from taskfactory.grading import grade_submission, load, task_directory
from taskfactory.paths import task_names
from taskfactory.redteam.submission import honest_source

ROOT = Path(__file__).resolve().parents[1]
COMPILING = ("verifying", "warming up")
"""Steps in which a submission compiles and tunes."""
SAME = ("device", "driver", "torch", "triton", "python", "cuda")
"""What has to be the same in all gradings of one study."""


class Steps:
    """How long each step of a grading took, by what it says of its progress."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._step, self._since = "starting", time.monotonic()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Progress, as the grader reports it."""
        now = time.monotonic()
        self._seconds[self._step] = self._seconds.get(self._step, 0.0) + now - self._since
        self._step, self._since = step, now

    def close(self) -> dict[str, float]:
        """Seconds by step, the last one included."""
        self("ended", 0, 1)
        return {step: round(seconds, 2) for step, seconds in self._seconds.items()}


def grade(task: str, device: str, calls: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Grade a task's own solution once; what the study keeps of it, and the environment."""
    steps = Steps()
    with task_directory(task) as directory, tempfile.TemporaryDirectory(prefix="taskfactory-") as folder:
        facts = load(directory)
        submission = Path(folder, facts.module)
        submission.write_text(honest_source(facts, Path(task) if Path(task).is_dir() else None, None), "utf-8")
        started = time.monotonic()
        result, _ = grade_submission(directory, submission, "grade", device, steps, calls=calls)
        return kept(facts.name, result, steps.close(), time.monotonic() - started), result.environment


def kept(task: str, result: Result, steps: dict[str, float], wall_s: float) -> dict[str, Any]:
    """One grading's figures, raw ones included; graded shapes are named by ordinal."""
    shapes = [
        {
            "ordinal": shape.ordinal, "score_ms": shape.score_ms, "metric": shape.metric, "c_ms": shape.c_ms,
            "c_next_ms": shape.c_next_ms, "delta_ms": shape.delta_ms, "limit_ms": shape.limit_ms,
            "wall_ms": [round(ms, 5) for ms in shape.wall_ms], "claim_ms": [round(ms, 5) for ms in shape.claim_ms],
        }
        for shape in result.shapes
        if shape.kind == "graded"
    ]  # fmt: skip
    return {
        "task": task, "status": result.status.value, "message": result.message, "started_at": result.started_at,
        "score": result.score, "unit": result.metric, "reward": result.reward, "ceilings": result.ceilings,
        "tier": result.confinement.get("tier"), "repeated": bool(result.clock.get("repeated")),
        "warnings": result.warnings, "wall_s": round(wall_s, 2), "steps_s": steps, "shapes": shapes,
    }  # fmt: skip


def cv(values: Sequence[float | None]) -> float | None:
    """Coefficient of variation: standard deviation (n - 1) over the mean; None below two values."""
    found = [value for value in values if value is not None]
    return statistics.stdev(found) / statistics.mean(found) if len(found) > 1 else None


def summary(gradings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the table shows, by task: scores, their spread over all and per graded shape, and median seconds."""
    found: dict[str, Any] = {}
    for task in sorted({grading["task"] for grading in gradings}):
        mine = [grading for grading in gradings if grading["task"] == task]
        ordinals = sorted({shape["ordinal"] for grading in mine for shape in grading["shapes"]})
        shapes = [shape for grading in mine for shape in grading["shapes"]]
        of_shape = {ordinal: [s for s in shapes if s["ordinal"] == ordinal] for ordinal in ordinals}
        deltas = {
            ordinal: [s["delta_ms"] / s["score_ms"] for s in each if s["delta_ms"] is not None and s["score_ms"]]
            for ordinal, each in of_shape.items()
        }
        compiling = [sum(grading["steps_s"].get(step, 0.0) for step in COMPILING) for grading in mine]
        found[task] = {
            "gradings": len(mine), "passed": sum(grading["status"] == "passed" for grading in mine),
            "scores": [grading["score"] for grading in mine], "unit": mine[0]["unit"],
            "cv": cv([grading["score"] for grading in mine]),
            "shape_cv": {str(n): cv([s["score_ms"] for s in each]) for n, each in of_shape.items()},
            "delta_share": {str(n): statistics.median(shares) if shares else None for n, shares in deltas.items()},
            "wall_s": statistics.median(grading["wall_s"] for grading in mine),
            "compiling_s": statistics.median(compiling),
        }  # fmt: skip
    return found


def table(tasks: dict[str, Any]) -> str:
    """The summary as text, and the sums over all tasks."""
    lines = [f"{'task':34} passed      CV  worst shape  delta at most   wall s  compiling s"]
    for task, found in tasks.items():
        shapes, deltas = ([v for v in found[key].values() if v is not None] for key in ("shape_cv", "delta_share"))
        worst = f"{_percent(max(shapes, default=None)):>12} {_percent(max(deltas, default=None)):>14}"
        passed = f"{found['passed']}/{found['gradings']}"
        lines.append(
            f"{task:34} {passed:>6} {_percent(found['cv'])} {worst} {found['wall_s']:8.1f} {found['compiling_s']:12.1f}"
        )
    wall_s, compiling_s = (sum(found[key] for found in tasks.values()) for key in ("wall_s", "compiling_s"))
    lines.append(f"{'all, once each':34} {'':6} {'':7} {'':12} {'':14} {wall_s:8.1f} {compiling_s:12.1f}")
    lines.append(f"without verifying and warming up, where compiling is: {wall_s - compiling_s:.1f} s")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "      -" if share is None else f"{share:7.2%}"


def resumed(path: Path, tree: str, device: str) -> dict[str, Any]:
    """An earlier call's record, or an empty one.

    Raises:
        SystemExit: it is of another commit or kind of device.
    """
    if not path.exists():
        return {"kind": "repeat", "commit": tree, "on": device, "environment": {}, "gradings": [], "tasks": {}}
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if (record.get("kind"), record.get("commit"), record.get("on")) != ("repeat", tree, device):
        theirs = f"commit {record.get('commit')!r} on {record.get('on')!r}"
        raise SystemExit(f"{path}: of {theirs}, this is {tree!r} on {device!r}; name another file")
    return record


def next_task(tasks: Sequence[str], gradings: Sequence[dict[str, Any]], times: int) -> str | None:
    """One of the tasks graded least often so far, drawn at random; None when all have been graded `times` times."""
    counts = {task: sum(grading["task"] == Path(task).name for grading in gradings) for task in tasks}
    least = min(counts.values())
    if least >= times:
        return None
    return random.SystemRandom().choice([task for task in tasks if counts[task] == least])


def commit() -> str:
    """The commit of this tree, with a `+` if it differs; empty outside of git."""
    asked = [["git", "rev-parse", "--short", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no"]]
    answers = [subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False) for words in asked]
    return answers[0].stdout.strip() + ("+" if answers[1].stdout.strip() else "") if not answers[0].returncode else ""


def main() -> int:
    """Grade until all is done or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--task", action="append", help="only these: names, or folders of built bundles")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--calls", type=int, help="timed calls per shape [default: as in a grading]")
    parser.add_argument("--commit", default=commit(), help="of this tree, where git cannot tell")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw repeat.svg there")
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    tasks = arguments.task or task_names()
    record = resumed(arguments.json, arguments.commit, device)
    began = time.monotonic()
    while time.monotonic() - began < arguments.stop_after:
        task = next_task(tasks, record["gradings"], arguments.times)
        if task is None:
            break
        with first_gpu(True, lambda text: print(text, file=sys.stderr)) if device == "cuda" else nullcontext():
            grading, environment = grade(task, device, arguments.calls)
        known = record["environment"] or environment
        if environment and [known.get(key) for key in SAME] != [environment.get(key) for key in SAME]:
            raise SystemExit(f"{arguments.json}: of another machine; name another file")
        record["environment"] = known
        record["gradings"].append(grading)
        record["tasks"] = summary(record["gradings"])
        write_atomically(arguments.json, dumps(record))
        print(f"{grading['task']}: {grading['status']} {grading['score']} in {grading['wall_s']} s", file=sys.stderr)
    print(table(record["tasks"]))
    if arguments.plot:
        import plots

        plots.draw_repeat(record, arguments.plot)
    done = next_task(tasks, record["gradings"], arguments.times) is None
    return 0 if done and all(grading["status"] == "passed" for grading in record["gradings"]) else 1


if __name__ == "__main__":
    sys.exit(main())
