"""docs/calibration.md and its pictures, from our certificates: `python -m taskfactory.calibrate.page docs`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from taskfactory.calibrate.certificate import Certificate, certificates_of
from taskfactory.calibrate.figures import number
from taskfactory.calibrate.method import METHOD
from taskfactory.calibrate.plot import draw_svg
from taskfactory.calibrate.quality import NAMES
from taskfactory.calibrate.tables import SUMMARY, markdown, summary
from taskfactory.calibrate.verdict import honest_use, wrong_use
from taskfactory.load import SpecFile, load_spec
from taskfactory.paths import root, specs_dir, specs_in


def render(files: Sequence[SpecFile]) -> str:
    """The page."""
    held = [(file, certificate) for file in files for certificate in certificates_of(file)]
    overview = [*_overview(held), *_work(held), *_dram()]
    return "\n".join([METHOD, "## Our tasks", "", *overview, *(line for f, c in held for line in _task(f, c))])


def write(folder: Path, files: Sequence[SpecFile]) -> None:
    """Write `calibration.md` and a picture per certificate below a folder of documentation."""
    (folder / "calibration").mkdir(parents=True, exist_ok=True)
    (folder / "calibration.md").write_text(render(files), "utf-8")
    for file in files:
        for certificate in certificates_of(file):
            picture = folder / "calibration" / f"{file.spec.name}.{certificate.device}.svg"
            picture.write_text(draw_svg(certificate.data), "utf-8")


def _overview(held: Sequence[tuple[SpecFile, Certificate]]) -> list[str]:
    lines = [
        "| task | device | tolerance | honest work | nearest wrong answer | mutants | score | survivors | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for file, certificate in held:
        subjects, mutants = certificate.data["subjects"], certificate.data["mutants"]
        wrong, name = wrong_use(subjects)
        lines.append(
            f"| `{file.spec.name}` | {certificate.device} | {file.spec.tol:g} | {_said(honest_use(subjects))} | "
            f"{_said(wrong)} (`{name}`) | {mutants['by_values']} | {mutants['score_by_values']:.3f} | "
            f"{mutants['counts']['survived']} | {_seconds(certificate.data)} |"
        )
    return [*lines, ""]


def _work(held: Sequence[tuple[SpecFile, Certificate]]) -> list[str]:
    """Work formulas and graded shapes, of the certificates that have them."""
    rows = [
        [f"`{file.spec.name}`", certificate.device, *cells]
        for file, certificate in held
        if (cells := summary(certificate.data))
    ]
    return markdown([["task", "device", *SUMMARY], *rows]) if rows else []


def _dram() -> list[str]:
    """What the newest record of `bench/dram.py` says, from the kernels of our solutions."""
    records = sorted((root() / "bench" / "results").glob("*/*/dram.json"), key=lambda path: path.parent.name)
    if not records:
        return []
    rows = json.loads(records[-1].read_bytes())["rows"]
    table = [["task", "graded shapes", "read", "written", "moved / counted bytes"]]
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task and row["shapes"] == "graded" and not row["failure"]]
        if mine:
            table.append([f"`{task}`", f"{len(mine)}", *(
                f"{_span(row[key] / 1e6 for row in mine)} MB" for key in ("read_bytes", "write_bytes")
            ), _span(row["of_counted"] for row in mine)])  # fmt: skip
    said = f"DRAM counters of our solutions, [{records[-1].parent.name}](../{records[-1].relative_to(root())}):"
    return [said, "", *markdown(table)]


def _span(values: Iterable[float]) -> str:
    shown = [f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in sorted(values)]
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def _task(file: SpecFile, certificate: Certificate) -> list[str]:
    data, spec = certificate.data, file.spec
    verdict = certificate.verdict(spec)
    versions = ", ".join(f"{name} {value}" for name, value in data["versions"].items())
    lines = [
        f"### {spec.name} ({certificate.device})",
        "",
        f"{data['machine']}; {versions}. Seeds {', '.join(map(str, data['seeds']))}; {len(data['shapes'])} shapes, "
        f"{len(data['cases'])} cases; δ: {_delta(data)}. Verdict: **{'sound' if verdict.sound else 'not sound'}**.",
        "",
        f"![shares of a gate](calibration/{spec.name}.{certificate.device}.svg)",
        "",
        "| | largest E | share of a gate | gate | on |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(name, entry) for name, entry in data["subjects"].items() if "use" in entry and _worth_a_row(entry)]
    mutants = data["mutants"]
    fates = ", ".join(f"{count} {_FATES[fate]}" for fate, count in mutants["counts"].items() if count)
    lines += ["", f"{mutants['total']} mutants: {fates}.", ""]
    idle = [f"`{name}`" for name, entry in data["subjects"].items() if _idle(entry)]
    if idle:
        timed = "mixed" if spec.timed_src else "default"
        lines += [f"Rejected, but not at every shape by the {timed} inputs, which are timed: {', '.join(idle)}.", ""]
    below = [f"`{row['change']}` (E = {row['error']:g})" for row in mutants["list"] if row["fate"] == "below"]
    if below:
        lines += [f"Below resolution: {', '.join(below)}.", ""]
    for row in mutants["list"]:
        if row["fate"] == "survived":
            reason = spec.survivors.get(row["name"], "not explained")
            lines += [f"- `{row['name']}` survives: `{row['change']}`, E = {row['error']:g}. {reason}", ""]
    sections = {name for name in NAMES if ("graded_shapes" if name.startswith("shapes") else "work") not in data}
    named = {n: reason for n, reason in spec.survivors.items() if not n.startswith("mutants.") and n not in sections}
    lines += [line for name, reason in named.items() for line in (f"- `{name}`: {reason}", "")]
    return lines + [line for text in (*verdict.problems, *verdict.notes) for line in (f"- {text}", "")]


def _seconds(data: Mapping[str, Any]) -> str:
    """What the calibration took, beside whatever else the machine did."""
    return f"{data['seconds']['all']:.0f}" if "seconds" in data else "-"


def _delta(data: Mapping[str, Any]) -> str:
    section = data.get("graded_shapes", {})
    return str(section.get("delta_from", "not measured"))


_FATES = {
    "rejected": "rejected by their values", "raised": "raise an exception", "form": "return another shape or dtype",
    "hung": "hang", "crashed": "crash", "equivalent": "are equivalent", "below": "are below resolution",
    "survived": "survive",
}  # fmt: skip


def _idle(entry: Mapping[str, Any]) -> bool:
    """Whether the inputs that are timed would not show that an answer is wrong."""
    wrong = entry["kind"] in ("ablation", "precision") and "use" in entry and number(entry["use"]) > 1.0
    return wrong and number(entry.get("timed_use", entry["default_use"])) <= 1.0


def _worth_a_row(entry: Mapping[str, Any]) -> bool:
    """Precisions that change nothing are left out."""
    return not (entry["kind"] == "precision" and entry["use"] == 0)


def _row(name: str, entry: Mapping[str, Any]) -> str:
    where = entry["where"].rpartition(", seed")[0]
    shown = (_said(number(entry["error"])), _said(number(entry["use"])), entry["gate"] or "none", where)
    return f"| `{name}` | {' | '.join(shown)} |"


def _said(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:.3g}"


if __name__ == "__main__":
    write(Path(sys.argv[1]), [load_spec(path) for path in specs_in(specs_dir())])
