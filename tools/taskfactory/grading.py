"""Grade submissions from a checkout or an installed package: render the task, run the grader, keep its result.

The grader is the one that goes into bundles; this module only gives it a task directory and turns its errors into ours.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskfactory.errors import InfrastructureError, SpecError, UsageError

if TYPE_CHECKING:
    from taskfactory.grader.result import Result
    from taskfactory.grader.supervisor import Progress
    from taskfactory.grader.task import Task


@contextmanager
def task_directory(task: str) -> Iterator[Path]:
    """A directory with the hidden task, graded shapes included, for a task name, a spec file or a built bundle.

    Raises:
        UsageError: there is no such task. SpecError: its spec has errors.
    """
    path = Path(task)
    for candidate in (path / "tests", path):
        if (candidate / "task.json").is_file():
            yield candidate
            return
    from taskfactory.checks import check_spec
    from taskfactory.load import load_spec
    from taskfactory.paths import resolve_spec
    from taskfactory.render import task_files

    file = load_spec(resolve_spec(task))
    errors = [finding for finding in check_spec(file) if finding.severity == "error"]
    if errors:
        raise SpecError(errors)
    with tempfile.TemporaryDirectory(prefix="taskfactory-") as folder:
        for name, text in task_files(file).items():
            Path(folder, name).write_text(text, encoding="utf-8")
        yield Path(folder)


def grade_submission(
    task_dir: Path, submission: Path, mode: str, device: str, progress: Progress | None = None, **options: Any
) -> tuple[Result, str]:
    """Run the grader; see `grader.supervisor.grade`.

    Raises:
        UsageError: the submission file cannot be read, or the device is not there.
        InfrastructureError: not on Linux.
    """
    if not sys.platform.startswith("linux"):
        raise InfrastructureError("grading needs Linux (memfd, pidfd, eventfd); validate, build, show and list do not")
    from taskfactory.grader.supervisor import cuda_is_there, grade
    from taskfactory.grader.task import TaskError

    if device == "cuda" and not cuda_is_there():
        raise InfrastructureError("no CUDA device here; `--device cpu` verifies without timing")
    try:
        return grade(task_dir, submission, mode, device, progress, **options)
    except TaskError as error:
        raise UsageError(str(error)) from None


def load(task_dir: Path) -> Task:
    """The facts of a task directory.

    Raises:
        UsageError: it holds no usable task.
    """
    from taskfactory.grader.task import TaskError, load_task

    try:
        return load_task(task_dir)
    except TaskError as error:
        raise UsageError(str(error)) from None
