"""A worker of the pool: a process that grades one submission at a time and leaves each result in a file.

It reads orders from its standard input, one JSON object a line, and answers on its standard output. The end of its
input means that the driver is gone: then it kills all that it started and ends, and its GPU's lock with it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from taskfactory.errors import UsageError
from taskfactory.fleet.conditions import watched
from taskfactory.fleet.orders import Delivery, grader_sha256
from taskfactory.grader import confine
from taskfactory.grader.processes import kill_all
from taskfactory.grader.result import Result, Status, dumps, write_atomically
from taskfactory.grader.task import load_task

Grade = Callable[..., tuple[Result, str]]


def main(argv: list[str] | None = None) -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slot", required=True, help="name of this worker: the GPU's UUID, or that of a CPU worker")
    parser.add_argument("--gpu", help="UUID of the GPU, where there is one")
    parser.add_argument(
        "--grade", default="taskfactory.grading:grade_submission", help="what grades; tests have others"
    )
    arguments = parser.parse_args(argv)
    module, _, attribute = arguments.grade.partition(":")
    grade: Grade = getattr(importlib.import_module(module), attribute)
    # Orphans of a grading must come to us and not to the driver, which would not know them.
    confine.harden_trusted(subreaper=True, no_new_privileges=False)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints must not end up among the answers
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, orders), daemon=True).start()
    while True:
        order = orders.get()
        _serve(order, grade, arguments.slot, arguments.gpu, answers)
        _answer(answers, {"event": "done", "key": order["key"]})


def _listen(lines: IO[str], orders: queue.Queue[dict[str, Any]]) -> None:
    for line in lines:
        orders.put(json.loads(line))
    kill_all(set())
    os._exit(0)


def _answer(answers: IO[str], message: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(message) + "\n")
        answers.flush()
    except BrokenPipeError:
        kill_all(set())
        os._exit(0)


def _serve(order: dict[str, Any], grade: Grade, slot: str, gpu: str | None, answers: IO[str]) -> None:
    """Grade one order and write its delivery, whatever happens."""

    def progress(step: str, done: int, total: int) -> None:
        _answer(answers, {"event": "step", "key": order["key"], "step": step, "done": done, "total": total})

    with watched(gpu) as conditions:
        try:
            result, printed = grade(
                Path(order["task_dir"]), Path(order["submission"]), "grade", order["device"], progress,
                **order["options"],
            )  # fmt: skip
        except UsageError as error:
            # The task was loaded before: what cannot be used is the submission (not UTF-8, too large).
            result, printed = _own_record(order, Status.IMPORT_ERROR, str(error)), ""
            conditions["record_by"] = "fleet"
        except Exception as error:
            message = f"the grader failed: {error!r}"
            result, printed = _own_record(order, Status.INFRASTRUCTURE_ERROR, message), traceback.format_exc()
            conditions["record_by"] = "fleet"
    delivery = Delivery(
        order["job_id"], order["attempt"], dumps(result.to_json()), printed, socket.gethostname(), slot,
        grader_sha256(), conditions,
    )  # fmt: skip
    write_atomically(Path(order["delivery"]), delivery.dumps())


def _own_record(order: dict[str, Any], status: Status, message: str) -> Result:
    task = load_task(Path(order["task_dir"]))
    return Result(
        task.name,
        task.version,
        task.spec_digest,
        task.metric,
        f"sha256:{order['source_sha256']}",
        "grade",
        status,
        message,
    )


if __name__ == "__main__":
    main()
