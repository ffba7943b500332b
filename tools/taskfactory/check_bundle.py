"""Try a bundle out with Harbor itself: lint, parse, oracle and no-op, and on request altered submissions.

Harbor runs in a process and, if need be, in a Python of its own; this module imports nothing of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskfactory.altered import CHEATS, altered
from taskfactory.errors import InfrastructureError, UsageError
from taskfactory.registry import content_digest

ENVIRONMENT = "taskfactory.harbor_env:BwrapEnvironment"
_PARSE = """
import json, pathlib, sys
from harbor.models.task.task import Task
from harbor.publisher.packager import Packager
folder = pathlib.Path(sys.argv[1])
task = Task(folder)
print(json.dumps({"name": task.name, "digest": "sha256:" + Packager.compute_content_hash(folder)[0]}))
"""


@dataclass(frozen=True)
class Gate:
    """One thing that was tried: whether it ended as it must, and what was seen."""

    name: str
    passed: bool
    seen: str
    reward: float | None = None


@dataclass(frozen=True)
class Setup:
    """How to run Harbor.

    `python` is the interpreter inside the sandbox of our own environment; it must have torch. `options` are words for
    the grader, given to the verifier. `jobs` is where Harbor leaves its records, or None to throw them away.
    """

    harbor: Path
    environment: str = ENVIRONMENT
    python: str = sys.executable
    options: str = ""
    gpus: int | None = None
    jobs: Path | None = None
    extra: Sequence[str] = field(default=())


def harbor_program(given: str | None = None) -> Path:
    """The `harbor` command: the one given, else the one beside this Python, else the one on the path.

    Raises:
        InfrastructureError: there is none.
    """
    beside = Path(sys.executable).parent / "harbor"
    found = given or (str(beside) if beside.is_file() else shutil.which("harbor"))
    if not found or not Path(found).is_file():
        raise InfrastructureError(
            f"{given or 'harbor'}: not found; pip install 'taskfactory[harbor]' into a Python of 3.12 or later, "
            "or name it with --harbor"
        )
    return Path(found)


def check_bundle(
    bundle: Path, setup: Setup, *, attacks: bool = False, report: Callable[[Gate], None] = lambda gate: None
) -> list[Gate]:
    """Run every gate, also after one that failed.

    Args:
        bundle: a built bundle with a solution.
        setup: how to run Harbor.
        attacks: try the altered submissions too.
        report: called with each gate as soon as it is known.

    Raises:
        UsageError: not a bundle, or one without a solution. InfrastructureError: Harbor does not run.
    """
    try:
        facts = json.loads((bundle / "tests" / "task.json").read_text("utf-8"))
        oracle = (bundle / "solution" / facts["module"]).read_text("utf-8")
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{bundle}: not a bundle with a solution: {error}") from None
    gates: list[Gate] = []

    def add(gate: Gate) -> None:
        gates.append(gate)
        report(gate)

    add(lint(bundle, setup))
    add(parse(bundle, setup))
    with tempfile.TemporaryDirectory(prefix="taskfactory-check-") as scratch:
        folder = Path(scratch)
        submissions = {"oracle": oracle} | (altered(oracle, facts["func"]) if attacks else {})
        for name, text in submissions.items():
            shutil.copytree(bundle, folder / "tasks" / name)
            (folder / "tasks" / name / "solution" / facts["module"]).write_text(text, encoding="utf-8")
        outcomes = run_harbor(folder / "tasks", "oracle", setup, folder / "oracle")
        (outcomes["no-op"],) = run_harbor(bundle, "nop", setup, folder / "nop").values()
        if setup.jobs is not None:
            for agent in ("oracle", "nop"):
                shutil.copytree(folder / agent, setup.jobs / f"{bundle.name}-{agent}", dirs_exist_ok=True)
    for gate in judge(outcomes):
        add(gate)
    return gates


def judge(outcomes: Mapping[str, Outcome]) -> Iterator[Gate]:
    """What each run's reward must be, given the others'.

    The oracle's lies above 0, the slow one's strictly between 0 and the oracle's, all others are 0.
    """
    best = outcomes["oracle"].reward
    for name, outcome in outcomes.items():
        reward = outcome.reward
        if reward is None:
            yield Gate(name, False, outcome.message)
        elif name == "oracle":
            yield Gate(name, 0.0 < reward <= 1.0, f"reward {reward:.4g}, must be above 0", reward)
        elif name == "slow":
            inside = best is not None and 0.0 < reward < best
            yield Gate(name, inside, f"reward {reward:.4g}, must lie between 0 and the oracle's", reward)
        else:
            assert name in (*CHEATS, "no-op")
            yield Gate(name, reward == 0.0, f"reward {reward:.4g}, must be 0 ({outcome.message})", reward)


@dataclass(frozen=True)
class Outcome:
    """A trial's reward, or None, and the verifier's or Harbor's own words."""

    reward: float | None
    message: str


def lint(bundle: Path, setup: Setup) -> Gate:
    """`harbor lint` with every rule; nothing may be found."""
    done = _call([str(setup.harbor), "lint", "--select", "ALL", "--json", str(bundle)])
    try:
        findings: list[dict[str, Any]] = json.loads(done.stdout)
    except ValueError:
        return Gate("lint", False, _last_line(done))
    seen = "; ".join(f"{f.get('rule')}: {f.get('message')}" for f in findings) or "no findings"
    return Gate("lint", not findings and done.returncode == 0, seen)


def parse(bundle: Path, setup: Setup) -> Gate:
    """Harbor reads the task, and its content hash is the one `taskfactory registry` writes."""
    done = _call([str(setup.harbor.parent / "python"), "-c", _PARSE, str(bundle)])
    try:
        read = json.loads(done.stdout)
    except ValueError:
        return Gate("parse", False, _last_line(done))
    ours = content_digest(bundle)
    if read["digest"] != ours:
        return Gate("parse", False, f"Harbor's content hash is {read['digest']}, ours {ours}")
    return Gate("parse", True, f"{read['name']}, {ours[:19]}")


def run_harbor(tasks: Path, agent: str, setup: Setup, jobs: Path) -> dict[str, Outcome]:
    """Run one agent on a task or a folder of tasks, one after the other; the outcomes by task folder's name.

    Raises:
        InfrastructureError: Harbor leaves no record of a trial.
    """
    words = [str(setup.harbor), "run", "--path", str(tasks), "--agent", agent, "--env", setup.environment]
    words += ["--jobs-dir", str(jobs), "--job-name", "job", "--n-concurrent", "1", "--yes", "--quiet", *setup.extra]
    if setup.environment == ENVIRONMENT:
        words += ["--ek", f"python={setup.python}"]
    if setup.options:
        words += ["--ve", f"TASKFACTORY_GRADE_OPTIONS={setup.options}"]
    if setup.gpus is not None:
        words += ["--override-gpus", str(setup.gpus)]
    done = _call(words)
    records = sorted(jobs.glob("job/*/result.json"))
    if not records:
        raise InfrastructureError(f"harbor run left no record: {_last_line(done)}")
    return dict(_outcome(path) for path in records)


def _outcome(path: Path) -> tuple[str, Outcome]:
    record = json.loads(path.read_text("utf-8"))
    name = Path(record["task_id"]["path"]).name
    rewards = (record.get("verifier_result") or {}).get("rewards") or {}
    if set(rewards) == {"reward"}:
        try:
            message = json.loads((path.parent / "verifier" / "reward-details.json").read_text("utf-8"))["status"]
        except (OSError, ValueError, KeyError):
            message = "without details"
        return name, Outcome(float(rewards["reward"]), message)
    error = record.get("exception_info") or {}
    said = path.parent / "verifier" / "test-stdout.txt"
    tail = said.read_text("utf-8", "replace").strip()[-300:] if said.is_file() else ""
    return name, Outcome(None, f"no reward: {error.get('exception_message', rewards)} {tail}".strip())


def _call(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program of Harbor's Python with our package on its path, and without looking things up on the network."""
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "COLUMNS": "200"}
    return subprocess.run(
        words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment, errors="replace"
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
    return lines[-1]
