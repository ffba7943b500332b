"""The tree of exceptions and the exit codes behind it."""

from __future__ import annotations

import pytest

import taskfactory
from taskfactory.errors import FormulaError, InfrastructureError, SpecError, TaskfactoryError, UsageError
from taskfactory.findings import Finding


def test_exit_codes():
    assert (UsageError.exit_code, SpecError.exit_code, FormulaError.exit_code, InfrastructureError.exit_code) == (
        2,
        2,
        2,
        3,
    )
    for kind in (UsageError, SpecError, InfrastructureError):
        assert issubclass(kind, TaskfactoryError)


def test_a_spec_error_carries_and_prints_its_findings():
    finding = Finding("TF306", "error", "1.5 is too much", "a.py", 7, "tol")
    error = SpecError(iter([finding]))
    assert error.findings == (finding,)
    assert str(error) == "a.py:7: error TF306 tol: 1.5 is too much"
    assert FormulaError([finding]).finding is finding
    assert str(SpecError([]))


def test_names_are_looked_up_on_first_use():
    assert taskfactory.SpecError is SpecError
    assert taskfactory.TaskSpec.__name__ == "TaskSpec"
    assert set(taskfactory.__all__) >= {"TaskSpec", "SpecError", "UsageError"}
    with pytest.raises(AttributeError, match="nothing"):
        _ = taskfactory.nothing
