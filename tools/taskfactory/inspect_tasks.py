"""The tasks for Inspect AI, as `taskfactory/<task>`; found through the package's entry point.

    inspect eval taskfactory/based-forward --model ... -T sandbox=docker
    inspect eval taskfactory/based-forward --model mockllm/model -T sandbox=local -T oracle=true -T options=--rehearse

With `sandbox=docker` solver and verifier are two containers of one compose file, made from the bundle's Dockerfiles.
With `sandbox=local` the solver works in a temporary folder with the rights of whoever runs Inspect, and the verifier on
this machine, in the interpreter that TASKFACTORY_PYTHON names.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import bash
from inspect_ai.util import sandbox

from taskfactory.errors import UsageError
from taskfactory.grader.task import MAX_SUBMISSION_BYTES
from taskfactory.verifying import Verified, app_files, bundle_of, known_tasks, local_instruction, module_of, verify

_COMMAND_SECONDS = 1200

_COMPOSE = """\
services:
  default:
    build: {environment}
    command: tail -f /dev/null
    init: true
    user: solver
    network_mode: none
{gpu}
  verifier:
    build: {tests}
    command: tail -f /dev/null
    init: true
    network_mode: none
{gpu}
"""
_GPU = """\
    deploy:
      resources:
        reservations:
          devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]
"""


def make_task(name: str, where: str, oracle: bool, options: str) -> Task:
    """One task of one sample.

    Args:
        name: the task's name.
        where: "local" or "docker".
        oracle: let the bundle's own solution answer instead of a model.
        options: further words for the grader, such as `--rehearse`.

    Raises:
        UsageError: an unknown task or sandbox, or an oracle where the bundle has none.
    """
    bundle = bundle_of(name)
    sample = Sample(input=local_instruction(bundle), id=name, metadata={"bundle": str(bundle)})
    if where == "local":
        sample.files = {relative: str(path) for relative, path in app_files(bundle).items()}
        environment: Any = "local"
    elif where == "docker":
        sample.input = (bundle / "instruction.md").read_text("utf-8")
        environment = ("docker", str(compose_file(bundle, gpu="--rehearse" not in options.split())))
    else:
        raise UsageError(f"sandbox={where}: must be local or docker")
    answering: Any = answer_with_oracle(str(bundle)) if oracle else react(tools=[bash(timeout=_COMMAND_SECONDS)])
    return Task(
        dataset=[sample], solver=answering, scorer=speed(str(bundle), where, options), sandbox=environment,
        name=name, version=json.loads((bundle / "tests" / "task.json").read_text("utf-8"))["version"],
    )  # fmt: skip


def compose_file(bundle: Path, *, gpu: bool) -> Path:
    """A compose file with the solver's and the verifier's container."""
    text = _COMPOSE.format(
        environment=json.dumps(str(bundle / "environment")),
        tests=json.dumps(str(bundle / "tests")),
        gpu=_GPU if gpu else "",
    )
    path = Path(tempfile.mkdtemp(prefix="taskfactory-inspect-"), "compose.yaml")
    path.write_text(text, encoding="utf-8")
    return path


@solver
def answer_with_oracle(bundle: str) -> Solver:
    """Puts the bundle's own solution where the submission belongs; asks no model."""
    module = module_of(Path(bundle))
    solution = Path(bundle, "solution", module)
    if not solution.is_file():
        raise UsageError(f"{bundle}: has no solution")

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().write_file(module, solution.read_text("utf-8"))
        return state

    return solve


@scorer(metrics=[mean(), stderr()])
def speed(bundle: str, where: str, options: str) -> Scorer:
    """The verifier's reward, with the public result as metadata; a broken machine is an error, not a score."""
    folder = Path(bundle)
    module = module_of(folder)

    async def score(state: TaskState, target: Target) -> Score:
        submission = await _collect(module)
        if where == "docker":
            verified = await _verify_in_container(module, submission, options)
        else:
            verified = await asyncio.to_thread(verify, folder, submission, options=options)
        answer = submission.decode("utf-8", "replace") if submission is not None else ""
        return Score(
            value=verified.reward, answer=answer, explanation=verified.summary, metadata={"details": verified.details}
        )

    return score


async def _collect(module: str) -> bytes | None:
    try:
        content: bytes = await sandbox().read_file(module, text=False)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return None
    return content[: MAX_SUBMISSION_BYTES + 1]


async def _verify_in_container(module: str, submission: bytes | None, options: str) -> Verified:
    verifier = sandbox("verifier")
    if submission is not None:
        await verifier.write_file(f"/app/{module}", submission)
    done = await verifier.exec(["sh", "/tests/test.sh"], env={"TASKFACTORY_GRADE_OPTIONS": options})
    try:
        reward = json.loads(await verifier.read_file("/logs/verifier/reward.json"))["reward"]
    except FileNotFoundError:
        raise RuntimeError(f"the verifier left no reward: {done.stderr[-500:]}") from None
    return Verified(float(reward), json.loads(await verifier.read_file("/logs/verifier/reward-details.json")))


def _define(name: str) -> Callable[..., Any]:
    def kernel(sandbox: str = "docker", oracle: bool = False, options: str = "") -> Task:
        return make_task(name, sandbox, oracle, options)

    registered: Callable[..., Any] = task(name=name)(kernel)
    return registered


TASKS = {name: _define(name) for name in known_tasks()}
"""Every known task's function, by name."""
