"""The dynamic checks of one spec, in the process that executes it.

Shapes are taken smallest first, and what is found once is told once. Nothing here protects anybody from the sources;
`taskfactory.checks.dynamic` does, by running this in a child.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from taskfactory.checks.arguments import Influence
from taskfactory.checks.footprint import check_memory
from taskfactory.checks.gates import Gauntlet
from taskfactory.checks.inputs import Inputs
from taskfactory.checks.lab import SEED, Lab, Notice, Shape, line_of
from taskfactory.checks.record import Record, SourceFailed
from taskfactory.errors import FormulaError
from taskfactory.findings import Finding
from taskfactory.load import SpecFile
from taskfactory.spec import SHAPE_FIELDS


def examine(
    file: SpecFile,
    *,
    device: str = "cpu",
    seed: int = SEED,
    budget_gb: float = 80.0,
    emit: Callable[[Finding], None] | None = None,
    notice: Notice | None = None,
) -> tuple[list[Finding], dict[str, Any]]:
    """Run every dynamic check of one spec in this process.

    Args:
        file: a spec without errors in its static checks.
        device: "cpu" or "cuda".
        seed: seed of the inputs; the next one gives the other inputs.
        budget_gb: decimal gigabytes that a graded shape may need, broker included.
        emit: called with each finding as it is made.
        notice: called with (what is about to run, field, line).

    Returns:
        The findings, and figures: margins of alternates, what rejects ablations, memory of graded shapes, seconds.
    """
    started = time.perf_counter()
    record = Record(file, emit)
    figures: dict[str, Any] = {"device": device, "seed": seed}
    try:
        lab = Lab(file, device, notice)
        check_work(lab, record)
        shapes = lab.smallest_first()
    except SourceFailed as error:
        record.failure(error, "when the sources are executed")
        return record.findings, figures
    except FormulaError as error:
        record.add("TF501", error.finding.field or "flops_src", error.finding.message, line=error.finding.line)
        return record.findings, figures
    gauntlet, influence = Gauntlet(lab, record), Influence(lab, record, seed)
    checker = Inputs(lab, record, seed)
    for shape in shapes:
        samples = checker.samples(shape)
        if samples and not samples[0].case:
            gauntlet.run(shape, samples)
            influence.study(shape, samples)
    checker.finish()
    if checker.complete:
        gauntlet.finish()
        influence.finish()
    figures |= gauntlet.figures()
    figures["memory"] = check_memory(lab, record, seed, shapes, budget_gb)
    figures["seconds"] = round(time.perf_counter() - started, 2)
    return record.findings, figures


def check_work(lab: Lab, record: Record) -> None:
    """canonical_work, executed, is what the interpreter says at every shape, however often it is called.

    Raises:
        SourceFailed: it raises.
        FormulaError: the interpreter cannot evaluate it (the static checks say so too).
    """
    function, formulas = lab.namespace["canonical_work"], lab.file.formulas()
    shapes = [shape for name in SHAPE_FIELDS for shape in getattr(lab.spec, name)]
    values: dict[Shape, Any] = {}
    for turn in (shapes, list(reversed(shapes))):
        for shape in turn:
            with lab.guard("flops_src", f"canonical_work at {shape}"):
                value = function(*shape)
            interpreted = formulas.call("canonical_work", *shape)
            if type(value) is not int or value <= 0:
                problem = f"executed, it returns {value!r}, not a positive int,"
            elif value != values.setdefault(shape, value):
                problem = f"called twice, it returns {values[shape]:,} and {value:,}"
            elif value != interpreted:
                problem = f"executed, it returns {value:,}, but evaluated {interpreted!r},"
            else:
                continue
            record.add("TF611", "flops_src", f"{problem} at {shape}", line=line_of(function))
            return
