"""DRAM traffic of our solutions beside the bytes that the specs count, from the GPU's counters (needs ncu).

    python bench/dram.py                                  # five tasks, the first graded shape
    python bench/dram.py based-forward --shapes measure --number 2
    python bench/dram.py --json dram.json

For each task a small process of its own calls the solution once to compile it, fills the L2 with other data that it
has only read, and calls it again between two marks; ncu reads counters of the kernels between the marks only, one after
the other, at the clock as it is and without emptying caches between them. What a kernel leaves in the L2 is written
after the marks and not counted, so up to one L2 of a result may be missing from the written bytes.

Columns: bytes that the spec counts (canonical work of a GB/s task, else the floor's), bytes read, bytes written, their
sum by the counted bytes, kernels. Exit code 1 if a task failed, 3 if ncu is missing or may not read counters.
"""

from __future__ import annotations

import argparse
import csv
import glob
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
"""Where ncu is looked for besides the search path."""
FORBIDDEN = "ERR_NVGPUCTRPERM"
"""What ncu says where counters are kept from ordinary users."""
SHAPES = ("graded", "measure", "quick", "correct")
MARK = "dram.py: "
LIMIT_S = 240
_BYTES = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}
"""Units of ncu; its prefixes are decimal."""


class Unreadable(Exception):
    """The output of ncu holds no counters that can be understood."""


@dataclass(frozen=True)
class Kernel:
    """One launch."""

    name: str
    read_bytes: float
    write_bytes: float


@dataclass
class Row:
    """One task."""

    task: str
    shapes: str = ""
    number: int = 0
    metric: str = ""
    counted_bytes: float = 0.0
    floor_bytes: float | None = None
    kernels: list[Kernel] = field(default_factory=list)
    failure: str = ""

    @property
    def read_bytes(self) -> float:
        return sum(kernel.read_bytes for kernel in self.kernels)

    @property
    def write_bytes(self) -> float:
        return sum(kernel.write_bytes for kernel in self.kernels)

    def as_dict(self) -> dict[str, Any]:
        """The row for a JSON file, sums included."""
        total = self.read_bytes + self.write_bytes
        sums = {"read_bytes": self.read_bytes, "write_bytes": self.write_bytes}
        return asdict(self) | sums | {"of_counted": total / self.counted_bytes if self.counted_bytes else None}


def find_ncu() -> str | None:
    """The ncu to use; None if there is none."""
    return shutil.which("ncu") or next((path for place in PLACES for path in sorted(glob.glob(place))[::-1]), None)


def parse(text: str) -> list[Kernel]:
    """The launches in what ncu writes with `--csv --page raw`.

    A header names the columns, the line below it their units, and each further line is a launch. What ncu or the
    program say before the header is left out, as is what ncu says in between.

    Raises:
        Unreadable: no header, no counters, or a unit that is none of bytes.
    """
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise Unreadable("there is no table in the output of ncu")
    table = [row for row in csv.reader(line for line in lines[first:] if not line.startswith("==")) if row]
    header = table[0]
    missing = [name for name in ("Kernel Name", READ, WRITE) if name not in header]
    if missing:
        raise Unreadable(f"the table of ncu lacks {', '.join(missing)}")
    if len(table) < 2:
        raise Unreadable("the table of ncu has no units")
    scale = {}
    for name in (READ, WRITE):
        unit = table[1][header.index(name)]
        if unit not in _BYTES:
            raise Unreadable(f"{name} is given in {unit!r}, not in bytes")
        scale[name] = _BYTES[unit]
    kernels = []
    for row in table[2:]:
        if len(row) != len(header):
            raise Unreadable(f"a line of ncu has {len(row)} columns, not {len(header)}")
        read, write = (_number(row[header.index(name)]) * scale[name] for name in (READ, WRITE))
        kernels.append(Kernel(row[header.index("Kernel Name")], read, write))
    return kernels


def _number(text: str) -> float:
    """A figure, with or without separators of thousands.

    Raises:
        Unreadable: it is none, such as the `n/a` of a counter that this GPU lacks.
    """
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise Unreadable(f"ncu has {text!r} in place of a number") from None


def command(ncu: str, log: Path, driver: Sequence[str]) -> list[str]:
    """The command line that profiles a driver."""
    return [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--metrics", f"{READ},{WRITE}", "--clock-control",
        "none", "--cache-control", "none", "--target-processes", "all", "--profile-from-start", "off", "--log-file",
        str(log), *driver,
    ]  # fmt: skip


def measure(ncu: str, task: str, shapes: str, number: int) -> Row:
    """Profile one task."""
    row = Row(task, shapes, number)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        driver = [sys.executable, str(Path(__file__).resolve()), task, "--drive", "--shapes", shapes]
        try:
            ended = subprocess.run(
                command(ncu, log, [*driver, "--number", str(number)]), capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            row.failure = f"not done after {LIMIT_S} s"
            return row
        written = log.read_text("utf-8", "replace") if log.is_file() else ""
    said = written + ended.stdout + ended.stderr
    told = next((line for line in ended.stdout.splitlines() if line.startswith(MARK)), "")
    if FORBIDDEN in said:
        row.failure = (
            f"{FORBIDDEN}: counters are kept from this user (the driver's NVreg_RestrictProfilingToAdminUsers)"
        )
        return row
    if not told:
        last = [line for line in (ended.stderr or said).splitlines() if line.strip()][-1:]
        row.failure = f"the solution did not run ({ended.returncode}): {last[0] if last else 'no output'}"
        return row
    facts = json.loads(told.removeprefix(MARK))
    row.metric, row.counted_bytes, row.floor_bytes = facts["metric"], facts["counted_bytes"], facts["floor_bytes"]
    try:
        row.kernels = parse(written)
    except Unreadable as error:
        row.failure = str(error)
    if not row.kernels and not row.failure:
        row.failure = "no kernel ran between the marks"
    return row


def drive(name: str, shapes: str, number: int) -> None:
    """In the process that ncu watches: one call of a solution between the marks."""
    import torch
    from workbench import FLUSH_BYTES, load_solution, load_task, spec_paths
    from workbench import SHAPES as FIELDS

    task = load_task(name, spec_paths()[name])
    shape = tuple(task.fields[FIELDS[shapes]][number - 1])
    function = getattr(load_solution(task.solution), task.fields["func"])
    args = task.inputs(shape)
    junk = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    function(*args)
    torch.cuda.synchronize()
    junk.sum()  # read and not written: lines to be written back would be counted as the solution's
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    result = function(*args)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    del result
    floor = task.floor(shape)
    counted = task.work(shape) if task.unit == "GB/s" else floor[0] if floor else 0.0
    facts = {"metric": task.unit, "counted_bytes": counted, "floor_bytes": floor[0] if floor else None}
    print(MARK + json.dumps(facts), flush=True)


def line(row: Row) -> str:
    """One line of the table."""
    if row.failure:
        return f"{row.task[:34]:34} {row.failure}"
    total = row.read_bytes + row.write_bytes
    figures = (row.counted_bytes, row.read_bytes, row.write_bytes)
    ratio = f"{total / row.counted_bytes:8.3f}" if row.counted_bytes else "       -"
    return (
        f"{row.task[:34]:34} " + " ".join(f"{value / 1e9:9.4f}" for value in figures) + f" {ratio} {len(row.kernels):7}"
    )


def header() -> str:
    """The line above the table; gigabytes are decimal."""
    return f"{'task':34} {'counted':>9} {'read':>9} {'written':>9} {'/ count':>8} kernels   (GB)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="task names (default: every spec in specs/)")
    parser.add_argument("--shapes", choices=SHAPES, default="graded")
    parser.add_argument("--number", type=int, default=1, help="which of these shapes, from 1")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(options.tasks[0], options.shapes, options.number)
        return 0
    ncu = find_ncu()
    if ncu is None:
        print("bench/dram.py needs ncu (Nsight Compute), which is neither on the search path nor beside CUDA: "
              "nothing was measured", file=sys.stderr)  # fmt: skip
        return 3
    known = [
        path.stem.replace("_", "-") for path in sorted((Path(__file__).resolve().parents[1] / "specs").glob("*.py"))
    ]
    unknown = [task for task in options.tasks if task.replace("_", "-") not in known]
    if unknown:
        print(f"no such task: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    version = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout.strip().splitlines()
    print(header())
    rows = []
    for task in options.tasks or known:
        rows.append(measure(ncu, task.replace("_", "-"), options.shapes, options.number))
        print(line(rows[-1]), flush=True)
        if FORBIDDEN in rows[-1].failure:
            break
    if options.json:
        report = {"ncu": version[-1] if version else "", "rows": [row.as_dict() for row in rows]}
        options.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    if any(FORBIDDEN in row.failure for row in rows):
        return 3
    return 1 if any(row.failure for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
