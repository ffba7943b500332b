"""Render the figures of docs/performance.md and docs/performance.svg from the newest recorded run.

    python bench/performance.py            # write both
    python bench/performance.py --check    # exit status 1 if they are not what the records say

Reads `peers*.json` of the newest folder in bench/results/h200/ that has any, and the `graded-*.json` beside them.
Everything between the two markers of the page is written here; nothing is typed by hand. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.record import Run, ShapeRecord, load
from peers.table import missing
from roofline import draw

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "h200"
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "performance.svg"
BEGIN, END = "<!-- begin: bench/performance.py -->", "<!-- end: bench/performance.py -->"
NOTHING = "No run beside the peers is recorded yet, so there are no figures to show here."
RATIO_OF = {"peer": "best peer", "yardstick": "best yardstick"}


@dataclass(frozen=True)
class Aim:
    """A ratio to the best contestant of a role that a solution is to reach at every graded shape."""

    role: str
    ratio: float


def aim_of(task: str, shape: Sequence[int]) -> Aim | None:
    """What this project set out to reach; Based has one aim for each width of its features."""
    if task == "based-forward":
        return Aim("peer", 14.0 if shape[3] == 16 else 30.0)
    return {
        "cache-hit-skip-gate": Aim("yardstick", 0.94),
        "adaptive-sparsity-threshold": Aim("yardstick", 0.94),
        "deepseek-v32-sparse-mla-decode": Aim("peer", 1.0),
        "conv3d-tiled-decode-blend": Aim("peer", 5.0),
    }.get(task)


@dataclass(frozen=True)
class Results:
    """The newest folder's records."""

    folder: str
    runs: list[Run]
    graded: dict[str, dict[str, Any]]
    """The grader's result of each task."""

    def tasks(self) -> dict[str, list[ShapeRecord]]:
        """Shape records of each task, graded shapes first; of a shape measured twice the later run's."""
        latest: dict[tuple[str, str, tuple[int, ...]], ShapeRecord] = {}
        for run in sorted(self.runs, key=lambda run: run.started_at):
            for record in run.shapes:
                key = (record.task, record.kind, tuple(record.shape))
                if key not in latest or not record.failure:
                    latest[key] = record
        found: dict[str, list[ShapeRecord]] = {}
        for (task, _, _), record in sorted(latest.items(), key=lambda item: (item[0][0], item[0][1] != "graded")):
            found.setdefault(task, []).append(record)
        return found

    def grader_cells(self, record: ShapeRecord) -> tuple[str, str]:
        """Rate and fraction of the limit that the grader gave a shape, or dashes; a grading that failed gives none."""
        result = self.graded.get(record.task, {})
        if result.get("status") != "passed":
            return "–", "–"
        for shape in result.get("shapes", ()):
            if (shape["kind"], shape["shape"]) == (record.kind, record.shape) and shape.get("bounded"):
                return figure(shape["metric"]), figure(shape["fraction_of_limit"], 3)
        return "–", "–"


def newest(results: Path) -> Results | None:
    """The newest dated folder with a record, or None."""
    for folder in sorted((path for path in results.glob("*") if path.is_dir()), reverse=True):
        paths = sorted(folder.glob("peers*.json"))
        if paths:
            graded = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("graded-*.json"))]
            return Results(folder.name, [load(path) for path in paths], {g["task"]: g for g in graded})
    return None


def figure(value: float | None, digits: int = 0) -> str:
    """A number for a table; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def summary_rows(results: Results) -> list[list[str]]:
    """A row a task and aim: geometric mean over graded shapes, the least ratio, and whether the aim holds."""
    rows = []
    for task, records in results.tasks().items():
        groups: dict[Aim | None, list[ShapeRecord]] = {}
        for record in records:
            if record.kind == "graded":
                groups.setdefault(aim_of(task, record.shape), []).append(record)
        for aim, members in groups.items():
            rates = [m.rate(ours) for m in members if (ours := m.solution())]
            complete = len(rates) == len(members)
            mean = math.exp(sum(map(math.log, rates)) / len(rates)) if complete else None
            role = aim.role if aim else "peer"
            ratios = [m.ratio(role) for m in members]
            least = min((r for r in ratios if r is not None), default=None) if None not in ratios else None
            verdict = "not compared" if least is None else "–" if aim is None else "yes" if least >= aim.ratio else "no"
            wanted = f"≥ {aim.ratio:g} × {RATIO_OF[role]}" if aim else "–"
            name = f"`{task}`" + (f", K = {members[0].shape[3]}" if task == "based-forward" else "")
            unit = members[0].unit
            rows.append([name, f"{figure(mean)} {unit}", wanted, _ratios(ratios), verdict])
    return rows


def _ratios(ratios: Sequence[float | None]) -> str:
    known = [r for r in ratios if r is not None]
    return f"{min(known):.3g} to {max(known):.3g}" if known else "–"


def task_lines(results: Results, task: str, records: Sequence[ShapeRecord]) -> list[str]:
    """A section: the command, a row a shape, and who could not be compared."""
    unit = next((r.unit for r in records if r.unit), "")
    header = ["shapes", "shape", "ours", "of limit", "E", "best peer", "rate", "ours ÷ it", "best yardstick", "rate",
              "ours ÷ it", "by the grader", "of limit"]  # fmt: skip
    lines = [f"### {task}", "", f"Rates in {unit}. Again: `python bench/peers {task}`", ""]
    lines += table(header, [_row(results, record) for record in records])
    absent = sorted(missing(records))
    failures = [f"{_shape(r)}: {r.failure}" for r in records if r.failure]
    said = [f"- not compared: {name.partition(': ')[2]}: {why}" for name, why in absent]
    said += [f"- not run: {text}" for text in failures]
    verdict = results.graded.get(task)
    if verdict and verdict["status"] != "passed":
        said.append(f"- no times by the grader: {verdict['status']}: {verdict['message']}")
    return [*lines, "", *said, *([""] if said else [])]


def _row(results: Results, record: ShapeRecord) -> list[str]:
    ours = record.solution()
    cells = [record.kind, _shape(record)]
    if ours is None:
        cells += ["–"] * 3
    else:
        error = "–" if ours.error is None else f"{ours.error:.1e}"
        cells += [figure(record.rate(ours)), figure(record.of_limit(ours), 3), error]
    for role in ("peer", "yardstick"):
        best, ratio = record.best(role), record.ratio(role)
        cells += [best.name, figure(record.rate(best))] if best else ["–", "–"]
        cells.append("–" if ratio is None else f"{ratio:.3g}")
    return [*cells, *results.grader_cells(record)]


def _shape(record: ShapeRecord) -> str:
    return ", ".join(map(str, record.shape))


def provenance(results: Results) -> list[str]:
    """Where the figures come from, a line a run."""
    lines = []
    for run in results.runs:
        found = run.environment
        versions = [f"torch {found.get('torch')}", f"triton {found.get('triton')}"]
        versions += [f"{name} {version}" for name, version in run.versions.items() if version]
        copy, matmul = run.ceilings["copy_gbps"], run.ceilings["matmul_tflops"]
        lines.append(
            f"- `{run.command}`, {run.started_at}, commit {run.commit[:12]}: {found.get('device')}, driver"
            f" {found.get('driver')}, {', '.join(versions)}; ceilings {figure(copy)} GB/s for a copy,"
            f" {figure(matmul)} TFLOP/s for a bf16 product"
        )
    return lines


def render(results: Results | None) -> str:
    """What stands between the markers."""
    if results is None:
        return NOTHING
    place = f"../bench/results/h200/{results.folder}"
    lines = [f"From [{results.folder}]({place}):", "", *provenance(results), ""]
    lines += table(["task", "geometric mean", "aim at every shape", "ratios", "holds"], summary_rows(results))
    lines += ["", "![Roofline of the five tasks](performance.svg)", ""]
    for task, records in results.tasks().items():
        lines += task_lines(results, task, records)
    return "\n".join(lines).rstrip()


def insert(page: str, text: str) -> str:
    """The page with `text` between its markers.

    Raises:
        ValueError: the page has not exactly one of each marker.
    """
    if (page.count(BEGIN), page.count(END)) != (1, 1):
        raise ValueError(f"the page must have {BEGIN} and {END} once")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    options = parser.parse_args()
    results = newest(RESULTS)
    wanted = {PAGE: insert(PAGE.read_text("utf-8"), render(results))}
    if results:
        records = [r for rs in results.tasks().values() for r in rs if r.kind == "graded"]
        wanted[PICTURE] = draw(records, results.runs[-1].ceilings, str(results.runs[-1].environment.get("device")))
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'not current' if options.check else 'written'}")
        if not options.check:
            path.write_text(wanted[path], "utf-8")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
