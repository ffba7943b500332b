"""The grader's command line inside a bundle; `taskfactory grade` and `taskfactory measure` are the same with colours.

With `--out` a verifier's reward is written: 0 for a submission that fails or is not there, none where the machine
is at fault. Without a GPU nothing is timed, so there is no reward either, unless it is asked for with `--rehearse`.

Exit codes: 0 the submission passed, 1 it failed, 2 usage or task error, 3 the environment is broken.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .confine import TIERS
from .rehearsal import rehearse
from .result import Result, Status, dumps, write_atomically
from .supervisor import Progress, grade, resolve_device
from .table import describe_failure, printable, result_table, summary
from .task import Task, TaskError, load_task, read_submission

EXIT_PASSED, EXIT_FAILED, EXIT_USAGE, EXIT_ENVIRONMENT = range(4)


def exit_code(result: Result) -> int:
    """The exit code that belongs to a result."""
    if result.status is Status.PASSED:
        return EXIT_PASSED
    return EXIT_ENVIRONMENT if result.status is Status.INFRASTRUCTURE_ERROR else EXIT_FAILED


def parse_shape(text: str) -> tuple[int, ...]:
    """ "4,4096,16" -> (4, 4096, 16)."""
    try:
        return tuple(int(part) for part in text.replace("(", "").replace(")", "").split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 4,4096,16") from None


def call_count(text: str) -> int:
    """A number of timed calls: two or more, since an interval needs two."""
    count = int(text)
    if count < 2:
        raise argparse.ArgumentTypeError(f"{count} calls are too few; at least 2")
    return count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="grader", description="Grade or measure a kernel submission.")
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--task", type=Path, required=True, help="task directory: a bundle's environment/app or tests")
    common.add_argument("--submission", type=Path, required=True, help="the submission file")
    common.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    common.add_argument("--calls", type=call_count, help="timed calls per shape (default: 64 or 32, by the floor)")
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    common.add_argument("--quiet", action="store_true", help="no progress on stderr")
    graded = commands.add_parser("grade", parents=[common], help="verify, then time the graded shapes")
    graded.add_argument("--out", type=Path, help="directory for reward.json and reward-details.json")
    graded.add_argument("--settle-ms", type=float, default=2.0, help="steady work before each call (default: 2)")
    graded.add_argument("--require-tier", choices=TIERS, default="confined", help="weakest confinement accepted")
    graded.add_argument("--result", type=Path, help="file for the full private result")
    graded.add_argument("--rehearse", action="store_true", help="one small shape on the CPU, for trying a bundle out")
    measured = commands.add_parser("measure", parents=[common], help="check or time at public shapes")
    measured.add_argument("--check", action="store_true", help="verify the correct shapes and cases")
    measured.add_argument("--quick", action="store_true", help="time the quick shapes instead of the measure shapes")
    measured.add_argument("--shape", type=parse_shape, action="append", default=[], help="time this shape, e.g. 4,64")
    measured.add_argument("--seed", type=int, help="use consecutive input seeds from here, to repeat a run")
    return parser


def grade_options(arguments: Any) -> dict[str, Any]:
    """The `Job` fields that follow from the options of `grade`."""
    return {"calls": arguments.calls, "require_tier": arguments.require_tier, "settle_ms": arguments.settle_ms}


def measure_options(arguments: Any) -> dict[str, Any]:
    """The `Job` fields that follow from the options of `measure`."""
    kinds: tuple[str, ...] = ("correct",) if arguments.check else ("quick",) if arguments.quick else ("measure",)
    if arguments.shape and not (arguments.check or arguments.quick):
        kinds = ()
    return {
        "kinds": kinds, "shapes": tuple(arguments.shape), "seed": arguments.seed, "keep_going": True,
        "calls": arguments.calls or 16, "require_tier": "unconfined",  # one's own code on one's own machine
    }  # fmt: skip


def stderr_progress(step: str, done: int, total: int) -> None:
    """One line that overwrites itself."""
    print(f"\r\033[K{step} {done + 1}/{total}", end="", file=sys.stderr, flush=True)


def write_reward(directory: Path, result: Result, *, rewarded: bool = True) -> None:
    """Write `reward.json` (exactly one key) and the public details; a broken environment writes no reward.

    Args:
        directory: where to write.
        result: any result.
        rewarded: False where a pass would be worth nothing because nothing can be timed.

    Raises:
        OSError: the directory cannot be written.
    """
    write_atomically(directory / "reward-details.json", dumps(result.public_json()))
    if rewarded and result.status is not Status.INFRASTRUCTURE_ERROR:
        write_atomically(directory / "reward.json", dumps({"reward": result.reward or 0.0}))


def unusable(task: Task, message: str) -> Result:
    """The result of a submission file that is missing or cannot be read: a failure, and nobody's but its own."""
    return Result(
        task.name, task.version, task.spec_digest, task.metric, "", "grade", Status.IMPORT_ERROR, message
    )  # fmt: skip


def _run(arguments: argparse.Namespace, task: Task, progress: Progress | None) -> tuple[Result, str]:
    """Grade, measure or rehearse; a verifier's missing submission is a result as well."""
    graded = arguments.command == "grade"
    if graded and arguments.out is not None:
        try:
            read_submission(arguments.submission)
        except TaskError as error:
            return unusable(task, str(error)), ""
    if graded and arguments.rehearse:
        tier = arguments.require_tier
        return rehearse(arguments.task, arguments.submission, progress, require_tier=tier), ""
    options = grade_options(arguments) if graded else measure_options(arguments)
    return grade(arguments.task, arguments.submission, arguments.command, arguments.device, progress, **options)


def _rewarded(arguments: argparse.Namespace, result: Result) -> bool:
    """Whether this run decides on a reward: on a device, in a rehearsal, or because there is nothing to run."""
    on_device = resolve_device(arguments.device) == "cuda"
    return on_device or (arguments.command == "grade" and (arguments.rehearse or not result.submission_sha256))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    progress: Progress | None = None if arguments.quiet or not sys.stderr.isatty() else stderr_progress
    try:
        task = load_task(arguments.task)
        result, printed = _run(arguments, task, progress)
        rewarded = _rewarded(arguments, result)
        if progress is not None:
            print("\r\033[K", end="", file=sys.stderr)
        if arguments.command == "grade":
            if arguments.result is not None:
                write_atomically(arguments.result, dumps(result.to_json()))
            if arguments.out is not None:
                write_reward(arguments.out, result, rewarded=rewarded)
    except TaskError as error:
        print(f"grader: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"grader: {error}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    public = arguments.command == "grade"
    if public and arguments.out is not None and not rewarded:
        print(
            "grader: no reward, since nothing is timed without a GPU; --rehearse makes one for trials", file=sys.stderr
        )
        print(dumps(result.public_json()) if arguments.json else result_table(result, task))
        return EXIT_ENVIRONMENT
    if arguments.json:
        print(dumps(result.public_json() if public else result.to_json()), end="")
        return exit_code(result)
    if printed.strip() and not public:
        print(f"--- the submission printed ---\n{printable(printed.rstrip())}\n---", file=sys.stderr)
    print(result_table(result, task, private=not public))
    if result.status is not Status.PASSED:
        print(describe_failure(result, private=not public), file=sys.stderr)
    print(summary(result))
    return exit_code(result)


if os.name != "posix":  # pragma: no cover - memfd, eventfd and pidfd exist on Linux alone
    raise ImportError("the grader runs on Linux")
