"""Run contestants against each other on one set of inputs: verify, interleave, time."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import workbench
from workbench import Task

from peers.record import Entry

Call = Callable[[], Any]


class Unavailable(Exception):
    """A peer cannot be had here, or does not support this shape; the text says why."""


@dataclass(frozen=True)
class Problem:
    """One shape of a task and its inputs."""

    task: Task
    shape: tuple[int, ...]
    args: tuple


@dataclass(frozen=True)
class Contestant:
    """Something that can be called on a task's inputs.

    `prepare` does what its users would do once (compile, load a library, lay out weights) and returns the timed call.
    A yardstick computes something else and is not verified; `work` is what its own call moves, where that differs
    from the canonical work.
    """

    name: str
    role: str
    note: str
    prepare: Callable[[Problem], Call]
    work: Callable[[Problem], float] | None = None


class Clock(Protocol):
    """How single calls are timed."""

    def timed(self, call: Call) -> tuple[Any, Any]:
        """The call's result, and a token for `read`."""

    def read(self, tokens: Sequence[Any]) -> list[float]:
        """Wait for everything, then milliseconds of each token."""


class EventClock:
    """CUDA events around a call, the L2 flushed before it."""

    def __init__(self) -> None:
        self.flush = workbench.Flusher()

    def timed(self, call: Call) -> tuple[Any, Any]:
        return workbench.timed(call, self.flush)

    def read(self, tokens: Sequence[Any]) -> list[float]:
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in tokens]


def order(count: int, turn: int) -> range:
    """Who is called when in a round: forwards and backwards by turns, A B B A, so that drift meets all alike."""
    return range(count) if turn % 2 == 0 else range(count - 1, -1, -1)


def fingerprint(args: tuple) -> list[Any]:
    """Changes when a tensor argument is written to."""
    return [int(_bits(a).sum()) for a in args if isinstance(a, torch.Tensor)]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])


def describe(error: BaseException) -> str:
    """Type and first line of an exception, shortened."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first}"[:300]


class _Runner:
    """A contestant at one shape, with what is known of it so far."""

    def __init__(self, contestant: Contestant, problem: Problem) -> None:
        self.contestant, self.problem = contestant, problem
        self.entry = Entry(contestant.name, contestant.role, contestant.note, "not verified")
        self.call: Call | None = None

    def start(self, expected: tuple, regions: Any) -> None:
        """Prepare, call once, verify. Leaves `call` unset if there is nothing to time."""
        entry, problem = self.entry, self.problem
        try:
            before = fingerprint(problem.args)
            began = time.perf_counter()
            call = self.contestant.prepare(problem)
            result = call()
            _wait()
            entry.first_s = time.perf_counter() - began
            entry.work = self.contestant.work(problem) if self.contestant.work else problem.task.work(problem.shape)
            self.check(expected, regions, result)
            if fingerprint(problem.args) != before:
                entry.status, entry.message = "failed", "it writes to its inputs"
                self.restore()  # all others run on them
                return
            self.call = call
        except (Unavailable, ImportError) as error:
            entry.status = "unavailable"
            entry.message = str(error) if isinstance(error, Unavailable) else describe(error)
        except Exception as error:  # the others shall still run
            traceback.print_exc()
            entry.status, entry.message = "failed", describe(error)

    def restore(self) -> None:
        """Write the inputs anew; the same seed makes the same values."""
        fresh = self.problem.task.inputs(self.problem.shape)
        for mine, made in zip(self.problem.args, fresh, strict=True):
            if isinstance(mine, torch.Tensor):
                mine.copy_(made)

    def check(self, expected: tuple, regions: Any, result: Any) -> None:
        """Judge one output by the grader's comparison; once wrong stays wrong."""
        entry = self.entry
        if entry.role == "yardstick":
            return
        failure, error = workbench.judge(self.problem.task, expected, regions, result)
        entry.error = max(entry.error or 0.0, error)
        if failure:
            entry.status, entry.message = "wrong", failure
        elif entry.status != "wrong":
            entry.status = "verified"


def contest(
    problem: Problem,
    contestants: Sequence[Contestant],
    clock: Clock,
    *,
    rounds: int = 20,
    budget_ms: float = 2000.0,
) -> list[Entry]:
    """Verify and time all contestants on one set of inputs.

    Every contestant's first and last output is compared with the reference. Rounds are interleaved, an even number of
    them, at most `rounds` and fewer if they would take more than `budget_ms`, but six at least.
    """
    expected = problem.task.reference(problem.args)
    regions = problem.task.regions(problem.args)
    runners = [_Runner(contestant, problem) for contestant in contestants]
    for runner in runners:
        runner.start(expected, regions)
    running = [runner for runner in runners if runner.call]
    warm = 0.0
    for runner in list(running):  # the second warm-up also tells how many rounds there is time for
        for _ in range(2):
            spent = _attempt(runner, clock)
        if spent is None:
            running.remove(runner)
        else:
            warm += spent
    planned = max(6, min(rounds, int(budget_ms / warm))) if warm else rounds
    planned -= planned % 2
    tokens: dict[int, list[Any]] = {id(runner): [] for runner in running}
    last: dict[int, Any] = {}
    for turn in range(planned):
        for index in order(len(running), turn):
            runner = running[index]
            assert runner.call is not None
            result, token = clock.timed(runner.call)
            tokens[id(runner)].append(token)
            if turn == planned - 1 and runner.entry.role != "yardstick":
                last[id(runner)] = result
            result = None  # so that the allocator can reuse the storage
    for runner in running:
        runner.entry.times_ms = clock.read(tokens[id(runner)])
        if id(runner) in last:
            runner.check(expected, regions, last.pop(id(runner)))
    return [runner.entry for runner in runners]


def _attempt(runner: _Runner, clock: Clock) -> float | None:
    """Milliseconds of one call, or None if it raised."""
    assert runner.call is not None
    try:
        _, token = clock.timed(runner.call)
        return clock.read([token])[0]
    except Exception as error:
        traceback.print_exc()
        runner.entry.status, runner.entry.message = "failed", describe(error)
        return None


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
