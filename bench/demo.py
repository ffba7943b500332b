"""Grade our solutions from their built bundles and print one table: what `make demo` shows.

    python bench/demo.py [BUNDLE_FOLDER]      the folder `taskfactory build` wrote, build by default

With a CUDA device the graded shapes are timed, one task after the other. Without one every correct shape and case is
verified on the CPU, in Triton's interpreter, as many tasks at once as there are cores, and nothing is timed. Each
grading is one `taskfactory grade`; it is printed when it ends, on stderr. Our own solutions are trusted, so a machine
that cannot confine them is no obstacle; the table says what confinement was observed. Exits with 0 if all passed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from taskfactory.grader.supervisor import resolve_device

HEAD = ("task", "status", "calls verified", "worst E", "tol", "score", "of limit", "confinement")


def grade(bundle: Path, device: str) -> dict[str, Any]:
    """One `taskfactory grade` on a bundle's own solution; its JSON result."""
    facts = json.loads((bundle / "tests" / "task.json").read_text("utf-8"))
    submission = bundle / "solution" / facts["module"]
    command = [sys.executable, "-m", "taskfactory", "grade", str(bundle), str(submission)]
    command += ["--device", device, "--allow-unconfined", "--json"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    shown = f"taskfactory grade {bundle} {submission}"
    print(f"{shown}: {result['status']} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    if result["message"]:
        print(f"  {result['message']}", file=sys.stderr)
    return {**result, "tol": facts["tol"]}


def row(result: dict[str, Any]) -> list[str]:
    """A result as cells of the table."""
    errors = [float(error) for shape in result["shapes"] for error in shape["errors"].values()]
    worst = f"{max(errors):.2g}" if errors else ""
    score = f"{result['score']:.1f} {result['metric']}" if result["timed"] else "not timed"
    limit = f"{result['reward']:.3f}" if result["timed"] else ""
    tier = result["confinement"]["tier"]
    calls = str(result["calls_verified"])
    return [result["task"], result["status"], calls, worst, f"{result['tol']:g}", score, limit, tier]


def table(rows: list[list[str]]) -> str:
    """Aligned text with a heading."""
    cells = [list(HEAD), *rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(HEAD))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def main() -> int:
    """Grade every bundle that has a solution."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="?", type=Path, default=Path("build"), metavar="BUNDLE_FOLDER")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    arguments = parser.parse_args()
    if not sys.platform.startswith("linux"):
        print("grading needs Linux; the bundles are built all the same", file=sys.stderr)
        return 3
    bundles = sorted(path.parent for path in arguments.bundles.glob("*/solution"))
    if not bundles:
        print(f"{arguments.bundles}: no bundle with a solution; run `taskfactory build` first", file=sys.stderr)
        return 2
    device = resolve_device(arguments.device)
    at_once = 1 if device == "cuda" else min(len(bundles), os.cpu_count() or 1)
    where = "the CUDA device, timed" if device == "cuda" else "the CPU (Triton's interpreter), not timed"
    print(f"grading {len(bundles)} solutions on {where}, {at_once} at a time", file=sys.stderr, flush=True)
    with ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(lambda bundle: grade(bundle, device), bundles))
    print(table([row(result) for result in results]))
    return 0 if all(result["status"] == "passed" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
