"""The exceptions a caller of this package may want to catch, and the exit code each one becomes.

    TaskfactoryError
    ├── UsageError            2  a wrong argument: no such task, a file that is in the way
    ├── SpecError             2  the author's spec is wrong; carries every finding
    │   └── FormulaError      2  a formula of the spec cannot be evaluated
    └── InfrastructureError   3  the machine is not able to do this: no torch, no device, no compiler

A submission that fails is not an exception: it is a verdict, and the command that reports it exits with 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskfactory.findings import Finding


class TaskfactoryError(Exception):
    """Base of all errors raised on purpose; `str(error)` is one message for a person."""

    exit_code = 3


class UsageError(TaskfactoryError):
    """The command or function was asked for something that does not exist or is not allowed."""

    exit_code = 2


class SpecError(TaskfactoryError):
    """A spec is wrong. `findings` holds everything that is wrong with it, in file order."""

    exit_code = 2

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings: tuple[Finding, ...] = tuple(findings)
        super().__init__("\n".join(finding.headline() for finding in self.findings) or "the spec is not valid")


class FormulaError(SpecError):
    """A formula stopped at a line: something outside the allowed subset, a failed operation, or a bound."""

    @property
    def finding(self) -> Finding:
        """The single finding this error stands for."""
        return self.findings[0]


class InfrastructureError(TaskfactoryError):
    """The environment cannot do what was asked, and neither the spec nor a submission is to blame."""

    exit_code = 3
