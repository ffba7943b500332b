"""Grade a submission's text against a built bundle on this machine, through the bundle's own `tests/test.sh`.

The exporters to agent frameworks use this: the submission leaves the solver's sandbox as text, and neither the grader
nor the hidden shapes ever enter it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskfactory.errors import InfrastructureError, UsageError

PYTHON_VARIABLE = "TASKFACTORY_PYTHON"
"""Names the interpreter that grades; it must have torch. Without it, the current one grades."""
BUNDLES_VARIABLE = "TASKFACTORY_BUNDLES"
"""Names the folder of built bundles; without it `build`."""


@dataclass(frozen=True)
class Verified:
    """A reward in [0, 1] and the public form of the result."""

    reward: float
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """Status and message on one line."""
        return ": ".join(filter(None, [str(self.details.get("status", "")), str(self.details.get("message", ""))]))


def verify(bundle: Path, submission: bytes | None, *, options: str = "") -> Verified:
    """Run the bundle's verifier.

    Args:
        bundle: a built bundle.
        submission: content of the submission file, or None if the solver left none.
        options: further words for the grader, such as `--rehearse`.

    Raises:
        InfrastructureError: the verifier left no reward; its last words are in the message.
    """
    python = Path(os.environ.get(PYTHON_VARIABLE, sys.executable)).absolute()
    with tempfile.TemporaryDirectory(prefix="taskfactory-verify-") as scratch:
        file, out = Path(scratch, module_of(bundle)), Path(scratch, "out")
        out.mkdir()
        if submission is not None:
            file.write_bytes(submission)
        environment = os.environ | {
            "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TASKFACTORY_SUBMISSION": str(file),
            "TASKFACTORY_OUT": str(out),
            "TASKFACTORY_GRADE_OPTIONS": options,
        }
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            ["sh", str(bundle / "tests" / "test.sh")],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        try:
            reward = float(json.loads((out / "reward.json").read_text("utf-8"))["reward"])
            details = json.loads((out / "reward-details.json").read_text("utf-8"))
        except (OSError, ValueError, KeyError):
            said = (done.stderr.strip() or done.stdout.strip())[-500:]
            raise InfrastructureError(f"the verifier of {bundle.name} left no reward: {said}") from None
    return Verified(reward, details)


def module_of(bundle: Path) -> str:
    """The file name of a bundle's submission.

    Raises:
        UsageError: not a bundle.
    """
    try:
        return str(json.loads((bundle / "tests" / "task.json").read_text("utf-8"))["module"])
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{bundle}: not a bundle: {error}") from None


def bundle_of(task: str) -> Path:
    """The bundle of a task, built or brought up to date if a spec of that name is known.

    Raises:
        UsageError: there is neither a bundle nor a spec of that name. SpecError: the spec has errors.
    """
    from taskfactory.bundle import BASE_IMAGE, build, unchanged
    from taskfactory.paths import resolve_spec

    given = os.environ.get(BUNDLES_VARIABLE)
    if given is not None:
        module_of(Path(given, task))
        return Path(given, task).absolute()
    out = Path("build")
    path = resolve_spec(task)
    built = unchanged(path, out, image=BASE_IMAGE)
    if built is None:
        from taskfactory.checks import check_spec
        from taskfactory.errors import SpecError
        from taskfactory.load import load_spec

        file = load_spec(path)
        errors = [finding for finding in check_spec(file) if finding.severity == "error"]
        if errors:
            raise SpecError(errors)
        built = build(file, out, image=BASE_IMAGE)
    return built.path.absolute()


def known_tasks() -> list[str]:
    """The names that `bundle_of` takes."""
    given = os.environ.get(BUNDLES_VARIABLE)
    if given is not None:
        return sorted(path.parent.parent.name for path in Path(given).glob("*/tests/task.json"))
    from taskfactory.paths import task_names

    return task_names()


def app_files(bundle: Path) -> dict[str, Path]:
    """The solver's files by path relative to /app."""
    root = bundle / "environment" / "app"
    paths = (path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(root).as_posix(): path for path in paths}


def local_instruction(bundle: Path) -> str:
    """The instruction for a solver whose working directory stands in for /app."""
    text = (bundle / "instruction.md").read_text("utf-8")
    return f"{text}\nHere your working directory stands in for `/app`: use relative paths.\n"
