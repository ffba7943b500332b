"""The process in which a calibration executes a spec; started by `taskfactory.checks.watch`, writes JSON lines.

{"samples": [...]}                  once, first: every sample's seed, shape, case and whether it is large
{"doing": [subject, sample]}        before each run, so that the parent knows what hung or crashed; "": the reference
{"subject": [name, kind, about]}    when a subject is first met
{"reading": {...}}                  after each run
{"gap": [subject, sample, why]}     instead, where a measure or graded shape is more than the machine has
{"failed": [message, field, line]}  the spec's own sources fail
{"done": true}                      at the end
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from taskfactory.checks.child import Channel, enter, forbid_forks


def main(arguments: list[str]) -> None:
    """Run as a child of a calibration."""
    enter(arguments, _measure)


def _measure(channel: Channel, job: dict[str, Any], faults: Any) -> None:
    import torch

    from taskfactory.calibrate.beyond import USABLE, Beyond
    from taskfactory.calibrate.measure import Bench, Position, positions
    from taskfactory.calibrate.reading import Reading, as_message
    from taskfactory.calibrate.screen import Screen
    from taskfactory.checks.lab import Lab, Malformed
    from taskfactory.checks.record import SourceFailed
    from taskfactory.load import SpecFile
    from taskfactory.spec import TaskSpec

    torch.set_num_threads(1)
    torch.manual_seed(0)
    cuda = job["device"] == "cuda"
    if cuda:
        torch.cuda.set_per_process_memory_fraction(USABLE * job["memory_share"])
    file = SpecFile(Path(job["path"]), TaskSpec(**job["spec"]), job["lines"], job["text"])
    forbid_forks(faults)
    told: set[str] = set()

    def notice(subject: str, position: Position) -> None:
        if subject and subject not in told:
            told.add(subject)
            entry = next(s for s in bench.subjects if s.name == subject)
            channel.send(subject=[entry.name, entry.kind, entry.about])
        channel.send(doing=[subject, position.index])

    def emit(reading: Reading) -> None:
        channel.send(reading=as_message(reading))

    try:
        lab = Lab(file, job["device"])
        shapes, extra = ([tuple(shape) for shape in job[key]] for key in ("shapes", "extra"))
        samples = positions(lab, job["seeds"], extra, shapes, job["small"])
        lost = {(str(subject), int(sample)) for subject, sample in job["lost"]}
        large = [p.index for p in samples if p.shape in extra and p.index >= job["start"]]
        beyond = Beyond(job["beyond_s"], large, lost, lambda *gap: channel.send(gap=list(gap)))
        if cuda and job["start"] == 0:
            beyond.screened = Screen(file).failure
        bench = Bench(lab, samples, set(job["skip"]), emit, notice, beyond=beyond)
        channel.send(samples=[[p.seed, list(p.shape), p.case, p.large] for p in samples])
        bench.run(job["start"])
    except SourceFailed as error:
        channel.send(failed=[error.message, error.field, error.line])
    except Malformed as error:
        channel.send(failed=[str(error), "reference_src", 0])
    channel.send(done=True)


if __name__ == "__main__":
    main(sys.argv[1:])
