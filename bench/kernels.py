"""Verify and time our solutions on the GPU at hand, quickly: a workbench for kernel authors, not the grader.

    python bench/kernels.py                                        # five tasks, graded shapes
    python bench/kernels.py cache-hit-skip-gate --shapes measure
    python bench/kernels.py --shapes correct --cases
    python bench/kernels.py cache-hit-skip-gate --set TILE=8192 --set WARPS=8
    python bench/kernels.py cache-hit-skip-gate --sweep "TILE=4096,8192;WARPS=4,8" --first 1
    python bench/kernels.py based-forward --solution trial.py --json results.json

Each solution runs in this process, on one set of inputs a shape. Its first and its last output are compared with the
reference by the grader's comparison; in between, events time single calls with the L2 flushed before each, and the
median counts. A task that fails prints its traceback and the next one runs. Exit code 1 if anything failed.

Columns: metric in the task's unit; its ratio to the measured copy (or bf16 matmul) ceiling; the fraction of the limit
that the spec's floor sets at those ceilings; E, the worst relative error; the first call's seconds with compilation.
Needs torch and triton only.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from workbench import SEED, SHAPES, Flusher, Task, judge, load_solution, load_task, shape_of, spec_paths, time_calls

from taskfactory.grader.ceilings import limit_ms, measure_ceilings
from taskfactory.grader.sources import case_functions


@dataclass
class Row:
    """One line of the table."""

    task: str
    shape: tuple[int, ...]
    setting: dict[str, Any] = field(default_factory=dict)
    unit: str = ""
    value: float = 0.0
    median_ms: float = 0.0
    best_ms: float = 0.0
    of_ceiling: float = 0.0
    of_limit: float | None = None
    error: float = 0.0
    first_s: float = 0.0
    failure: str = ""


def verify_cases(task: Task, shape: tuple[int, ...], path: Path) -> Iterator[Row]:
    """One untimed row a case of this shape."""
    for case, make in case_functions(task.space).items():
        args = make(*shape, SEED)
        if args is None:
            continue
        row = Row(task.name, shape, {"case": case}, task.unit)
        try:
            actual = getattr(load_solution(path, {}), task.fields["func"])(*args)
            row.failure, row.error = judge(task, task.reference(args), task.regions(args), actual)
        except Exception as exception:
            traceback.print_exc()
            row.failure = f"{type(exception).__name__}: {str(exception)[:200]}"
        yield row


def measure(
    task: Task,
    shape: tuple[int, ...],
    settings: list[dict[str, Any]],
    path: Path,
    repeats: int,
    flush: Flusher,
    ceilings: dict[str, float],
) -> Iterator[Row]:
    """One row a setting, on one set of inputs."""
    args = task.inputs(shape)
    expected, regions = task.reference(args), task.regions(args)
    for setting in settings:
        row = Row(task.name, shape, setting, task.unit)
        try:
            function = getattr(load_solution(path, setting), task.fields["func"])
            torch.cuda.synchronize()
            began = time.perf_counter()
            first = function(*args)
            torch.cuda.synchronize()
            row.first_s = time.perf_counter() - began
            row.failure, row.error = judge(task, expected, regions, first)
            first = None
            call = partial(function, *args)
            time_calls(call, flush, 3)
            times, last = time_calls(call, flush, repeats)
            failure, error = judge(task, expected, regions, last)
            last = None
            row.failure, row.error = row.failure or failure, max(row.error, error)
            row.median_ms, row.best_ms = statistics.median(times), min(times)
            row.value = task.rate(task.work(shape), row.median_ms)
            row.of_ceiling = row.value / ceilings["copy_gbps" if task.unit == "GB/s" else "matmul_tflops"]
            if floor := task.floor(shape):
                row.of_limit = limit_ms(*floor, ceilings) / row.median_ms
        except Exception as exception:  # the other settings shall still run
            traceback.print_exc()
            row.failure = f"{type(exception).__name__}: {str(exception)[:200]}"
        yield row


def parse_value(text: str) -> Any:
    """A Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parse_settings(fixed: list[str], sweep: str) -> list[dict[str, Any]]:
    """`--set` pairs and the product of `--sweep` lists."""
    base = {name: parse_value(value) for name, value in (pair.split("=", 1) for pair in fixed)}
    axes = [axis.split("=", 1) for axis in sweep.split(";") if axis]
    values = [[(name, parse_value(v)) for v in choices.split(",")] for name, choices in axes]
    return [base | dict(choice) for choice in itertools.product(*values)]


def line(row: Row) -> str:
    """One line of the table."""
    setting = " ".join(f"{name}={value}" for name, value in row.setting.items())
    shape = ",".join(map(str, row.shape))
    limit = f"{row.of_limit:6.3f}" if row.of_limit is not None else "     -"
    return (
        f"{row.task[:36]:36} {shape:34} {row.value:8.1f} {row.unit:7} {row.median_ms:8.3f} ms {row.best_ms:8.3f}"
        f" {row.of_ceiling:6.3f} {limit} {row.error:9.2e} {row.first_s:6.1f} s  {row.failure or 'ok'}  {setting}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="task names (default: every spec in specs/)")
    parser.add_argument("--shapes", choices=SHAPES, default="graded")
    parser.add_argument("--shape", action="append", type=shape_of, metavar="A,B,..", help="a shape of your own")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N shapes")
    parser.add_argument("--solution", type=Path, help="time this file instead of the one in solutions/")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="replace a module constant")
    parser.add_argument("--sweep", default="", metavar="A=1,2;B=3,4", help="run every combination of these constants")
    parser.add_argument("--cases", action="store_true", help="verify the spec's cases instead, on --shapes; no timing")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the rows and ceilings here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench/kernels.py needs a CUDA device", file=sys.stderr)
        return 3
    specs = spec_paths()
    unknown = [task for task in options.tasks if task.replace("_", "-") not in specs]
    if unknown:
        print(f"no such task: {', '.join(unknown)}; there are {', '.join(specs)}", file=sys.stderr)
        return 2
    settings = parse_settings(options.set, options.sweep)
    ceilings = measure_ceilings()
    flush = Flusher()
    print(f"{torch.cuda.get_device_name()}: " + ", ".join(f"{k} {v:.0f}" for k, v in ceilings.items()))
    print(f"{'task':36} {'shape':34} {'metric':>16} {'median':>11} {'best':>8} ceil   limit  E         first")
    rows: list[Row] = []
    for task in options.tasks or specs:
        name = task.replace("_", "-")
        try:
            spec = load_task(name, specs[name])
            shapes = options.shape or spec.fields[SHAPES[options.shapes]][: options.first]
            path = options.solution or spec.solution
        except Exception as exception:
            traceback.print_exc()
            rows.append(Row(name, (), failure=f"{type(exception).__name__}: {exception}"))
            continue
        for shape in shapes:
            try:
                found = measure(spec, shape, settings, path, options.repeats, flush, ceilings)
                for row in verify_cases(spec, shape, path) if options.cases else found:
                    rows.append(row)
                    print(line(row), flush=True)
            except Exception as exception:  # inputs or reference failed
                traceback.print_exc()
                rows.append(Row(name, shape, failure=f"{type(exception).__name__}: {exception}"))
                print(line(rows[-1]), flush=True)
            torch.cuda.empty_cache()
    if options.json:
        report = {"device": torch.cuda.get_device_name(), "ceilings": ceilings, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(report, indent=1), "utf-8")
    failed = [row for row in rows if row.failure]
    if failed:
        print(f"\n{len(failed)} of {len(rows)} rows failed:")
        for row in failed:
            print(f"  {row.task} {row.shape} {row.setting}: {row.failure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
