"""The clock against an adversary: work of known duration, launched in every way and by workers that lie.

    python bench/adversary.py [--calls 16] [--attack NAME ...] [--json FILE] [--plot FOLDER]

Truth is what CUDA events say of the same work in trusted launches before and after. Untrusted workers then do it under
the launch strategies of `launch_strategies.py`, and wrapped in attacks of the corpus (`tests/exploits/`). For each:

    T         low end of the walls - c, as a grading computes it
    short     how much T is below the truth; must not exceed delta
    accepted  the score time: max(median claim, T - delta)

Exits with 1 if a worker whose every output was right was timed short by more than delta.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from repeat import commit

from taskfactory.fleet.leases import first_gpu
from taskfactory.grader import confine
from taskfactory.grader.clock import Overhead, shape_time
from taskfactory.grader.job import Job
from taskfactory.grader.result import Result, Status, dumps, write_atomically
from taskfactory.grader.supervisor import Supervision, resolve_device
from taskfactory.grading import load
from taskfactory.paths import exploits_dir
from taskfactory.redteam.corpus import load_attack
from taskfactory.redteam.submission import compose, facts_of

ROOT = Path(__file__).resolve().parents[1]
DURATIONS_MS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Aimed at; the true ones are measured."""
NOMINAL_BYTES_PER_S = 4.1e12
WORDS = {"cuda": 12_500_000, "cpu": 1_000}
"""Entries of the int64 input: more than any L2 holds."""
LEVELS = {
    "default stream": (0,), "side stream": (0,), "graph": (0,), "pre-queued": (0,), "polling": (0,), "chunked": (0,),
    "tail": (10, 50, 100, 250, 500),
    "early": (200, 500, 1000, 2000, 4000),
    "liar": (990, 950, 900, 750, 500, 250, 100),
}  # fmt: skip
"""In thousandths: of the work still running at DONE, milliseconds before its end, the share of the time claimed."""
ATTACKS = {
    "start_before_go": False, "chunked_early_start": False, "early_done_running_kernel": False,
    "side_stream_and_no_wait": False, "patched_event": False, "claim_understated": False, "spread_of_walls": True,
    "busy_host_threads": True, "starve_broker": True, "heat_the_device": True, "load_left_behind": True,
}  # fmt: skip
"""Attacks of the corpus, each in a worker of its own; whether a trusted launch follows at once."""
WARM_UPS = 3
TRUSTED_CALLS = 32

REFERENCE = "def work(x, passes, strategy, level):\n    return x + passes\n"
MAKE_INPUTS = """import torch


def canonical_work(words, passes, strategy, level):
    return 16 * words * passes


def _mk(words, passes, strategy, level, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(1 << 60, (words,), device="cuda", generator=gen), passes, strategy, level


def make_inputs(shape, seed):
    return _mk(*shape, seed)
"""
HONEST = """import torch


def work(x, passes, strategy, level):
    y = torch.add(x, 1)
    for _ in range(passes - 1):
        y.add_(1)
    return y
"""


@dataclass(frozen=True)
class Row:
    """What came of one worker at one duration. Times in milliseconds; None where it was not timed."""

    group: str
    strategy: str
    level: float
    """Part still running, milliseconds early, or share claimed; 0 where there is none."""
    passes: int
    truth_ms: float
    status: str
    wrong: int
    """How many of the counted calls returned wrong outputs."""
    calls: int
    c_ms: float | None = None
    t_ms: float | None = None
    delta_ms: float | None = None
    claim_ms: float | None = None
    accepted_ms: float | None = None

    @property
    def held(self) -> bool:
        """Whether it failed, or was not timed short by more than delta."""
        if self.status != Status.PASSED.value or self.t_ms is None or self.delta_ms is None:
            return True
        return self.t_ms >= self.truth_ms - self.delta_ms


def passes_of(duration_ms: float) -> int:
    """Passes over the input that take a device about so long; a CPU does as many over a small one."""
    return max(1, round(duration_ms / 1e3 * NOMINAL_BYTES_PER_S / (16 * WORDS["cuda"])))


def strategies() -> tuple[str, ...]:
    """The names in `launch_strategies.py`, which only a worker may execute, in its order."""
    for node in ast.parse((ROOT / "bench" / "launch_strategies.py").read_text("utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "STRATEGIES"
        ):
            return tuple(ast.literal_eval(node.value))
    raise AssertionError("launch_strategies.py names no STRATEGIES")


def shapes(device: str) -> Iterator[tuple[int, int, int, int]]:
    """(words, passes, strategy, level) of every cell; the first of each duration is the default stream's."""
    words = WORDS[device]
    for strategy, name in enumerate(strategies()):
        for level in LEVELS[name]:
            for duration_ms in DURATIONS_MS:
                if name != "early" or level / 1000 <= duration_ms:
                    yield words, passes_of(duration_ms), strategy, level


def write_sweep(folder: Path, device: str, calls: int, attacks: dict[str, bool]) -> Path:
    """The task, the submissions and what to run, in a folder; returns the submissions' folder."""
    cells = list(shapes(device))
    task_dir, submissions = folder / "task", folder / "submissions"
    task_dir.mkdir()
    submissions.mkdir()
    (task_dir / "reference.py").write_text(REFERENCE)
    (task_dir / "make_inputs.py").write_text(MAKE_INPUTS)
    facts = {
        "schema": 1, "name": "known-duration", "title": "Work of known duration", "version": "1.0.0",
        "spec_digest": "sha256:0", "module": "work.py", "func": "work",
        "parameters": ["x", "passes", "strategy", "level"], "metric": "GB/s", "compare": "tensor",
        "outputs": [{"name": "y", "dtypes": None}], "tol": 0.0, "tile_kappa": 4.0, "tile_epsilon": 0.1,
        "has_regions": False, "shape_names": ["words", "passes", "strategy", "level"], "cases": [],
        "shapes": {"measure": [list(cell) for cell in cells]},
        "work": {"measure": [16 * words * passes for words, passes, *_ in cells]}, "floor": None,
    }  # fmt: skip
    (task_dir / "task.json").write_text(json.dumps(facts))
    (submissions / "work.py").write_text((ROOT / "bench" / "launch_strategies.py").read_text("utf-8"))
    groups: list[dict[str, Any]] = [
        {"name": "launch strategies", "file": "work.py", "cells": list(range(1, len(cells) + 1)), "after": True}
    ]
    plain = [k + 1 for k, cell in enumerate(cells) if cell[2] == 0]
    task = load(task_dir)
    for name, after in attacks.items():
        attack = load_attack(exploits_dir() / f"{name}.py", control=False)
        text = compose(attack, HONEST, task, facts_of(task, os.getpid(), [], [], "", ""))
        (submissions / f"{name}.py").write_text(text)
        groups.append({"name": name, "file": f"{name}.py", "cells": plain, "after": after})
    groups[-1]["after"] = True
    words = WORDS[device]
    durations = sorted({passes for _, passes, *_ in cells})
    works: list[list[object]] = [["passes", 8 * words, passes] for passes in durations]
    if device == "cuda":  # what a grading's trusted launch measures c with: one copy of about that duration
        works += [["copy", min(8 * words * passes, 8 << 30), 1] for passes in durations]
    asked = {
        "works": works,
        "trusted_calls": TRUSTED_CALLS,
        "calls": calls,
        "warm_ups": WARM_UPS,
        "family": 2,
        "groups": groups,
    }
    (submissions / "sweep.json").write_text(json.dumps(asked))
    return submissions


def measure(device: str, calls: int, attacks: dict[str, bool]) -> Result:
    """Run the sweep; its raw figures are in the result's `clock`."""
    with tempfile.TemporaryDirectory(prefix="taskfactory-") as folder:
        submissions = write_sweep(Path(folder), device, calls, attacks)
        job = Job(
            str(Path(folder, "task")), str(submissions / "work.py"), "", "clock", device, kinds=("measure",),
            first_call_s=120.0, call_s=20.0,
        )  # fmt: skip
        confine.harden_trusted(subreaper=True, no_new_privileges=False)
        scratch = Path(folder, "scratch")
        scratch.mkdir()
        return Supervision(job, scratch, _progress).run()[0]


def _progress(step: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{step} {done + 1}/{total}", end="", file=sys.stderr, flush=True)


# -- what the raw figures mean -----------------------------------------------------------------------------------------


def rows_of(clock: dict[str, Any], device: str) -> list[Row]:
    """One row a cell, in the order in which they were measured."""
    names = strategies()
    rows = []
    for group in clock["groups"]:
        launches = [clock["launches"][group[key]] for key in ("before", "after")]
        for cell in group["cells"]:
            _, passes, strategy, level = cell["shape"]
            works = [_work(launch, "passes", passes) for launch in launches]
            truth_ms = statistics.median([claim for work in works for claim in work["claims_ms"]])
            ours = group["name"] == "launch strategies"
            facts = (
                group["name"], names[strategy] if ours else group["name"], level / 1000 if ours else 0.0, passes,
                truth_ms, cell["status"], len(cell["failed"]), len(cell["walls_ms"]),
            )  # fmt: skip
            rows.append(Row(*facts, **_times(cell, launches, passes, device)))
    return rows


def _work(launch: dict[str, Any], kind: str, passes: int) -> dict[str, Any]:
    """A trusted launch's own work of one duration: the passes themselves, or the copy of as many bytes."""
    kinds = [work for work in launch["works"] if work["kind"] == kind]
    durations = sorted({work["repeat"] for work in launch["works"] if work["kind"] == "passes"})
    found: dict[str, Any] = kinds[durations.index(passes)]
    return found


def _times(cell: dict[str, Any], launches: list[dict[str, Any]], passes: int, device: str) -> dict[str, Any]:
    """What the grader's own estimator makes of a cell."""
    if len(cell["walls_ms"]) < 2:
        return {}
    overheads = [
        Overhead(tuple(copy["walls_ms"]), tuple(copy["claims_ms"]))
        for launch in launches
        for copy in [_work(launch, "copy" if device == "cuda" else "passes", passes)]
    ]
    timed = shape_time(cell["walls_ms"], cell["claims_ms"], overheads)
    return {
        "c_ms": timed.c_ms, "t_ms": timed.wall_bound_ms + timed.delta_ms,
        "delta_ms": timed.delta_ms, "claim_ms": timed.claim_ms, "accepted_ms": timed.score_ms,
    }  # fmt: skip


def plateaus(rows: list[Row]) -> list[dict[str, float]]:
    """For each duration: the least that a liar's claim was lowered to, beside the truth and delta, in ms.

    A plateau is where claiming still less changes nothing: the spread of what is accepted over all claims below it.
    """
    found = []
    for passes in sorted({row.passes for row in rows}):
        liars = [row for row in rows if row.strategy == "liar" and row.passes == passes and row.accepted_ms is not None]
        flat = [row for row in liars if row.claim_ms is not None and row.accepted_ms != row.claim_ms]
        if not liars:
            continue
        accepted = [float(row.accepted_ms or 0.0) for row in flat or liars]
        truth_ms = liars[0].truth_ms
        found.append(
            {
                "passes": passes, "truth_ms": truth_ms, "delta_ms": max(float(row.delta_ms or 0.0) for row in liars),
                "lowest_ms": min(accepted), "highest_ms": max(accepted), "claims_overruled": len(flat),
                "gain": truth_ms / min(accepted) - 1 if min(accepted) > 0 else float("inf"),
            }
        )  # fmt: skip
    return found


def table(rows: list[Row], levels: list[dict[str, float]]) -> str:
    """T over truth for every strategy and duration, then the liars' plateau."""
    durations = sorted({row.passes for row in rows})
    truths = {row.passes: row.truth_ms for row in reversed(rows)}
    lines = [f"{'T / truth':34}" + "".join(f"{truths[p]:>16.3f} ms" for p in durations)]
    seen = dict.fromkeys((row.group, row.strategy, row.level) for row in rows)
    for key in seen:
        cells = {row.passes: row for row in rows if (row.group, row.strategy, row.level) == key}
        _, strategy, level = key
        title = f"{strategy} {level:g}" if level else strategy
        lines.append(f"{title:34}" + "".join(f"{_cell(cells.get(p)):>19}" for p in durations))
    lines.append(f"{'delta / truth':34}" + "".join(f"{_delta(rows, p):>19}" for p in durations))
    lines += ["", "liars      truth ms  accepted at least  at most  delta ms   gain"]
    for level in levels:
        times = f"{level['lowest_ms']:17.4f} {level['highest_ms']:8.4f} {level['delta_ms']:9.4f}"
        lines.append(f"{'':8}{level['truth_ms']:11.4f} {times} {level['gain']:+6.1%}")
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    ratio = "-" if row.t_ms is None or not row.truth_ms else f"{row.t_ms / row.truth_ms:.3f}"
    status = "" if row.status == Status.PASSED.value else f" {row.status[:12]}"
    return f"{ratio}{status}" + ("" if row.held else " SHORT")


def _delta(rows: list[Row], passes: int) -> str:
    deltas = [row.delta_ms / row.truth_ms for row in rows if row.passes == passes and row.delta_ms and row.truth_ms]
    return f"{min(deltas):.3f}-{max(deltas):.3f}" if deltas else "-"


def messages(clock: dict[str, Any]) -> list[str]:
    """Why cells failed, each reason once for each kind of launch or attack."""
    names = strategies()
    found: dict[str, None] = {}
    for group in clock["groups"]:
        for cell in group["cells"]:
            if cell["message"]:
                name = names[cell["shape"][2]] if group["name"] == "launch strategies" else group["name"]
                found[f"{name}: {cell['status']}: {cell['message'].partition(': ')[2] or cell['message']}"] = None
    return list(found)


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--calls", type=int, default=16, help="counted calls a cell")
    parser.add_argument("--attack", action="append", choices=sorted(ATTACKS), help="only these of the corpus")
    parser.add_argument("--commit", default=commit(), help="of this tree, where git cannot tell")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw adversary-*.svg there")
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    started = time.monotonic()
    chosen = {name: after for name, after in ATTACKS.items() if not arguments.attack or name in arguments.attack}
    with first_gpu(True, lambda text: print(text, file=sys.stderr)) if device == "cuda" else nullcontext():
        result = measure(device, arguments.calls, chosen)
    if not result.clock.get("groups"):
        print(f"{result.status.value}: {result.message}", file=sys.stderr)
        return 3
    complete = [group for group in result.clock["groups"] if group["after"] is not None]
    rows = rows_of(result.clock | {"groups": complete}, device)
    levels = plateaus(rows)
    record = {
        "kind": "adversary", "commit": arguments.commit, "environment": result.environment,
        "status": result.status.value, "message": result.message, "tier": result.confinement.get("tier"),
        "started_at": result.started_at,
        "duration_s": round(time.monotonic() - started, 1), "calls": arguments.calls,
        "rows": [asdict(row) | {"held": row.held} for row in rows], "plateaus": levels, "raw": result.clock,
    }  # fmt: skip
    if arguments.json:
        write_atomically(arguments.json, dumps(record))
    print(table(rows, levels))
    if arguments.plot:
        import plots

        plots.draw_adversary(record, arguments.plot)
    if result.status is not Status.PASSED:
        print(f"{result.status.value}: {result.message}", file=sys.stderr)
        return 3
    for text in messages(result.clock):
        print(text, file=sys.stderr)
    short = [row for row in rows if not row.held]
    print(f"\n{len(rows)} cells in {record['duration_s']} s, {len(short)} timed short by more than delta")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
