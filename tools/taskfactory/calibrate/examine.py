"""The process that looks at work formulas and memory, on the CPU; `taskfactory.checks.watch` starts it.

{"doing": what}                     before each step
{"row": {...}}                      after each shape, see `taskfactory.calibrate.work.rows`
{"memory": [...]}                   at the end, see `taskfactory.checks.footprint.check_memory`
{"failed": message}                 the spec's own sources fail
{"done": true}
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from taskfactory.checks.child import Channel, enter, forbid_forks

BUDGET_GB = 80.0
"""Decimal gigabytes that grading a shape may need, broker and checker included; the default of `validate --run` too."""


def main(arguments: list[str]) -> None:
    """Run as a child of a calibration."""
    enter(arguments, _examine)


def _examine(channel: Channel, job: dict[str, Any], faults: Any) -> None:
    import torch

    from taskfactory.calibrate.work import rows
    from taskfactory.checks.footprint import check_memory
    from taskfactory.checks.lab import SEED, Lab, Malformed
    from taskfactory.checks.record import Record, SourceFailed
    from taskfactory.load import SpecFile
    from taskfactory.spec import TaskSpec

    torch.set_num_threads(1)
    file = SpecFile(Path(job["path"]), TaskSpec(**job["spec"]), job["lines"], job["text"])
    forbid_forks(faults)
    try:
        lab = Lab(file, "cpu")
        for row in rows(lab, lambda what: channel.send(doing=what)):
            channel.send(row=row)
        if job["memory"]:
            channel.send(doing="memory of graded shapes")
            channel.send(memory=check_memory(lab, Record(file), SEED, lab.smallest_first(), BUDGET_GB))
    except (SourceFailed, Malformed) as error:
        channel.send(failed=f"{error}")
    channel.send(done=True)


if __name__ == "__main__":
    main(sys.argv[1:])
