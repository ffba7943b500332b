"""Measures specs in this process, for tests whose subjects neither hang nor crash."""

from __future__ import annotations

from dataclasses import replace

from taskfactory.calibrate.certify import content
from taskfactory.calibrate.measure import Bench, positions
from taskfactory.calibrate.reading import as_message
from taskfactory.calibrate.run import Readings, SampleKey
from taskfactory.calibrate.subjects import KINDS
from taskfactory.checks.lab import Lab
from taskfactory.load import SpecFile, load_spec
from taskfactory.paths import specs_dir

SEED = 20_260


def ours(task: str) -> SpecFile:
    """One of our own specs."""
    return load_spec(specs_dir() / (task.replace("-", "_") + ".py"))


def changed(file: SpecFile, **fields) -> SpecFile:
    """The spec with other values in some fields."""
    return SpecFile(file.path, replace(file.spec, **fields), file.lines, file.text)


def measured(file: SpecFile, *, kinds=KINDS, shapes=(), seeds=(SEED,)) -> Readings:
    """All readings of the subjects of some kinds, at some of the correct shapes."""
    lab = Lab(file)
    samples = positions(lab, seeds, shapes=shapes)
    found = Readings("cpu", tuple(seeds))
    found.samples = [SampleKey(p.seed, p.shape, p.case, p.large) for p in samples]
    bench = Bench(lab, samples, set(), lambda reading: found.readings.append(as_message(reading)), _ignore, kinds)
    bench.run()
    found.subjects = {subject.name: (subject.kind, subject.about) for subject in bench.subjects}
    return found


def figures(file: SpecFile, **options) -> dict:
    """A certificate's content, measured in this process."""
    return content(file, measured(file, **options))


def smallest(file: SpecFile) -> tuple[int, ...]:
    """The correct shape with the least canonical work."""
    work = file.formulas()
    return min(file.spec.correct_shapes, key=lambda shape: work.call("canonical_work", *shape))


def _ignore(*_) -> None:
    """Nobody watches."""
