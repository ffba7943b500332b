"""Sum readings up: per subject the figures a certificate keeps. Pure Python; no torch, nothing executed.

An honest subject is as good as its worst sample. A wrong one is rejected if a single sample rejects it, since a grading
verifies every shape and case; but each grading draws other inputs, so of several seeds the kindest counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taskfactory.grader.task import MIXED

if TYPE_CHECKING:
    from taskfactory.calibrate.run import Readings, SampleKey

Row = Mapping[str, Any]
HONEST = ("float64", "alternate")
EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Values of the tile gate's epsilon at which honest answers are measured."""


def plain(number: float, digits: int = 4) -> float | None:
    """A figure to some significant digits; None for infinity, which JSON lacks."""
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def number(figure: float | None) -> float:
    """The reverse of `plain`."""
    return math.inf if figure is None else figure


def subject_figures(found: Readings, work: Mapping[tuple[int, ...], int]) -> dict[str, dict[str, Any]]:
    """Figures of every subject that is no mutant, by name.

    Args:
        found: all readings.
        work: canonical work of each shape, for the slope of honest errors.
    """
    figures = {}
    for name, rows in _by_subject(found).items():
        kind, about = found.subjects[name]
        if kind != "mutant":
            figures[name] = _figures(found.samples, kind, about, rows, work)
    return figures


def timed_case(samples: Sequence[SampleKey]) -> str:
    """The kind of inputs that timed calls get: the mixed ones where a spec has them."""
    return MIXED if any(sample.case == MIXED for sample in samples) else ""


def _by_subject(found: Readings) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {name: [] for name in found.subjects}
    for row in found.readings:
        grouped[row["subject"]].append(row)
    return {name: rows for name, rows in grouped.items() if rows}


def _figures(
    samples: Sequence[SampleKey], kind: str, about: str, rows: Sequence[Row], work: Mapping[tuple[int, ...], int]
) -> dict[str, Any]:
    valued = [row for row in rows if row["outcome"] == "values"]
    broken = [row for row in rows if row["outcome"] != "values"]
    figures: dict[str, Any] = {"kind": kind, "about": about}
    if broken:
        row = broken[0]
        figures["broken"] = f"{row['outcome']} on {samples[row['sample']].where}: {row.get('note', '')}"
    if not valued:
        return figures
    seeds = {str(seed): _seed(samples, valued, seed) for seed in sorted({samples[r["sample"]].seed for r in valued})}
    figures["seeds"] = {seed: entry for seed, entry in seeds.items() if entry}
    worst = max(valued, key=lambda row: row["use"])
    if kind in HONEST:
        figures |= {"use": plain(worst["use"]), "error": plain(max(row["error"] for row in valued))}
        figures |= {"gate": worst.get("gate", ""), "where": samples[worst["sample"]].where}
        figures["exact"] = all(row["exact"] for row in valued)
        comparable = [row for row in valued if row["exact"]]
        figures["use_where_exact"] = plain(max((row["use"] for row in comparable), default=0.0))
        ratios = [row["epsilons"] for row in valued if row.get("epsilons")]
        figures["tile_ratio_by_epsilon"] = [plain(max(column)) for column in zip(*ratios, strict=True)]
        figures |= _slope(samples, valued, work)
    else:
        least = min((entry for entry in seeds.values() if entry), key=lambda entry: number(entry["use"]), default=None)
        chosen = least or {"use": plain(worst["use"]), "error": plain(worst["error"]), "gate": worst.get("gate", "")}
        figures |= {"use": chosen["use"], "error": chosen["error"], "gate": chosen["gate"]}
        figures["where"] = chosen.get("where", samples[worst["sample"]].where)
        for figure, case in (("default_use", ""), ("timed_use", timed_case(samples))):
            shares = [row["use"] for row in valued if samples[row["sample"]].case == case]
            figures[figure] = plain(min(shares)) if shares else None
    figures["shapes"] = _shapes(samples, valued, honest=kind in HONEST)
    return figures


def _seed(samples: Sequence[SampleKey], rows: Iterable[Row], seed: int) -> dict[str, Any]:
    """Where a subject comes farthest with one seed, at the shapes that every seed is tried at."""
    mine = [row for row in rows if samples[row["sample"]].seed == seed and not samples[row["sample"]].large]
    if not mine:
        return {}
    top = max(mine, key=lambda row: row["use"])
    error = max(row["error"] for row in mine)
    return {"use": plain(top["use"]), "error": plain(error), "gate": top.get("gate", ""),
            "where": samples[top["sample"]].where}  # fmt: skip


def _shapes(samples: Sequence[SampleKey], rows: Iterable[Row], *, honest: bool) -> list[dict[str, Any]]:
    """Per shape and output the worst [E, tile ratio, {region: E}] on default, on timed and over all inputs."""
    timed = timed_case(samples)
    shapes: dict[tuple[int, ...], dict[str, dict[str, list[Any]]]] = {}
    for row in rows:
        sample = samples[row["sample"]]
        groups = shapes.setdefault(sample.shape, {})
        named = ["default"] if not sample.case else ["timed"] if sample.case == timed else []
        for group in ("all", *named):
            for output, values in row.get("outputs", {}).items():
                groups.setdefault(group, {}).setdefault(output, []).append(values)
    listed = []
    for shape, groups in shapes.items():
        entry: dict[str, Any] = {"shape": list(shape)}
        for group in ("default", "timed", "all"):
            # Of a wrong answer, these inputs of the kindest seed are told; cases only have to catch it once.
            take = max if honest or group == "all" else min
            if group in groups:
                entry[group] = {output: _folded(values, take) for output, values in groups[group].items()}
        listed.append(entry)
    return listed


def _folded(values: Sequence[Sequence[Any]], take: Any) -> list[Any]:
    regions: dict[str, list[float]] = {}
    for _, _, found in values:
        for name, error in found.items():
            regions.setdefault(name, []).append(error)
    folded: list[Any] = [plain(take(v[0] for v in values)), plain(take(v[1] for v in values))]
    return [*folded, {name: plain(take(errors)) for name, errors in regions.items()}] if regions else folded


def _slope(samples: Sequence[SampleKey], rows: Iterable[Row], work: Mapping[tuple[int, ...], int]) -> dict[str, Any]:
    """Exponent s of a fit E ~ work ** s over the shapes, on timed inputs; absent where E is 0 or shapes are few."""
    timed = timed_case(samples)
    points: dict[tuple[int, ...], list[float]] = {}
    for row in rows:
        sample = samples[row["sample"]]
        if sample.case == timed and row["error"] > 0 and math.isfinite(row["error"]):
            points.setdefault(sample.shape, []).append(math.log(row["error"]))
    logs = [(math.log(work[shape]), sum(errors) / len(errors)) for shape, errors in points.items() if shape in work]
    if len(logs) < 3:
        return {}
    mean_x, mean_y = (sum(pair[axis] for pair in logs) / len(logs) for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    if spread == 0:
        return {}
    return {"slope": plain(sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread, 2)}


def mutant_figures(found: Readings) -> dict[str, Any]:
    """What became of every mutant, and the mutation score.

    A mutant is *rejected* by its values, or by raising, hanging, crashing or returning another form; *equivalent* if it
    is bit-equal everywhere; *below resolution* if on no sample it comes nearer to a gate than an honest implementation
    does on that very sample, so that no gate could tell the two apart; else it *survives*.
    """
    honest: dict[int, float] = {}
    for row in found.readings:
        if found.subjects[row["subject"]][0] in HONEST and row["outcome"] == "values":
            honest[row["sample"]] = max(honest.get(row["sample"], 0.0), row["use"])
    listed = []
    for name, rows in _by_subject(found).items():
        kind, about = found.subjects[name]
        if kind == "mutant":
            listed.append({"name": name, "change": about} | _fate(found.samples, rows, honest))
    count = {fate: sum(row["fate"] == fate for row in listed) for fate in FATES}
    values, other = count["rejected"], sum(count[fate] for fate in ("raised", "form", "hung", "crashed"))
    counted = values + count["survived"]
    return {
        "total": len(listed),
        "by_values": counted,
        "counts": count,
        "score": plain((values + other) / max(1, counted + other)),
        "score_by_values": plain(values / max(1, counted)),
        "list": listed,
    }


FATES = ("rejected", "raised", "form", "hung", "crashed", "equivalent", "below", "survived")


def _fate(samples: Sequence[SampleKey], rows: Sequence[Row], honest: Mapping[int, float]) -> dict[str, Any]:
    last = rows[-1]
    if last["outcome"] != "values":
        return {"fate": last["outcome"], "where": samples[last["sample"]].where}
    if last["use"] > 1.0:
        return {"fate": "rejected", "gate": last.get("gate", ""), "where": samples[last["sample"]].where,
                "use": plain(last["use"], 3), "error": plain(last["error"], 3)}  # fmt: skip
    if all(row["equal"] for row in rows):
        return {"fate": "equivalent"}
    top = max(rows, key=lambda row: row["use"])
    fate = "below" if all(row["use"] <= honest.get(row["sample"], 0.0) for row in rows) else "survived"
    return {"fate": fate, "gate": top.get("gate", ""), "where": samples[top["sample"]].where,
            "use": plain(top["use"], 3), "error": plain(top["error"], 3)}  # fmt: skip
