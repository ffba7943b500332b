"""Mutants on the CPU before they run on a GPU: there an index out of range raises, here it would end the context.

A process whose context is lost has to be replaced, which takes seconds, and a calibration has a dozen such mutants.
"""

from __future__ import annotations

from taskfactory.calibrate.deadline import TooLong, deadline
from taskfactory.calibrate.measure import MUTANT_S
from taskfactory.calibrate.subjects import Context, Subject, subjects_of
from taskfactory.checks.inputs import Sample, copied
from taskfactory.checks.lab import SEED, Lab, Malformed, Unsupported
from taskfactory.checks.record import SourceFailed
from taskfactory.load import SpecFile


class Screen:
    """The mutants of a spec at its smallest correct shape, on the CPU."""

    def __init__(self, file: SpecFile) -> None:
        """Execute the shared sources for the CPU.

        Raises:
            SourceFailed, Malformed: the spec's own sources fail there.
        """
        self.lab = lab = Lab(file, "cpu")
        shape = lab.smallest_first()[0]
        args = lab.inputs(shape, "", SEED)
        if args is None:
            raise Malformed("has no default inputs")
        self._sample = Sample(shape, "", [copied(value) for value in args], list(args))
        self._sample.expected = tuple(
            output.clone() for output in lab.call("reference_src", "the reference", lab.reference, self._sample.args)
        )
        self._sample.restore()
        found = subjects_of(lab, self._sample)
        self._mutants: dict[str, Subject] = {entry.name: entry for entry in found if entry.kind == "mutant"}

    def failure(self, name: str) -> str:
        """What a mutant raises; empty if it returns, is not known here, or takes too long to say."""
        subject = self._mutants.get(name)
        if subject is None:
            return ""
        try:
            with deadline(MUTANT_S):
                subject.run(self._sample, Context(SEED, None))
        except SourceFailed as error:
            return "" if isinstance(error.__cause__, TooLong) else f"{error.message} (on the CPU)"
        except (Malformed, Unsupported, TooLong):
            return ""
        except Exception as error:
            return f"{type(error).__name__}: {error} (on the CPU)"
        finally:
            self._sample.restore(thorough=False)
        return ""
