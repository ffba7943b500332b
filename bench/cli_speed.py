"""How fast the command is: start-up, static validation, and building many specs.

    python bench/cli_speed.py                  everything, in a few minutes
    python bench/cli_speed.py --count 0        start-up and validation only
    python bench/cli_speed.py --json           the same as data

Targets, on two cores: `--help` under 0.2 s, static validation of the five specs under 1 s, building 1,000 specs under
60 s with a cost linear in their number and flat peak memory, building them again unchanged under 3 s. Times are wall
clock of a fresh process, from fork to exit; memory is the peak resident set of that process. Exits with 1 if a target
is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {"help_s": 0.2, "validate_five_s": 1.0, "build_s": 60.0, "rebuild_s": 3.0}


@dataclass(frozen=True)
class Run:
    """One process: seconds of wall clock, seconds of CPU, and peak resident MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run(*arguments: str, cwd: Path = ROOT) -> Run:
    """Run the command once, quietly; anything but success ends the benchmark."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tools"), "NO_COLOR": "1"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "taskfactory", *arguments],
        cwd=cwd,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"taskfactory {' '.join(arguments)} exited with {process.returncode}")
    return Run(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def write_specs(folder: Path, count: int) -> None:
    """`count` distinct valid specs: ours in turn, each under a name, a title and shapes of its own."""
    folder.mkdir(parents=True)
    originals = sorted((ROOT / "specs").glob("*.py"))
    for number in range(count):
        original = originals[number % len(originals)]
        task = original.stem.replace("_", "-")
        name = f"{task}-{number:04}"
        text = original.read_text("utf-8")
        for pattern, new in [
            (rf'name="{task}"', f'name="{name}"'),
            (r'\btitle="', f'title="No. {number}: '),
            # One more correct shape: the first again, with a first size unlike any other.
            (
                r"\bcorrect_shapes=([\[(])\s*\((\d+),([^)]*)\)",
                rf"correct_shapes=\g<1>({1000 + number},\g<3>), (\g<2>,\g<3>)",
            ),
        ]:
            text, times = re.subn(pattern, new, text)
            if times != 1:
                raise SystemExit(f"{original.name}: {pattern} matches {times} times")
        (folder / f"{name.replace('-', '_')}.py").write_text(text, "utf-8")


def measure(count: int, repeats: int) -> dict[str, object]:
    """All figures."""
    helps = [run("--help") for _ in range(repeats)]
    validations = [run("validate", "specs") for _ in range(repeats)]
    result: dict[str, object] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "help_s": statistics.median(r.wall_s for r in helps),
        "validate_five_s": statistics.median(r.wall_s for r in validations),
        "validate_five_peak_mib": max(r.peak_mib for r in validations),
    }
    steps = [step for step in (count // 4, count // 2, count) if step]
    builds = []
    for step in steps:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            write_specs(folder / "specs", step)
            first = run("build", cwd=folder)
            again = run("build", cwd=folder)
            builds.append({"specs": step, "build": asdict(first), "rebuild": asdict(again)})
    result["builds"] = builds
    if builds:
        result["build_s"], result["rebuild_s"] = first.wall_s, again.wall_s
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="specs to build (default 1000)")
    parser.add_argument("--repeats", type=int, default=7, help="repetitions of the short commands (default 7)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    result = measure(options.count, options.repeats)
    missed = [key for key, limit in TARGETS.items() if isinstance(s := result.get(key), float) and s > limit]
    if options.json:
        print(json.dumps({**result, "targets": TARGETS, "missed": missed}, indent=2))
    else:
        for key, value in result.items():
            if key != "builds":
                limit = f"  (target {TARGETS[key]:g})" if key in TARGETS else ""
                print(f"{key:24} {f'{value:.3f}' if isinstance(value, float) else value}{limit}")
        for row in result["builds"]:  # type: ignore[attr-defined]
            built, again = row["build"], row["rebuild"]
            each_ms = 1e3 * built["wall_s"] / row["specs"]
            print(
                f"build {row['specs']:5} specs  {built['wall_s']:7.2f} s  {each_ms:5.1f} ms each"
                f"  peak {built['peak_mib']:4.0f} MiB,  again {again['wall_s']:5.2f} s"
            )
        print(f"missed: {', '.join(missed)}" if missed else "all targets met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
