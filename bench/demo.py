"""Grade our solutions from their built bundles, print one table, and write the report: what `make demo` shows.

    python bench/demo.py [BUNDLE_FOLDER]      the folder `taskfactory build` wrote, build by default

With CUDA devices the graded shapes are timed, one grading a device. Without one every correct shape and case is
verified on the CPU, in Triton's interpreter, as many tasks at once as there are cores, and nothing is timed.

It is what an evaluator does with many submissions: a manifest, `taskfactory run` into a store, `taskfactory report`.
Manifest, store and report lie beside the bundles; a second demo adds to the store. Our own solutions are trusted, so a
machine that cannot confine them is no obstacle; the table says what confinement was observed. The path of the report
comes last, and a terminal with a browser opens it. Exits with 0 if all passed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

from taskfactory.grader.supervisor import resolve_device
from taskfactory.store.store import Store, open_store

HEAD = ("task", "status", "calls verified", "worst E", "tol", "score", "of limit", "confinement")
WHO = "ours"


def facts(bundle: Path) -> dict[str, Any]:
    """The bundle's hidden task.json."""
    found: dict[str, Any] = json.loads((bundle / "tests" / "task.json").read_text("utf-8"))
    return found


def taskfactory(*arguments: object) -> int:
    """Run one command of ours, visibly; its exit code."""
    print("taskfactory", *arguments, file=sys.stderr, flush=True)
    return subprocess.run([sys.executable, "-m", "taskfactory", *map(str, arguments)], check=False).returncode


def write_manifest(bundles: list[Path], path: Path) -> None:
    """One line for each bundle and its own solution."""
    rows = [
        {"task": str(b.resolve()), "submission": str((b / "solution" / facts(b)["module"]).resolve()), "who": WHO}
        for b in bundles
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def row(result: dict[str, Any], tol: float) -> list[str]:
    """A result as cells of the table."""
    errors = [float(error) for shape in result["shapes"] for error in shape["errors"].values()]
    worst = f"{max(errors):.2g}" if errors else ""
    score = f"{result['score']:.1f} {result['metric']}" if result["timed"] else "not timed"
    limit = f"{result['reward']:.3f}" if result["timed"] else ""
    tier = result["confinement"].get("tier", "")
    calls = str(result["calls_verified"])
    return [result["task"], result["status"], calls, worst, f"{tol:g}", score, limit, tier]


def table(rows: list[list[str]]) -> str:
    """Aligned text with a heading."""
    cells = [list(HEAD), *rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(HEAD))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def newest(store: Store) -> list[dict[str, Any]]:
    """The last record of every job of the newest run, in the order of the manifest."""
    run = store.run("last")
    last = {result.job_id: json.loads(result.record) for result in store.results([run.id])}
    return [last[job.id] for job in store.jobs(run.id) if job.id in last]


def show(page: Path) -> None:
    """Open the report where a person would see it, and print its path."""
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(page.resolve().as_uri())
    print(f"\nreport: {page}")


def main() -> int:
    """Grade every bundle that has a solution."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="?", type=Path, default=Path("build"), metavar="BUNDLE_FOLDER")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    arguments = parser.parse_args()
    folder = arguments.bundles
    if not sys.platform.startswith("linux"):
        print("grading needs Linux; the bundles are built all the same", file=sys.stderr)
        return 3
    bundles = sorted(path.parent for path in folder.glob("*/solution"))
    if not bundles:
        print(f"{folder}: no bundle with a solution; run `taskfactory build` first", file=sys.stderr)
        return 2
    device = resolve_device(arguments.device)
    where = "CUDA, timed" if device == "cuda" else "the CPU (Triton's interpreter), not timed"
    print(f"grading {len(bundles)} solutions on {where}", file=sys.stderr, flush=True)
    write_manifest(bundles, folder / "demo.jsonl")
    url = folder / "demo.db"
    ran = taskfactory("run", folder / "demo.jsonl", "--store", url, "--device", device, "--allow-unconfined")
    if ran == 2 or not url.is_file():
        return ran
    store = open_store(str(url))
    results = newest(store)
    store.close()
    tolerances = {found["name"]: float(found["tol"]) for found in map(facts, bundles)}
    print(table([row(result, tolerances[result["task"]]) for result in results]))
    for result in results:
        if result["message"]:
            print(f"{result['task']}: {result['message']}", file=sys.stderr)
    title = "Our solutions"  # private: whoever built the bundles has their graded shapes
    if taskfactory("report", "--store", url, "--out", folder / "report", "--private", "--title", title) == 0:
        show(folder / "report" / "index.html")
    passed = len(results) == len(bundles) and all(result["status"] == "passed" for result in results)
    return 0 if passed else max(ran, 1)


if __name__ == "__main__":
    sys.exit(main())
