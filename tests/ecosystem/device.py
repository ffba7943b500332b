"""The gates of `check-bundle --attacks` without Harbor: every bundle's own `tests/test.sh`, on the machine at hand.

For machines with a GPU on which Harbor cannot be installed. It needs no package beside this one; the interpreter that
grades (`TASKFACTORY_PYTHON`, or this one) needs torch and triton. From the root of the repository:

    PYTHONPATH=tools python3 -m taskfactory build
    python3 tests/ecosystem/device.py --out device.jsonl --limit-s 420 build/*/

The second line again, until it exits with something else than 3: what FILE holds already, of the same bundle and the
same submission, is not graded again, so a machine that is lent for minutes gets through in a few calls. Without
`--limit-s` it goes on to the end. On a CPU, `--options=--rehearse` times one shape (see docs/ecosystem.md).

Prints one line a gate, as soon as a bundle is through. Exits with 0 if all gates passed, 1 if one failed, 3 if
something is left to do: time is up, or the machine could not measure, twice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from taskfactory.altered import altered
from taskfactory.check_bundle import Outcome, judge
from taskfactory.errors import InfrastructureError
from taskfactory.fleet.leases import first_gpu
from taskfactory.registry import content_digest
from taskfactory.verifying import verify

ATTEMPTS = 2
"""How often a submission is tried in one call where the machine cannot measure."""
FIRST_GUESS_S = 90.0
"""How long a submission is thought to take before anything is known."""
_KEPT = ("status", "message", "score", "score_interval", "metric", "calls_verified", "warnings", "duration_s")

Row = dict[str, Any]


def submissions(bundle: Path) -> dict[str, str]:
    """Source of each submission by name: the oracle, the untouched starter, a slow one and three that cheat."""
    facts = json.loads((bundle / "tests" / "task.json").read_text("utf-8"))
    oracle = (bundle / "solution" / facts["module"]).read_text("utf-8")
    starter = (bundle / "environment" / "app" / facts["module"]).read_text("utf-8")
    return {"oracle": oracle, "no-op": starter, **altered(oracle, facts["func"])}


class Gates:
    """The gradings of one call, and what earlier ones left in a file."""

    def __init__(self, options: str, out: Path | None, limit_s: float | None) -> None:
        self.options, self.out = options, out
        self.deadline = None if limit_s is None else time.monotonic() + limit_s
        lines = out.read_text("utf-8").splitlines() if out is not None and out.is_file() else []
        self.rows: list[Row] = [json.loads(line) for line in lines]

    def bundle(self, path: Path) -> list[str]:
        """Grade what is missing of one bundle; returns "ok", "FAIL" or "left" for each gate, and prints them."""
        outcomes, seconds = {}, {}
        digest = content_digest(path)
        for name, text in submissions(path).items():
            row = self._row(path, digest, name, text)
            if row is not None:
                outcomes[name], seconds[name] = Outcome(row["reward"], row["status"]), row["seconds"]
        words = []
        gates = {gate.name: gate for gate in judge(outcomes)} if "oracle" in outcomes else {}
        for name in submissions(path):
            gate = gates.get(name)
            words.append("left" if gate is None else "ok" if gate.passed else "FAIL")
            took, seen = (f"{seconds[name]:5.0f} s", gate.seen) if gate is not None else ("      -", "not yet")
            print(f"{words[-1]:<4}  {path.name:<31} {name:<13} {took}  {seen}", flush=True)
        return words

    def _row(self, bundle: Path, digest: str, name: str, text: str) -> Row | None:
        """The record of one submission, from the file or made now; None where it is left for another call."""
        key = {"bundle": bundle.name, "digest": digest, "submission": name, "options": self.options}
        key["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        known = [row for row in self.rows if key.items() <= row.items() and row["reward"] is not None]
        if known:
            return known[-1]
        for _ in range(ATTEMPTS):
            if self.deadline is not None and time.monotonic() + self._guess(bundle.name, name) > self.deadline:
                return None
            row = key | self._graded(bundle, text)
            self.rows.append(row)
            if self.out is not None:
                with self.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            if row["reward"] is not None:
                return row
            print(f"no reward: {bundle.name} {name}: {row['message']}", file=sys.stderr, flush=True)
        return None

    def _guess(self, bundle: str, name: str) -> float:
        """Seconds that a submission may take: more than any of its kind did, and the slow one twice its oracle's."""
        seconds = [row["seconds"] for row in self.rows if row["submission"] == name] or [FIRST_GUESS_S]
        if name == "slow":
            seconds += [2 * r["seconds"] for r in self.rows if (r["bundle"], r["submission"]) == (bundle, "oracle")]
        return 1.2 * max(seconds)

    def _graded(self, bundle: Path, text: str) -> Row:
        started = time.monotonic()
        try:
            verified = verify(bundle, text.encode(), options=self.options)
        except InfrastructureError as error:
            found: Row = {"reward": None, "status": "infrastructure_error", "message": str(error)}
        else:
            details = verified.details
            found = {"reward": verified.reward, **{name: details.get(name) for name in _KEPT}}
            found["tier"] = details.get("confinement", {}).get("tier")
            found["environment"] = details.get("environment", {})
        return found | {"seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    """Every gate of every bundle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--options", default="", help="further words for the grader, such as --rehearse")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="keep a line of JSON for each grading, and go on from it"
    )
    parser.add_argument(
        "--limit-s", type=float, metavar="S", help="start nothing that may not end within so many seconds"
    )
    arguments = parser.parse_args()
    bundles = [path for path in arguments.bundles if (path / "solution").is_dir()]
    for path in sorted({*arguments.bundles} - {*bundles}):
        print(f"{path}: not a bundle with a solution; left out", file=sys.stderr)
    gates = Gates(arguments.options, arguments.out, arguments.limit_s)
    gpu = Path("/dev/nvidiactl").exists()
    with first_gpu(True, lambda text: print(text, file=sys.stderr)) if gpu else nullcontext():
        words = [word for path in bundles for word in gates.bundle(path.absolute())]
    said = {"ok": "passed", "FAIL": "failed", "left": "left"}
    counted = ", ".join(f"{words.count(word)} {what}" for word, what in said.items())
    print(f"{len(words)} gates: {counted}", file=sys.stderr)
    return 1 if "FAIL" in words else 3 if "left" in words or not words else 0


if __name__ == "__main__":
    sys.exit(main())
