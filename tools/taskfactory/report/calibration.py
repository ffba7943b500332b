"""What is known of a task's gates: its certificates, where its spec is here in the version that was graded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from taskfactory.calibrate.certificate import Certificate, certificates_of
from taskfactory.calibrate.plot import HIGH, LOW, points
from taskfactory.calibrate.verdict import HONEST_MARGIN, WRONG_MARGIN
from taskfactory.errors import TaskfactoryError
from taskfactory.load import SpecFile, load_spec
from taskfactory.paths import resolve_spec
from taskfactory.report.svg import gate_picture
from taskfactory.store.records import StoredTask

TITLES = {
    "float64": "reference in float64", "alternate": "other correct forms", "precision": "lower precision",
    "ablation": "features left out", "trivial": "trivial answers", "mutant": "mutants",
}  # fmt: skip
ROLES = {"float64": "honest", "alternate": "honest", "precision": "open"}
"""What a kind of subject is, where it is not wrong work; lower precision may lie on either side."""


@dataclass(frozen=True)
class Calibration:
    """One certificate as a page shows it."""

    device: str
    """ "cpu" or "cuda"."""
    machine: str
    sound: bool
    rows: tuple[tuple[str, int, float, float], ...]
    """Of each kind of subject: title, how many, the smallest and the largest share of a gate that one uses up."""
    mutation_score: float
    picture: Markup


def calibrations(task: StoredTask, *, names: bool) -> list[Calibration]:
    """The certificates of a stored task; none if its spec is not here or is another version by now.

    Args:
        task: as it was graded.
        names: whether the picture names mutants and left-out features, which tell a solver what is caught.
    """
    try:
        file = load_spec(resolve_spec(task.name))
    except (TaskfactoryError, OSError):
        return []
    if file.digest != task.spec_digest:
        return []
    return [_calibration(file, certificate, names=names) for certificate in certificates_of(file)]


def _calibration(file: SpecFile, certificate: Certificate, *, names: bool) -> Calibration:
    found = {kind: entries for kind, entries in points(certificate.data).items() if entries}
    shares = {kind: [use for _, use in entries] for kind, entries in found.items()}
    rows = tuple((TITLES[kind], len(uses), min(uses), max(uses)) for kind, uses in shares.items())
    drawn = [
        (TITLES[kind], ROLES.get(kind, "wrong"), [(name if names else "", use) for name, use in entries])
        for kind, entries in found.items()
    ]
    said = "; ".join(f"{count} {title} {share(low)} to {share(high)}" for title, count, low, high in rows)
    label = f"Shares of a gate on {certificate.device}: {said}"
    return Calibration(
        certificate.device, str(certificate.data["machine"]), certificate.verdict(file.spec).sound, rows,
        float(certificate.data["mutants"]["score_by_values"]),
        gate_picture(label, drawn, (LOW, HIGH), (1 / HONEST_MARGIN, WRONG_MARGIN)),
    )  # fmt: skip


def share(use: float) -> str:
    """A share of a gate in words."""
    return "infinity" if math.isinf(use) else f"{use:.3g}"


def gates(task: StoredTask) -> Mapping[str, Any]:
    """The facts of a stored task that its solvers know too: gates, numbers of shapes, names of cases."""
    try:
        facts = json.loads(task.files.get("task.json", ""))
        return {
            "tol": facts["tol"], "kappa": facts["tile_kappa"], "epsilon": facts["tile_epsilon"],
            "regions": facts["has_regions"], "cases": facts["cases"],
            "counts": {kind: len(shapes) for kind, shapes in facts["shapes"].items()},
        }  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
