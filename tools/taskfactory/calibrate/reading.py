"""Read off one subject's outputs how far they are from each gate."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from taskfactory.calibrate.figures import EPSILONS
from taskfactory.calibrate.subjects import Subject
from taskfactory.checks.inputs import Sample
from taskfactory.checks.inputs import same as same_values
from taskfactory.checks.lab import Lab, Outputs
from taskfactory.grader.compare import FLOAT_DTYPES, TILE, compare_outputs


@dataclass
class Reading:
    """How one subject fared on one sample."""

    subject: str
    sample: int
    outcome: str
    """"values", or why there are none: "raised", "form", "hung", "crashed"."""
    note: str = ""
    use: float = 0.0
    """Largest share of a gate that was used up; 1.0 is at the gate, above it is a rejection."""
    gate: str = ""
    """The gate it came nearest to: "tolerance", "tile", "exact", "finite" or "region <name>", with the output."""
    error: float = 0.0
    """Largest E of a float output."""
    equal: bool = False
    """All outputs are those of the reference, bit for bit."""
    exact: bool = True
    """All outputs that are compared exactly agree."""
    outputs: dict[str, list[Any]] = field(default_factory=dict)
    """Output -> [E, tile ratio, {region: E}]."""
    epsilons: list[float] = field(default_factory=list)
    """Of honest subjects: the worst tile ratio at each of `EPSILONS`."""


def read(lab: Lab, sample: Sample, subject: Subject, index: int, outputs: Outputs) -> Reading:
    """Compare outputs as the grader does, and say which gate they come nearest to."""
    reading = Reading(subject.name, index, "values")
    honest = subject.kind in ("float64", "alternate")
    if subject.kind == "float64":
        outputs = _returnable(lab, outputs)
    reading.equal = same_values(tuple(sample.expected), tuple(outputs))
    if reading.equal:
        reading.outputs = {name: [0.0, 0.0, {}] for name in lab.names}
        reading.epsilons = [0.0] * len(EPSILONS) if honest else []
        return reading
    gates = lab.gates
    reports = compare_outputs(sample.expected, outputs, lab.names, gates, lab.spec.output_dtypes, sample.regions)
    if any(report.failure in ("wrong_shape", "wrong_dtype") for report in reports):
        return Reading(subject.name, index, "form", "; ".join(r.message for r in reports if r.failure)[:120])
    limits = {region.name: region.tol for region in sample.regions}
    for report, expected in zip(reports, sample.expected, strict=True):
        if not expected.is_floating_point():
            reading.exact = reading.exact and report.error == 0.0
            shares = {"exact": math.inf if report.error else 0.0}
        elif report.failure == "not_finite":
            shares = {"finite": math.inf}
        else:
            reading.error = max(reading.error, _number(report.error))
            shares = {"tolerance": report.error / gates.tol, "tile": report.tile_ratio / gates.kappa}
            shares |= {f"region {name}": error / limits[name] for name, error in report.regions.items()}
        reading.outputs[report.name] = [_number(report.error), _number(report.tile_ratio),
                                        {name: _number(error) for name, error in report.regions.items()}]  # fmt: skip
        for gate, share in shares.items():
            if _number(share) > reading.use:
                reading.use, reading.gate = _number(share), f"{gate} of {report.name}" if len(reports) > 1 else gate
    if honest:
        reading.epsilons = _tile_ratios(sample.expected, outputs, gates.tol)
    return reading


def _returnable(lab: Lab, outputs: Outputs) -> Outputs:
    """float64 outputs, rounded once to the widest dtype in which a submission may return them."""
    declared = lab.spec.output_dtypes or (FLOAT_DTYPES,) * len(outputs)
    rounded = []
    for output, dtypes in zip(outputs, declared, strict=True):
        widest = max(dtypes, key=lambda name: getattr(torch, name).itemsize)
        rounded.append(output.to(getattr(torch, widest)) if output.is_floating_point() else output)
    return tuple(rounded)


def _tile_ratios(expected: Outputs, actual: Outputs, tol: float) -> list[float]:
    """The worst tile's ||o - r|| / (tol max(||r||, eps M)) of all float outputs, for each eps of `EPSILONS`."""
    worst = [0.0] * len(EPSILONS)
    for r, o in zip(expected, actual, strict=True):
        if not r.is_floating_point() or not r.numel():
            continue
        wide = r.double()
        finite = torch.isfinite(wide)
        wide = torch.where(finite, wide, 0.0)
        off = torch.where(finite, o.double() - wide, 0.0)
        d, n = _tile_norms(off), _tile_norms(wide)
        for place, epsilon in enumerate(EPSILONS):
            ratio = torch.where(d > 0, d / (tol * torch.clamp(n, min=epsilon * float(n.median()))), 0.0).max()
            worst[place] = max(worst[place], _number(float(ratio)))
    return worst


def _tile_norms(x: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % TILE)).view(-1, TILE).norm(dim=1)
    return norms


def _number(value: float) -> float:
    """NaN is as bad as infinity."""
    return math.inf if math.isnan(value) else float(value)


def as_message(reading: Reading) -> dict[str, Any]:
    """A reading as JSON may carry it, without what is empty."""
    return {key: value for key, value in asdict(reading).items() if value not in ("", [], {})}
