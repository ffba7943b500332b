"""Make the content of a certificate from a spec, and measure one again to see whether it is true."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from taskfactory import __version__
from taskfactory.calibrate.certificate import SCHEMA, Certificate, subject_digest
from taskfactory.calibrate.figures import EPSILONS, mutant_figures, number, subject_figures
from taskfactory.calibrate.gradings import Clock
from taskfactory.calibrate.run import SEEDS, Budget, Progress, Readings, measure
from taskfactory.calibrate.sections import Examined, examine, limit, shapes_section, work_section
from taskfactory.calibrate.verdict import judge, recommend
from taskfactory.load import SpecFile

AGREEMENT = 1.3
"""Factor within which a figure has to be met again."""
_LOST = 3
"""Mutants that one seed may fail to reject though another rejects them, or 5 % of all if that is more."""
_NOISE = 1e-9
"""Shares of a gate below this are the same."""


def certify(
    file: SpecFile,
    *,
    device: str = "cpu",
    seeds: Sequence[int] = SEEDS,
    shapes: Sequence[tuple[int, ...]] = (),
    budget: Budget | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Calibrate one spec and return the content of its certificate.

    Args:
        file: a spec without errors in its static checks.
        device: "cpu" or "cuda".
        seeds: seeds of the inputs.
        shapes: which of the correct shapes to take; all if empty.
        budget: time and memory for measure and graded shapes on a GPU.
        clock: what the clock left open in a grading.
        progress: called with what is being done.

    Raises:
        InfrastructureError, SpecError: as `run.measure`.
    """
    begun = time.monotonic()
    if budget is None:
        found = measure(file, device=device, seeds=seeds, shapes=shapes, progress=progress)
        budget = Budget()
    else:
        found = measure(file, device=device, seeds=seeds, shapes=shapes, budget=budget, progress=progress)
    measured = time.monotonic()
    examined = examine(
        file, device=device, timing_s=budget.timing_s, memory_share=budget.memory_share, progress=progress
    )
    ended = time.monotonic()
    data = content(file, found, examined, clock=clock)
    spent = {
        "all": ended - begun,
        "subjects": measured - begun,
        "large_shapes": found.beyond_s,
        "work": ended - measured,
    }
    return data | {"seconds": {name: round(value, 1) for name, value in spent.items()}}


def content(
    file: SpecFile, found: Readings, examined: Examined | None = None, *, clock: Clock | None = None
) -> dict[str, Any]:
    """The content of a certificate from what was measured; without `examined` it lacks work and graded shapes."""
    spec = file.spec
    formulas = file.formulas()
    shapes = list(dict.fromkeys(sample.shape for sample in found.samples))
    work = {shape: formulas.call("canonical_work", *shape) for shape in shapes}
    gates = {"tol": spec.tol, "kappa": spec.tile_kappa, "epsilon": spec.tile_epsilon}
    subjects = subject_figures(found, work)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "task": spec.name,
        "version": spec.version,
        "spec_digest": file.digest,
        "subject_digest": subject_digest(spec, found.device),
        "device": found.device,
        "machine": machine(found.device),
        "versions": versions(),
        "seeds": list(found.seeds),
        "shapes": [list(shape) for shape in shapes],
        "cases": list(dict.fromkeys(sample.case for sample in found.samples if sample.case)),
        "samples": len(found.samples),
        "gates": gates,
        "subjects": subjects,
        "mutants": mutant_figures(found),
        "recommended": recommend(subjects, gates, EPSILONS),
        "gaps": found.gaps_by_subject(),
    }
    if examined is not None:
        data["work"] = work_section(file, examined)
        data["graded_shapes"] = shapes_section(file, examined, clock=clock)
    verdict = judge(data, spec.survivors)
    data["verdict"] = {"sound": verdict.sound, "problems": list(verdict.problems), "notes": list(verdict.notes)}
    return data


def machine(device: str) -> str:
    """The processor's or the GPU's name."""
    if device != "cpu":
        import torch

        return str(torch.cuda.get_device_name())
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    """Of everything that a figure may depend on."""
    from importlib.metadata import version

    return {"taskfactory": __version__, "torch": version("torch"), "python": platform.python_version(),
            "system": sys.platform}  # fmt: skip


def verify(file: SpecFile, certificate: Certificate, seed: int, progress: Progress | None = None) -> list[str]:
    """Measure one seed of a certificate again; what does not agree, in sentences. Large shapes are left out.

    Figures have to be met within a factor of 1.3, verdict and totals have to follow from the figures, and what is
    said to pass or fail has to do so. The device need not be the certificate's: a CPU can verify a GPU's.

    Raises:
        InfrastructureError, SpecError: as `run.measure`.
    """
    data = certificate.data
    wrong = _consistent(file, data)
    found = measure(file, seeds=[seed], small=True, progress=progress)
    again = subject_figures(found, {})
    if "work" in data:
        wrong += _work(data["work"], work_section(file, examine(file, memory=False, progress=progress)))
    wrong += _shapes(file, data)
    missing = set(again) ^ set(data["subjects"])
    wrong += [f"{name} is in one of the two only" for name in sorted(missing)]
    for name in sorted(set(again) & set(data["subjects"])):
        wrong += _compared(name, data["subjects"][name], again[name], str(seed))
    return wrong + _mutants(data["mutants"], mutant_figures(found), found, seed)


def consistent(file: SpecFile, certificate: Certificate) -> list[str]:
    """What in a certificate does not follow from its own figures and the formulas, in sentences; measures nothing."""
    data = certificate.data
    if certificate.stale(file.spec):
        return [f"the certificate from {certificate.device} is stale: the spec has changed since"]
    return [f"{certificate.device}: {text}" for text in (*_consistent(file, data), *_shapes(file, data))]


def _shapes(file: SpecFile, data: Mapping[str, Any]) -> list[str]:
    """What the formulas and the certificate's own ceilings and sizes do not bear out of its graded shapes."""
    if "graded_shapes" not in data:
        return []
    section = data["graded_shapes"]
    sizes = {tuple(row["shape"]): row for row in data.get("work", {}).get("rows", [])}
    wrong = []
    for row in section["rows"]:
        shape = tuple(row["shape"])
        where = f"{row['kind']} shape {row['number']}"
        if limit(file.formulas(), shape, section["ceilings"]) != {k: row[k] for k in ("limit_ms", "bound")}:
            wrong.append(f"the limit of {where} is not that of its floor at the ceilings")
        size = sizes.get(shape, {})
        if "working_set" in row and row["working_set"] != size.get("inputs", 0) + size.get("outputs", 0):
            wrong.append(f"the working set of {where} is not what a call holds")
    return wrong


def _consistent(file: SpecFile, data: Mapping[str, Any]) -> list[str]:
    """Whether totals and verdict follow from the figures."""
    wrong = []
    verdict = judge(data, file.spec.survivors)
    if data["verdict"] != {"sound": verdict.sound, "problems": list(verdict.problems), "notes": list(verdict.notes)}:
        wrong.append("the verdict does not follow from the figures and the spec's explanations")
    if data["recommended"] != recommend(data["subjects"], data["gates"], EPSILONS):
        wrong.append("the recommendation does not follow from the figures")
    listed = [row["fate"] for row in data["mutants"]["list"]]
    if any(listed.count(fate) != count for fate, count in data["mutants"]["counts"].items()):
        wrong.append("the counts of mutants are not those of their list")
    for name, entry in data["subjects"].items():
        shares = [number(seed["use"]) for seed in entry.get("seeds", {}).values()]
        honest = entry["kind"] in ("float64", "alternate")
        if shares and (number(entry["use"]) < max(shares) if honest else number(entry["use"]) != min(shares)):
            wrong.append(f"{name}: its figure is not that of its seeds")
    return wrong


def _work(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Sizes and counts do not depend on the machine, so they have to be met exactly; touched bytes nearly."""
    wrong = []
    again = {tuple(row["shape"]): row for row in now["rows"]}
    if set(again) != {tuple(row["shape"]) for row in then["rows"]}:
        wrong.append("work was verified at other shapes than those of the spec")
    for row in then["rows"]:
        measured = again.get(tuple(row["shape"]), row)
        for key in ("canonical", "floor", "inputs", "outputs", "flops"):
            if key in row and key in measured and row[key] != measured[key]:
                wrong.append(f"{key} at {tuple(row['shape'])} is {measured[key]}, and {row[key]} in the certificate")
        if "touched" in row and "touched" in measured and not agree(row["touched"], measured["touched"]):
            wrong.append(f"touched at {tuple(row['shape'])} is {measured['touched']}, not {row['touched']}")
    return wrong


def _compared(name: str, then: Mapping[str, Any], now: Mapping[str, Any], seed: str) -> list[str]:
    before, after = (entry.get("seeds", {}).get(seed, {}) for entry in (then, now))
    wrong = []
    for key in ("use", "error"):
        if key not in before and then["kind"] == "precision":
            continue  # another seed had settled it
        if (key in before) != (key in after):
            wrong.append(f"{name}: {key} was measured in one of the two only")
        elif key in before and not agree(number(before[key]), number(after[key])):
            wrong.append(f"{name}: {key} is {after[key]}, and {before[key]} in the certificate")
    return wrong


def agree(a: float, b: float) -> bool:
    """Whether two figures are within the factor of agreement; all that is near nothing is the same."""
    low, high = sorted((a, b))
    return math.isinf(low) or high <= max(AGREEMENT * low, _NOISE)


def _mutants(then: Mapping[str, Any], now: Mapping[str, Any], found: Readings, seed: int) -> list[str]:
    """One seed rejects no mutant that the certificate says is never rejected, and nearly all that it says are."""
    before = {row["name"]: row["fate"] for row in then["list"]}
    after = {row["name"]: row["fate"] for row in now["list"]}
    if set(before) != set(after):
        return [f"other mutants than those of the certificate: {len(after)} now, {len(before)} then"]
    passing = ("equivalent", "below", "survived")
    wrong = [
        f"{name} is {after[name]} with seed {seed}, and {fate} in the certificate"
        for name, fate in before.items()
        if fate in passing and after[name] not in passing
    ]
    lost = [name for name, fate in before.items() if fate not in passing and after[name] in passing]
    if len(lost) > max(_LOST, 0.05 * len(before)):
        wrong.append(f"{len(lost)} mutants are not rejected with seed {seed}, such as {lost[0]}")
    return wrong
