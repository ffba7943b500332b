"""Measure the grader's clock on this device: T - c against CUDA events for trusted work of known duration.

    python bench/clock.py [TASK] [--launches 3] [--json FILE]

Every row is one kind of work in one launch of a trusted worker, at the first measure shape of the task.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from taskfactory.grader.result import Status, dumps, write_atomically
from taskfactory.grader.supervisor import study_clock
from taskfactory.grading import task_directory


def main() -> int:
    """Run the study and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="cache-hit-skip-gate")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with task_directory(arguments.task) as directory:
        result = study_clock(directory, arguments.device, launches=arguments.launches)
    if result.status is not Status.PASSED:
        print(result.message, file=sys.stderr)
        return 3
    print("launch      c ms  work             event ms  T - c ms  bias ms   ratio  half-width ms")
    for number, launch in enumerate(result.clock["launches"], 1):
        for probe in launch["probes"]:
            work = f"{probe['kind']} {probe['amount']}x{probe['repeat']}"
            times = f"{probe['claim_ms']:8.4f} {probe['wall_minus_c_ms']:9.4f} {probe['bias_ms']:+8.4f}"
            spread = f"{probe['ratio']:7.4f} {probe['half_width_ms']:9.4f}"
            print(f"{number:6} {launch['c_ms']:9.4f}  {work:24.24} {times} {spread}")
    for kind in result.clock["around"]:
        between = {"full": "the reference", "small": "a small reference", "none": "nothing"}[kind["reference"]]
        times = f"c {kind['c_ms']:.4f} ms, half-width {kind['half_width_ms']:.4f} ms, {kind['call_ms']:.1f} ms a call"
        print(f"with {between} between trusted calls: {times}")
    print(f"drift of c between launches: {result.clock['c_drift_ms']:.4f} ms")
    if arguments.json:
        write_atomically(arguments.json, dumps(result.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
