"""Grade attacks one by one and judge what came of each: its status, its gain, and what it left or reached outside.

A status alone does not say that an attack failed: one that reads a hidden file may then return honest outputs. So every
grading has bait around it. Hidden files hold a secret, prized files hold known bytes, a directory must stay empty, and
an attack that reaches something forbidden prints a line `BREACH ...`; it is our own red team, so it may be believed in
what it admits. What it could deny is looked at from outside.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from taskfactory.errors import InfrastructureError, TaskfactoryError
from taskfactory.grader import nursery
from taskfactory.grader.confine import remove_scratch
from taskfactory.grader.processes import descendants, has_ended
from taskfactory.grader.result import Result, Status, geometric_mean
from taskfactory.grader.table import describe_failure, result_table, summary
from taskfactory.grader.task import Task
from taskfactory.grading import grade_submission
from taskfactory.redteam.corpus import Attack
from taskfactory.redteam.submission import compose, facts_of

_PRIZED = {
    "result.json": '{"status": "incorrect"}\n',
    "reward.json": '{"reward": 0.0}\n',
    "reward-details.json": "{}\n",
    "manifest.json": '{"files": {}}\n',
    "triton-cache.json": "{}\n",
    "sitecustomize.py": "",
}


@dataclass
class Outcome:
    """What came of one attack or control."""

    name: str
    kind: str
    control: bool
    status: str
    """The grader's status; empty if it was not run."""
    expected: list[str]
    verdict: str
    """"held", "broken", "open" (a known weakness, still there) or "skipped"."""
    message: str = ""
    gain: float | None = None
    """Score over the honest score, minus 1; None where nothing is timed."""
    allowance: float | None = None
    """The gain that delta allows."""
    breaches: list[str] = field(default_factory=list)
    duration_s: float = 0.0


@dataclass
class Bait:
    """Files around a grading that an attack must not read, change or add to."""

    folder: Path
    secret: str
    hidden: list[str]
    prized: list[str]
    outside: str
    temporary: Path
    """Where the grading makes its temporary files; nothing may be left in it."""

    @classmethod
    def lay(cls, folder: Path) -> Bait:
        """Make them in a fresh folder."""
        secret = f"secret-{secrets.token_hex(16)}"
        hidden = [folder / "hidden-tests.json", folder / "solution.py"]
        for path in hidden:
            path.write_text(f"# {secret}\n")
        prized = []
        for name, text in _PRIZED.items():
            path = folder / "prized" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            prized.append(str(path))
        outside = folder / "outside"
        outside.mkdir()
        temporary = folder / "temporary"
        temporary.mkdir()
        return cls(folder, secret, [str(path) for path in hidden], prized, str(outside), temporary)

    def disturbed(self) -> list[str]:
        """What is no longer as it was laid."""
        found = [f"{Path(path).name} was changed" for path in self.prized if not _holds(path, _PRIZED)]
        found += [f"{Path(path).name} was changed" for path in self.hidden if self.secret not in _text(path)]
        found += [f"{name} appeared outside" for name in os.listdir(self.outside)]
        for path in self.temporary.iterdir():
            found.append(f"{path.name} was left behind")
            remove_scratch(str(path))
        extra = set(os.listdir(self.folder / "prized")) - set(_PRIZED)
        return found + [f"{name} appeared among the results" for name in sorted(extra)]


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _holds(path: str, contents: dict[str, str]) -> bool:
    try:
        return Path(path).read_text("utf-8", "replace") == contents[Path(path).name]
    except OSError:
        return False


def missing(attack: Attack, device: str) -> str:
    """What a machine lacks to run an attack, or an empty string."""
    if "cuda" in attack.needs and device != "cuda":
        return "needs a CUDA device"
    for program in ("nvcc", "gcc"):
        if program in attack.needs and shutil.which(program) is None:
            return f"needs {program}"
    if "triton" in attack.needs and not sys.platform.startswith("linux"):
        return "needs Triton"
    return ""


def run_attack(
    attack: Attack, task_dir: Path, task: Task, honest: str, device: str, against: Result | None = None, **options: Any
) -> Outcome:
    """Grade one attack and judge it.

    Args:
        task_dir: the task's directory, hidden shapes included.
        honest: source of the implementation it is wrapped around.
        device: "cuda" or "cpu".
        against: the honest implementation's own grading; without it no gain is computed.
        **options: fields of the grader's `Job`; the attack's own OPTIONS win.
    """
    expected = [status.value for status in attack.statuses(device)]
    outcome = Outcome(attack.name, attack.kind, attack.control, "", expected, "skipped")
    lacking = missing(attack, device)
    if lacking:
        outcome.message = lacking
        return outcome
    result, printed, found = _graded(attack, task_dir, task, honest, device, options)
    outcome.status, outcome.message, outcome.duration_s = result.status.value, result.message, result.duration_s
    outcome.breaches = found + [line for line in printed.splitlines() if line.startswith("BREACH ")]
    outcome.breaches += misshown(result, task)
    if against is not None:
        outcome.gain, outcome.allowance = gain_over(result, against)
    outcome.verdict = judge(outcome, attack)
    return outcome


def misshown(result: Result, task: Task) -> list[str]:
    """What is wrong with the result as a person sees it: it cannot be printed, or it commands the terminal."""
    try:
        text = "\n".join([result_table(result, task), describe_failure(result, private=True), summary(result)])
    except Exception as error:
        return [f"the result cannot be printed: {error!r}"]
    commands = sorted({repr(c) for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"})
    return [f"the printed result contains control characters: {', '.join(commands)}"] if commands else []


def judge(outcome: Outcome, attack: Attack) -> str:
    """ "held" if the status is expected, nothing was reached outside and nothing gained; else "broken" or "open"."""
    gained = outcome.gain is not None and outcome.allowance is not None and outcome.gain > outcome.allowance
    if outcome.status in outcome.expected and not outcome.breaches and (attack.control or not gained):
        return "held"
    return "open" if attack.open else "broken"


def gain_over(result: Result, honest: Result) -> tuple[float | None, float | None]:
    """(score over the honest score - 1, what delta allows); None where either has no score."""
    if result.score is None or honest.score is None:
        return None, None
    shares = [1 + shape.delta_ms / shape.score_ms for shape in honest.shapes if shape.delta_ms and shape.score_ms]
    return result.score / honest.score - 1, geometric_mean(shares) - 1 if shares else 0.0


def _graded(
    attack: Attack, task_dir: Path, task: Task, honest: str, device: str, options: dict[str, Any]
) -> tuple[Result, str, list[str]]:
    before = descendants(os.getpid())
    with tempfile.TemporaryDirectory(prefix="taskfactory-") as folder:
        bait = Bait.lay(Path(folder))
        hidden = [*bait.hidden, *(str(path.resolve()) for path in sorted(task_dir.glob("*")) if path.is_file())]
        facts = facts_of(task, os.getpid(), hidden, bait.prized, bait.outside, bait.secret)
        submission = Path(folder, task.module)
        submission.write_text(compose(attack, honest, task, facts), encoding="utf-8")
        os.environ["TASKFACTORY_BAIT"] = bait.secret
        usual, tempfile.tempdir = tempfile.tempdir, str(bait.temporary)
        crash = ""
        try:
            result, printed = grade_submission(
                task_dir, submission, "grade", device, **{"progress": None, **options, **attack.options}
            )
        except TaskfactoryError:
            raise
        except Exception as error:  # whatever a submission does to the grader is an outcome
            result, printed, crash = _nothing(task), "", f"the grader crashed: {error!r:.200}"
        finally:
            tempfile.tempdir = usual
            del os.environ["TASKFACTORY_BAIT"]
        found = bait.disturbed() + ([crash] if crash else [])
    # A zombie may have come from elsewhere: orphans of whatever else ran below this process end up as its children.
    left = {pid for pid in descendants(os.getpid()) - before - nursery.pids() if not has_ended(pid)}
    return result, printed, found + [f"process {pid} is left" for pid in sorted(left)]


def _nothing(task: Task) -> Result:
    """What stands for the result of a grading that had none."""
    facts = (task.name, task.version, task.spec_digest, task.metric, "", "grade")
    return Result(*facts, Status.INFRASTRUCTURE_ERROR, message="no result")


SELFISH = ("resources", "processes")
"""Classes whose attacks take the machine away from whatever runs beside them."""


def runs_beside_others(attack: Attack, device: str) -> bool:
    """Whether an attack's outcome says as much if other gradings share the machine.

    On a device not if it may pass, for then it has a time; one that must fail and passes is broken at any time.
    """
    timed = device == "cuda" and Status.PASSED in attack.expected
    return not timed and attack.kind not in SELFISH


def run_campaign(
    attacks: list[Attack], task_dir: Path, task: Task, honest: str, device: str,
    progress: Callable[[str, int, int], None], jobs: int = 1, **options: Any,
) -> tuple[Result, list[Outcome]]:  # fmt: skip
    """Grade the honest implementation once, then every attack around it.

    Args:
        progress: called with a name, how many attacks are done and how many there are.
        jobs: how many attacks run at once, of those that may; the others run alone, after them.

    Raises:
        InfrastructureError: the honest implementation does not pass, so that nothing can be said.
    """
    progress("honest", 0, len(attacks))
    with tempfile.TemporaryDirectory(prefix="taskfactory-") as folder:
        submission = Path(folder, task.module)
        submission.write_text(honest, encoding="utf-8")
        against, _ = grade_submission(task_dir, submission, "grade", device, None, **options)
    if against.status is not Status.PASSED:
        raise InfrastructureError(
            f"the honest implementation of {task.name} does not pass here: {against.status.value}: {against.message}"
        )
    beside = [attack for attack in attacks if jobs > 1 and runs_beside_others(attack, device)]
    outcomes: dict[str, Outcome] = {}
    if beside:
        # A process each: a grading kills what its own process has started, and changes this one's environment.
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            waiting = {
                pool.submit(run_attack, attack, task_dir, task, honest, device, against, **options): attack.name
                for attack in beside
            }
            for done in as_completed(waiting):
                progress(waiting[done], len(outcomes), len(attacks))
                outcomes[waiting[done]] = done.result()
    for attack in attacks:
        if attack.name not in outcomes:
            progress(attack.name, len(outcomes), len(attacks))
            outcomes[attack.name] = run_attack(attack, task_dir, task, honest, device, against, **options)
    return against, [outcomes[attack.name] for attack in attacks]
