"""The gates of `check-bundle --attacks` without Harbor: every bundle's own `tests/test.sh`, on the machine at hand.

    python tests/ecosystem/device.py build/*/

For machines with a GPU on which Harbor cannot be installed. Prints one line a submission; exits with 1 if a gate fails.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from taskfactory.altered import altered
from taskfactory.check_bundle import Outcome, judge
from taskfactory.errors import InfrastructureError
from taskfactory.verifying import verify


def gates(bundle: Path, options: str) -> int:
    """Run every submission of one bundle; returns how many gates failed."""
    facts = json.loads((bundle / "tests" / "task.json").read_text("utf-8"))
    oracle = (bundle / "solution" / facts["module"]).read_text("utf-8")
    starter = (bundle / "environment" / "app" / facts["module"]).read_text("utf-8")
    outcomes, seconds = {}, {}
    for name, text in {"oracle": oracle, "no-op": starter, **altered(oracle, facts["func"])}.items():
        started = time.monotonic()
        try:
            verified = verify(bundle, text.encode(), options=options)
            outcomes[name] = Outcome(verified.reward, verified.details["status"])
        except InfrastructureError as error:
            outcomes[name] = Outcome(None, str(error))
        seconds[name] = time.monotonic() - started
    failed = 0
    for gate in judge(outcomes):
        failed += not gate.passed
        word = "ok  " if gate.passed else "FAIL"
        print(f"{word}  {bundle.name:<31} {gate.name:<13} {seconds[gate.name]:5.0f} s  {gate.seen}", flush=True)
    return failed


if __name__ == "__main__":
    chosen = os.environ.get("TASKFACTORY_GRADE_OPTIONS", "")
    sys.exit(1 if sum(gates(Path(path).absolute(), chosen) for path in sys.argv[1:]) else 0)
