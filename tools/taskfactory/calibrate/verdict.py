"""The verdict on a task's gates, from a certificate's figures and the spec's explanations; and better gates, if any.

    honest     alternates, and the reference in float64, stay below a gate by a factor of 1.5 or more
    wrong      ablations and trivial answers are beyond a gate by a factor of 3 or more
    mutants    at least 30 differ; of those judged by their values 95 % are rejected, and every survivor is explained
    precision  fp8 and int8 throughout are rejected, or the spec explains why they may pass
    work and graded shapes  as `taskfactory.calibrate.quality` says

`TaskSpec.survivors` explains: it maps the name of a surviving mutant, of an ablation with a smaller factor (above 1),
or of a precision that passes, to the reason why that is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskfactory.calibrate.beyond import HARMLESS
from taskfactory.calibrate.figures import number, plain
from taskfactory.calibrate.quality import NAMES, judge_shapes, judge_work

HONEST_MARGIN = 1.5
WRONG_MARGIN = 3.0
SCORE = 0.95
FEWEST_MUTANTS = 30
STEEP = 0.25
"""Exponent of an honest error's growth with canonical work above which it is flagged."""
_THROUGHOUT = tuple(f"precision.{form}.{place}" for form in ("fp8", "int8") for place in ("arguments", "products"))
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What the figures say."""

    problems: tuple[str, ...]
    """Why the task is not sound; empty if it is."""
    notes: tuple[str, ...]
    """What a person should look at."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def judge(figures: Figures, survivors: Mapping[str, str]) -> Verdict:
    """The verdict.

    Args:
        figures: a certificate's content.
        survivors: `TaskSpec.survivors`.
    """
    problems: list[str] = []
    notes: list[str] = []
    subjects: Mapping[str, Figures] = figures["subjects"]
    _honest(subjects, problems, notes)
    _wrong(subjects, survivors, problems)
    _precision(subjects, survivors, problems, notes)
    _mutants(figures["mutants"], survivors, problems)
    _gaps(figures, problems, notes)
    for judged in (judge_work(figures, survivors), judge_shapes(figures, survivors)):
        problems += judged[0]
        notes += judged[1]
    met = {name for name, entry in subjects.items() if number(entry.get("use", 0.0)) <= WRONG_MARGIN}
    met |= {row["name"] for row in figures["mutants"]["list"] if row["fate"] == "survived"}
    met.update(NAMES)  # what these explain may hold on one device only
    notes += [f"{name} is explained in survivors, but needs no explanation" for name in survivors if name not in met]
    return Verdict(tuple(problems), tuple(notes))


def honest_use(subjects: Mapping[str, Figures], *, alternates_only: bool = False) -> float:
    """The largest share of a gate that honest work uses up."""
    shares = [number(e["use"]) for e in subjects.values() if e["kind"] == "alternate" and "use" in e]
    if not alternates_only:
        shares += [number(e["use_where_exact"]) for e in subjects.values() if e["kind"] == "float64" and "use" in e]
    return max(shares, default=0.0)


def wrong_use(subjects: Mapping[str, Figures], kinds: Sequence[str] = ("ablation", "trivial")) -> tuple[float, str]:
    """(how far beyond a gate the nearest wrong answer is, its name)."""
    found = [(number(e["use"]), name) for name, e in subjects.items() if e["kind"] in kinds and "use" in e]
    return min(found, default=(math.inf, ""))


def _honest(subjects: Mapping[str, Figures], problems: list[str], notes: list[str]) -> None:
    if not any(entry["kind"] == "alternate" for entry in subjects.values()):
        problems.append("there is no alternate, so no honest gap was measured")
    for name, entry in subjects.items():
        if entry["kind"] not in ("float64", "alternate"):
            continue
        if "broken" in entry:
            (problems if entry["kind"] == "alternate" else notes).append(f"{name}: {entry['broken']}")
        if "use" not in entry:
            continue
        use = number(entry["use"])
        if entry["kind"] == "float64" and not entry["exact"]:
            where = f"an output that is compared exactly ({entry['where']})"
            notes.append(f"{name} differs in {where}: there, rounding is part of the definition")
            use = number(entry["use_where_exact"])
        if use * HONEST_MARGIN > 1.0:
            problems.append(
                f"{name} uses {use:.2g} of a gate ({entry['gate']}, {entry['where']}); honest work needs a margin of "
                f"{HONEST_MARGIN}"
            )
        if entry.get("slope", 0.0) > STEEP and number(entry["error"]) > 0:
            notes.append(f"{name}: E grows with size as work ** {entry['slope']:g}; look at the graded shapes")


def _wrong(subjects: Mapping[str, Figures], survivors: Mapping[str, str], problems: list[str]) -> None:
    for name, entry in subjects.items():
        if entry["kind"] not in ("ablation", "trivial"):
            continue
        if "use" not in entry:
            problems.append(f"{name} was never compared: {entry.get('broken', 'it applies nowhere')}")
            continue
        use = number(entry["use"])
        if use >= WRONG_MARGIN or (use > 1.0 and name in survivors):
            continue
        how = "passes" if use <= 1.0 else f"is beyond a gate by a factor of {use:.2g} only"
        asked = f"wrong work needs a factor of {WRONG_MARGIN:g}"
        problems.append(f"{name} {how} ({entry['gate']}, {entry['where']}); {asked}")


def _precision(
    subjects: Mapping[str, Figures], survivors: Mapping[str, str], problems: list[str], notes: list[str]
) -> None:
    for name, entry in subjects.items():
        if entry["kind"] != "precision" or "use" not in entry or number(entry["use"]) > 1.0:
            continue
        if entry["error"] == 0 and number(entry["use"]) == 0:
            continue  # nothing was rounded
        if name in _THROUGHOUT and name not in survivors:
            problems.append(f"{name} passes ({entry['about']}); reject it, or say in survivors why it may")
        elif name.startswith("precision.fp8") and name not in survivors:
            notes.append(f"{name} passes: {entry['about']}")


def _mutants(mutants: Figures, survivors: Mapping[str, str], problems: list[str]) -> None:
    unlike = mutants["total"] - mutants["counts"]["equivalent"] - mutants["counts"]["below"]
    if unlike < FEWEST_MUTANTS:
        problems.append(f"only {unlike} mutants differ from the reference; {FEWEST_MUTANTS} are asked for")
    if mutants["score_by_values"] < SCORE:
        problems.append(f"the mutation score is {mutants['score_by_values']:.3g}; {SCORE:g} is asked for")
    problems += [
        f"{row['name']} survives and is not explained: {row['change']} (E = {row['error']}, {row['where']})"
        for row in mutants["list"]
        if row["fate"] == "survived" and row["name"] not in survivors
    ]


def _gaps(figures: Figures, problems: list[str], notes: list[str]) -> None:
    """What could not be measured: for want of memory or time it is noted, else it is a fault."""
    for gap in figures.get("gaps", []):
        where = ", ".join(str(tuple(shape)) for shape in gap["shapes"])
        sentence = f"{gap['subject']} was not measured at {where}: {gap['why']}"
        (notes if gap["why"].startswith(HARMLESS) else problems).append(sentence)


def recommend(subjects: Mapping[str, Figures], gates: Figures, epsilons: Sequence[float]) -> dict[str, Any]:
    """Tolerance and tile gate that would leave honest work some room and stop the rest, with the gap they sit in.

    The tolerance is four times the honest E, but at most the geometric mean of the two ends of the gap; wrong answers
    that the tile gate or a region stops more clearly than the global gate do not bound it. kappa is twice the honest
    worst tile in units of that tolerance; epsilon the smallest at which honest tiles need at most a tenth more than at
    the next larger one.
    """
    honest = [e for e in subjects.values() if e["kind"] in ("float64", "alternate") and "use" in e]
    exact = [e for e in honest if e["kind"] == "alternate" or e["exact"]]
    error = max((number(e["error"]) for e in exact), default=0.0)
    tol = float(gates["tol"])
    stopped = [
        number(e["error"])
        for e in subjects.values()
        if e["kind"] in ("ablation", "trivial") and "use" in e and e["gate"].startswith("tolerance")
    ]
    wrong = min(stopped, default=math.inf)
    gap = {"honest": plain(error), "wrong": plain(wrong)}
    gap |= {"lowest": plain(error * HONEST_MARGIN), "highest": plain(wrong / WRONG_MARGIN)}
    if error <= 0.0 or not math.isfinite(error):
        return {"gap": gap}
    ceiling = math.sqrt(error * HONEST_MARGIN * wrong / WRONG_MARGIN) if math.isfinite(wrong) else math.inf
    better = min(4.0 * error, ceiling)
    ratios = [e["tile_ratio_by_epsilon"] for e in exact if e.get("tile_ratio_by_epsilon")]
    worst = [max(number(value) for value in column) for column in zip(*ratios, strict=True)]
    found: dict[str, Any] = {"gap": gap, "tol": plain(better, 2)}
    if worst:
        place = next((i for i in range(len(worst) - 1) if worst[i] <= 1.1 * worst[i + 1]), len(worst) - 1)
        found |= {"epsilon": epsilons[place], "kappa": plain(max(1.0, 2.0 * worst[place] * tol / better), 2)}
    return found
