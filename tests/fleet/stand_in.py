"""Stand-ins for the grader, as workers run them: they notice when two work on one GPU, and answer at once.

What they return are INVENTED results; nothing is measured.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from taskfactory.grader.result import Result, Status
from taskfactory.grader.task import load_task


def _result(task_dir: Path, submission: Path, status: Status, message: str = "") -> Result:
    task = load_task(task_dir)
    digest = f"sha256:{hashlib.sha256(submission.read_bytes()).hexdigest()}"
    return Result(task.name, task.version, task.spec_digest, task.metric, digest, "grade", status, message)


def obedient(
    task_dir: Path, submission: Path, mode: str, device: str, progress: Any, **options: Any
) -> tuple[Result, str]:
    """Does what the submission's first line says; counts how often each submission was graded."""
    text = submission.read_text()
    word = text.split("\n")[0].removeprefix("# ").split()
    folder = Path(os.environ["STAND_IN_FOLDER"])
    with (folder / "graded.log").open("a") as log:
        log.write(f"{text.split()[-1]}\n")
    progress("verifying", 0, 1)
    if word[0] == "kill-worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if word[0] == "kill-worker-once":
        try:
            (folder / f"killed-{word[1]}").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])  # an orphan-to-be
            os.kill(os.getpid(), signal.SIGKILL)
    if word[0] == "hang":
        (folder / f"hanging-{word[1]}").write_text(str(os.getpid()))
        threading.Event().wait()
    if word[0] == "raise":
        raise RuntimeError("the grader is broken")
    if word[0] == "infra":
        return _result(task_dir, submission, Status.INFRASTRUCTURE_ERROR, "no such device"), ""
    if word[0] == "infra-once":
        mark = folder / f"infra-{word[1]}"
        if not mark.exists():
            mark.touch()
            return _result(task_dir, submission, Status.INFRASTRUCTURE_ERROR, "hiccup"), ""
    return _result(task_dir, submission, Status.PASSED), "printed"


def exclusive(
    task_dir: Path, submission: Path, mode: str, device: str, progress: Any, **options: Any
) -> tuple[Result, str]:
    """Passes only if nobody else was on this GPU at any time in between: exclusive creation tells."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    mark = Path(os.environ["STAND_IN_FOLDER"], f"busy-{gpu}")
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return _result(task_dir, submission, Status.CLOCK_MISMATCH, f"{gpu} was in use"), ""
    for _ in range(200):  # long enough for another to come in, if it could
        os.sched_yield()
        progress("timing", 0, 1)
    mark.unlink()
    return _result(task_dir, submission, Status.PASSED, gpu), ""
