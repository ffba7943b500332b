"""Our solutions and their peers, side by side on the GPU at hand.

    python bench/peers/install.py                       # once: the peers that come as wheels, into build/peers
    python bench/peers                                  # five tasks, graded shapes
    python bench/peers based-forward --shapes measure --json peers-measure.json

One process a run, one set of inputs a shape, and contestants called in turn, A B B A, with the L2 flushed before each
call. The grader's comparison judges the first and the last output of everyone but the yardsticks, which compute
something else. A peer that cannot be had is reported and the others run. Exit status 1 if a solution or a shape failed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import workbench
from workbench import ROOT, SHAPES, Task

from peers import table
from peers.contest import Call, Contestant, EventClock, Problem, contest, describe
from peers.record import Run, ShapeRecord, dumps
from taskfactory.grader.ceilings import limit_ms, measure_ceilings
from taskfactory.grader.environment import environment

SITE = ROOT / "build" / "peers"
PACKAGES = ("fla-core", "sglang-kernel")


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if not torch.cuda.is_available():
        print("bench/peers needs a CUDA device", file=sys.stderr)
        return 3
    specs = workbench.spec_paths()
    names = [name.replace("_", "-") for name in options.tasks] or list(specs)
    if unknown := [name for name in names if name not in specs]:
        print(f"no such task: {', '.join(unknown)}; there are {', '.join(specs)}", file=sys.stderr)
        return 2
    sys.path.append(str(options.site.resolve()))
    began = time.monotonic()
    run = begin(sys.argv[1:] if argv is None else argv, options)
    clock = EventClock()
    for name in names:
        for record in _records(name, specs[name], options, run.ceilings):
            run.shapes.append(record)
            try:
                if time.monotonic() - began > options.deadline:
                    record.failure = f"not run: {options.deadline:.0f} s were over"
                elif not record.failure:
                    task = workbench.load_task(name, specs[name])
                    shape = tuple(record.shape)
                    problem = Problem(task, shape, task.inputs(shape))
                    limits = {"rounds": options.rounds, "budget_ms": options.budget_ms}
                    record.entries = contest(problem, contestants(task), clock, **limits)
            except Exception as error:  # the other shapes shall still run
                traceback.print_exc()
                record.failure = describe(error)
            problem = None
            print(table.shape_lines(record), flush=True)
            run.duration_s = round(time.monotonic() - began, 1)
            if options.json:  # after every shape, so that an interrupted run leaves what it has
                options.json.write_text(dumps(run), "utf-8")
            _empty_cache()
    print(table.summary(run))
    return 1 if any(failed(record) for record in run.shapes) else 0


def contestants(task: Task) -> list[Contestant]:
    """Our solution, and what the module of the same name in this folder puts beside it."""
    ours = Contestant("ours", "solution", task.solution.relative_to(ROOT).as_posix(), _solution)
    if not (Path(__file__).parent / f"{task.solution.stem}.py").is_file():
        return [ours]
    return [ours, *importlib.import_module(f"peers.{task.solution.stem}").CONTESTANTS]


def _solution(problem: Problem) -> Call:
    task = problem.task
    function = getattr(workbench.load_solution(task.solution), task.fields["func"])
    return lambda: function(*problem.args)


def failed(record: ShapeRecord) -> bool:
    """Whether a shape has no verified time of our own solution."""
    return bool(record.failure) or record.solution() is None


def _records(name: str, path: Path, options: argparse.Namespace, ceilings: dict[str, float]) -> list[ShapeRecord]:
    """A task's shapes without entries; a record that says why where a shape or the task cannot be had."""
    records: list[ShapeRecord] = []
    try:
        task = workbench.load_task(name, path)
        kinds = [("given", options.shape)] if options.shape else [(k, task.fields[SHAPES[k]]) for k in options.shapes]
    except Exception as error:
        traceback.print_exc()
        return [ShapeRecord(name, "", [], "", 0.0, None, None, failure=describe(error))]
    for kind, shapes in kinds:
        for shape in shapes[: options.first]:
            try:
                records.append(empty_record(task, kind, tuple(shape), ceilings))
            except Exception as error:
                failure = describe(error)
                records.append(ShapeRecord(name, kind, list(shape), task.unit, 0.0, None, None, failure=failure))
    return records


def empty_record(task: Task, kind: str, shape: tuple[int, ...], ceilings: dict[str, float]) -> ShapeRecord:
    """What follows from a shape alone."""
    floor = task.floor(shape)
    limit = limit_ms(*floor, ceilings) if floor else None
    return ShapeRecord(task.name, kind, list(shape), task.unit, task.work(shape), list(floor) if floor else None, limit)


def begin(argv: Sequence[str], options: argparse.Namespace) -> Run:
    """What is known before the first call: device, versions, commit, ceilings."""
    versions: dict[str, str | None] = {name: _version(name) for name in PACKAGES}
    versions["cudnn"] = str(torch.backends.cudnn.version())
    method = {
        "clock": "CUDA events around single calls",
        "flush_bytes": workbench.FLUSH_BYTES,
        "order": "A B B A",
        "rounds": options.rounds,
        "budget_ms": options.budget_ms,
        "seed": workbench.SEED,
    }
    command = shlex.join(["python", "bench/peers", *_reproducible(argv)])
    found: dict[str, Any] = environment("cuda")
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = Run(started, options.commit or _commit(), command, found, versions, measure_ceilings(), method)
    ceilings = ", ".join(f"{name} {value:.0f}" for name, value in run.ceilings.items())
    print(f"{found['device']}, driver {found.get('driver')}, torch {found['torch']}, commit {run.commit}; {ceilings}")
    return run


def _reproducible(argv: Sequence[str]) -> list[str]:
    """The arguments without those that only say where things lie on one machine."""
    kept, skip = [], False
    for argument in argv:
        name, given, _ = argument.partition("=")
        if skip or name in ("--json", "--site", "--commit"):
            skip = not skip and not given
        else:
            kept.append(argument)
    return kept


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """HEAD, with a mark if tracked files differ from it; "unknown" outside a checkout."""
    try:
        git = ["git", "-C", str(ROOT)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        state = subprocess.run([*git, "status", "--porcelain", "-uno"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + (" with changes" if state.stdout.strip() else "")


def _empty_cache() -> None:
    try:
        torch.cuda.empty_cache()
    except RuntimeError:  # a broken context has been reported where it broke
        traceback.print_exc()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", help="task names (default: every spec in specs/)")
    parser.add_argument("--shapes", choices=SHAPES, nargs="+", default=["graded"])
    parser.add_argument("--shape", action="append", type=workbench.shape_of, metavar="A,B,..", help="your own shapes")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N shapes of a kind")
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of each contestant (default: 20)")
    parser.add_argument("--budget-ms", type=float, default=2000.0, help="fewer rounds where they would take longer")
    parser.add_argument("--deadline", type=float, default=220.0, metavar="S", help="start no shape later than this")
    parser.add_argument("--site", type=Path, default=SITE, help="where install.py put the peers")
    parser.add_argument("--commit", help="commit to record where this is no checkout")
    parser.add_argument("--json", type=Path, help="write the record here, after every shape")
    return parser
