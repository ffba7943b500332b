"""Processes killed at random points: no result says passed that was not verified whole, nothing stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grader.toy import GOOD, grade_source, strays, write_task
from taskfactory.grader import supervisor
from taskfactory.grader.processes import descendants
from taskfactory.grader.result import Result, Status

CALLS = 5
"""Calls of a whole grading of the toy task on the CPU."""
TOOLS = str(Path(supervisor.__file__).parents[2])


def _named(role: str, among: set[int]) -> int | None:
    for pid in among:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == f"grader.{role}\n":
                return pid
    return None


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Killer:
    """Kills one process of a grading: at one progress step, or some time after the start."""

    def __init__(self, rng: random.Random) -> None:
        self.role = rng.choice(["broker", "worker"])
        self.step = rng.randrange(-4, CALLS + 1)
        """Which progress report, from 0; below that, the timer kills."""
        self.delay_s = rng.uniform(0.0, 0.5) if self.step < 0 else rng.choice([0.0, rng.uniform(0.0, 0.02)])
        self.before = strays()
        self.reports = 0
        self.hit_at: int | None = None
        """How many reports had come when a process was hit."""
        self.timers: list[threading.Timer] = []
        if self.step < 0:
            self.kill_later()

    def kill_later(self) -> None:
        self.timers.append(threading.Timer(self.delay_s, self.kill))
        self.timers[-1].start()

    def progress(self, step: str, done: int, total: int) -> None:
        if self.reports == self.step:
            self.kill_later() if self.delay_s else self.kill()
        self.reports += 1

    def kill(self) -> None:
        pid = _named(self.role, strays() - self.before)
        if pid is not None and _alive(pid):
            self.hit_at = self.reports
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check(self, result: Result) -> None:
        for timer in self.timers:
            timer.cancel()
            timer.join()
        told = f"{self.role} at {self.step}/{self.delay_s}, hit at {self.hit_at}: {result.status} {result.message}"
        assert strays() <= self.before, told
        assert result.score is None, told
        if result.status is Status.PASSED:
            # reports lag behind the calls, so a process may be hit when all is done
            assert result.calls_verified == CALLS, told
            assert [shape.calls for shape in result.shapes] == [2, 3], told
        else:
            assert self.hit_at is not None, told
            assert result.status in (Status.INFRASTRUCTURE_ERROR, Status.WORKER_DIED), told
            assert self.role == "worker" or result.status is Status.INFRASTRUCTURE_ERROR, told


SLOW = f"import threading\n{GOOD}".replace("    return", "    threading.Event().wait(0.05)\n    return")
"""Calls that take a while, so that most kills come amid them."""


def _rounds(tmp_path: Path, seeds: range) -> None:
    ends = set()
    for seed in seeds:
        killer = Killer(random.Random(seed))
        result = grade_source(tmp_path, SLOW, progress=killer.progress)
        killer.check(result)
        ends.add(result.status)
    assert ends - {Status.PASSED}, "no kill was in time"


def test_a_killed_broker_or_worker_never_passes(tmp_path: Path) -> None:
    _rounds(tmp_path, range(3))


@pytest.mark.full
def test_a_killed_broker_or_worker_never_passes_fifty_times(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    _rounds(tmp_path, range(seed, seed + 50))


def test_an_interrupted_grading_leaves_nothing(tmp_path: Path) -> None:
    before = strays()

    def interrupt(step: str, done: int, total: int) -> None:
        if step == "verifying":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade_source(tmp_path, GOOD, progress=interrupt)
    assert strays() <= before


_WATCHED = """
import sys
sys.path.insert(0, {tools!r})
from taskfactory.grader import cli
import os
cli.stderr_progress = lambda step, done, total: print("progress", file=sys.stderr, flush=True)
sys.stderr.isatty = lambda: True
sys.exit(cli.main(sys.argv[1:]))
"""


def _kill_supervisor(tmp_path: Path, step: int, delay_s: float) -> None:
    """Kill a whole grading's supervisor, which nothing supervises."""
    task, submission, old = write_task(tmp_path / "task"), tmp_path / "rows.py", '{"status": "passed", "old": true}\n'
    submission.write_text(GOOD)
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    for name in ("reward.json", "reward-details.json", "result.json"):
        (out / name).write_text(old)
    process = subprocess.Popen(
        [sys.executable, "-c", _WATCHED.format(tools=TOOLS), "grade", "--device", "cpu", "--task", task,
         "--submission", submission, "--out", out, "--result", out / "result.json"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for _ in range(step):
        process.stderr.readline()
    if delay_s:
        threading.Event().wait(delay_s)
    tree = descendants(process.pid)
    watched = []
    for pid in tree:
        with contextlib.suppress(ProcessLookupError):
            watched.append(os.pidfd_open(pid))
    process.kill()
    process.communicate(timeout=60)
    for fd in watched:
        poller = select.poll()
        poller.register(fd)
        assert poller.poll(30_000), f"a process survived the supervisor that was killed after {step} reports"
        os.close(fd)
    for path in out.iterdir():
        if path.name.startswith("."):
            continue  # what `write_atomically` had begun; never under the name of a result
        text = path.read_text()
        assert text == old or json.loads(text).keys() & {"schema", "reward"}


@pytest.mark.parametrize("step", [1, 4])
def test_nothing_survives_a_killed_supervisor_and_old_results_stay(tmp_path: Path, step: int) -> None:
    _kill_supervisor(tmp_path, step, 0.0)


@pytest.mark.full
def test_nothing_survives_a_supervisor_killed_at_random(tmp_path: Path) -> None:
    rng = random.SystemRandom()
    for _ in range(20):
        _kill_supervisor(tmp_path, rng.randrange(CALLS + 2), rng.uniform(0, 0.3))
