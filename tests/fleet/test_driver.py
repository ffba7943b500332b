"""Driver and local executor with stand-ins for the grader: nothing lost, nothing doubled, no GPU shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grader.toy import write_task
from taskfactory.errors import InfrastructureError, UsageError
from taskfactory.fleet.driver import drive
from taskfactory.fleet.leases import Gpu, Lease
from taskfactory.fleet.local import LocalExecutor
from taskfactory.fleet.manifest import Entry
from taskfactory.fleet.orders import Delivery
from taskfactory.fleet.plan import Selection, plan_regrade, plan_run, spool_folder
from taskfactory.fleet.spool import Spool
from taskfactory.grader.processes import descendants
from taskfactory.store.records import Run
from taskfactory.store.store import Store, open_store

TESTS = str(Path(__file__).resolve().parents[1])
GPUS = (Gpu("GPU-fake-a", "Imaginary"), Gpu("GPU-fake-b", "Imaginary"))


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_FOLDER", str(tmp_path))
    monkeypatch.setenv("TASKFACTORY_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("PYTHONPATH", TESTS)


@pytest.fixture
def store(tmp_path: Path):
    opened = open_store(str(tmp_path / "r.db"), create=True)
    yield opened
    opened.close()


def entries(tmp_path: Path, *behaviours: str) -> list[Entry]:
    """A submission for each behaviour of `stand_in.obedient`; the last word of each names it."""
    task = write_task(tmp_path / "task")
    made = []
    for k, behaviour in enumerate(behaviours):
        path = tmp_path / f"s{k}.py"
        path.write_text(f"# {behaviour}\n# s{k}\n")
        made.append(Entry(str(task), path, f"who{k}", "1"))
    return made


def plan(store: Store, tmp_path: Path, *behaviours: str, retries: int = 1) -> Run:
    settings = {"device": "cpu", "retries": retries, "options": {}}
    return plan_run(store, entries(tmp_path, *behaviours), settings)


def work_off(store: Store, run: Run, *, grade: str = "obedient", gpus: Any = (), workers: int = 2, **how: Any):
    spool = Spool(spool_folder(store, run), store)
    try:
        executor = LocalExecutor(spool, gpus=gpus, workers=workers, grade=f"fleet.stand_in:{grade}")
        return drive(store, run, executor, **how)
    finally:
        spool.close()


def graded(tmp_path: Path) -> Counter[str]:
    return Counter((tmp_path / "graded.log").read_text().split())


def test_every_job_gets_one_result(store: Store, tmp_path: Path) -> None:
    run = plan(store, tmp_path, *["pass"] * 7)
    assert work_off(store, run) == {"passed": 7}
    assert graded(tmp_path) == {f"s{k}": 1 for k in range(7)}
    results = list(store.results())
    assert sorted(r.submitter for r in results) == [f"who{k}" for k in range(7)]
    assert {r.slot for r in results} <= {"cpu-0", "cpu-1"}
    assert results[0].printed == "printed"
    assert not list(Spool(spool_folder(store, run), store).waiting())


def test_infrastructure_errors_are_tried_again_on_another_slot_first(store: Store, tmp_path: Path) -> None:
    run = plan(store, tmp_path, "infra-once x", "pass")
    assert work_off(store, run) == {"passed": 2}
    tries = [r for r in store.results() if r.submitter == "who0"]
    assert [(r.attempt, r.status) for r in tries] == [(1, "infrastructure_error"), (2, "passed")]


def test_what_stays_broken_is_reported_and_retried_only_on_request(store: Store, tmp_path: Path) -> None:
    run = plan(store, tmp_path, "infra", "pass")
    assert work_off(store, run) == {"infrastructure_error": 1, "passed": 1}
    assert work_off(store, run) == {"infrastructure_error": 1, "passed": 1}
    assert graded(tmp_path) == {"s0": 2, "s1": 1}  # one attempt and one retry; resuming adds none
    work_off(store, run, retry_infra=True)
    assert graded(tmp_path) == {"s0": 4, "s1": 1}
    assert [r.attempt for r in store.results() if r.submitter == "who0"] == [1, 2, 3, 4]


def test_a_slot_that_only_fails_gets_nothing_more(store: Store, tmp_path: Path) -> None:
    run = plan(store, tmp_path, *["infra"] * 9, retries=0)
    with pytest.raises(InfrastructureError, match="every slot"):
        work_off(store, run)
    assert sum(graded(tmp_path).values()) == 6  # three on each of two slots


def test_a_grader_that_raises_is_an_infrastructure_error(store: Store, tmp_path: Path) -> None:
    run = plan(store, tmp_path, "raise", retries=0)
    assert work_off(store, run) == {"infrastructure_error": 1}
    (result,) = store.results()
    assert "the grader is broken" in json.loads(result.record)["message"]
    assert result.conditions["record_by"] == "fleet"


def test_a_killed_worker_loses_nothing_and_leaves_no_process(store: Store, tmp_path: Path) -> None:
    before = descendants(os.getpid())
    run = plan(store, tmp_path, "kill-worker-once a", "pass", "kill-worker-once b", "pass")
    assert work_off(store, run) == {"passed": 4}
    assert graded(tmp_path) == {"s0": 2, "s1": 1, "s2": 2, "s3": 1}
    assert [r.attempt for r in store.results()] == [1, 1, 1, 1]
    assert descendants(os.getpid()) <= before


def test_a_grading_that_always_kills_its_worker_becomes_an_infrastructure_error(store: Store, tmp_path: Path) -> None:
    run = plan(store, tmp_path, "kill-worker", "pass", retries=0)
    assert work_off(store, run) == {"infrastructure_error": 1, "passed": 1}
    broken = next(r for r in store.results() if r.submitter == "who0")
    assert "signal 9" in json.loads(broken.record)["message"]


def test_a_submission_that_is_no_text_gets_a_verdict(store: Store, tmp_path: Path) -> None:
    made = entries(tmp_path, "x")
    made[0].submission.write_bytes(b"\xff\xfe")
    run = plan_run(store, made, {"device": "cpu", "retries": 0, "options": {}})
    spool = Spool(spool_folder(store, run), store)
    assert drive(store, run, LocalExecutor(spool)) == {"import_error": 1}
    spool.close()
    (result,) = store.results()
    assert "UTF-8" in json.loads(result.record)["message"]


# -- one grading a GPU


def test_two_drivers_never_use_one_gpu_at_once(store: Store, tmp_path: Path) -> None:
    """Two runs with both GPUs each, in processes of their own; a stand-in fails if it meets another on its GPU."""
    runs = [plan(store, tmp_path, *["x"] * 12, retries=0) for _ in range(2)]
    code = (
        "import sys; from fleet.test_driver import *\n"
        "store = open_store(sys.argv[1])\n"
        "print(dict(work_off(store, store.run(sys.argv[2]), grade='exclusive', gpus=GPUS)))\n"
    )
    path = os.pathsep.join([TESTS, str(Path(TESTS).parent / "tools")])
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "r.db"), run.id],
            env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
        )
        for run in runs
    ]  # fmt: skip
    assert [driver.communicate(timeout=100)[0].strip() for driver in drivers] == ["{'passed': 12}"] * 2
    used = Counter(json.loads(r.record)["message"] for r in store.results())
    assert used.keys() == {"GPU-fake-a", "GPU-fake-b"}
    assert all(r.slot == json.loads(r.record)["message"] for r in store.results())


def test_the_exclusion_test_can_fail(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with a lock that everybody gets, the stand-in does meet others."""
    monkeypatch.setattr(Lease, "acquire", lambda self: True)
    run = plan(store, tmp_path, *["x"] * 40, retries=0)
    counts = work_off(store, run, grade="exclusive", gpus=[GPUS[0]] * 4)
    assert counts["clock_mismatch"] > 0


def test_a_gpu_in_use_is_waited_for(store: Store, tmp_path: Path) -> None:
    other = Lease("GPU-fake-a")
    assert other.acquire()
    run = plan(store, tmp_path, "x", retries=0)
    asked = []

    def stop() -> bool:
        asked.append(1)
        if len(asked) == 3:
            assert not list(store.results())
            other.release()
        return False

    assert work_off(store, run, grade="exclusive", gpus=GPUS[:1], stop=stop) == {"passed": 1}
    other.close()


def test_a_lease_outlives_its_driver_while_the_worker_lives(tmp_path: Path) -> None:
    lease = Lease("GPU-fake-a")
    assert lease.acquire()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lease.descriptor])
    lease.close()
    other = Lease("GPU-fake-a")
    assert not other.acquire()
    child.communicate(b"\n")
    assert other.acquire()
    other.close()


@pytest.mark.parametrize("name", ["../x", "a/b", ""])
def test_a_lock_stays_in_its_folder(name: str) -> None:
    with pytest.raises(UsageError):
        Lease(name)


# -- stopping, killing, resuming


def test_a_stopped_run_is_resumed_where_it_was(store: Store, tmp_path: Path) -> None:
    run = plan(store, tmp_path, *["pass"] * 6)
    counts = work_off(store, run, workers=1, stop=lambda: store.version()[0] >= 3)
    assert counts["passed"] >= 3
    assert work_off(store, run) == {"passed": 6}
    assert set(graded(tmp_path)) == {f"s{k}" for k in range(6)}
    assert len(list(store.results())) == 6


def test_a_killed_driver_takes_its_workers_along_and_is_resumed(store: Store, tmp_path: Path) -> None:
    run = plan(store, tmp_path, "pass", "pass", "hang a", "pass")
    code = (
        "import sys; from fleet.test_driver import *\n"
        "store = open_store(sys.argv[1]); work_off(store, store.run('last'))\n"
    )
    path = os.pathsep.join([TESTS, str(Path(TESTS).parent / "tools")])
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "r.db")], env={**os.environ, "PYTHONPATH": path}
    )
    mark, waited = tmp_path / "hanging-a", threading.Event()
    for _ in range(600):
        if mark.exists() and mark.read_text() and store.tally(run).done == 3:
            break
        waited.wait(0.1)
    worker = int(mark.read_text())
    descriptor = os.pidfd_open(worker)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    import select

    assert select.select([descriptor], [], [], 30)[0], "the worker outlived its driver"
    os.close(descriptor)
    (tmp_path / "s2.py").write_text("# pass\n")  # the store has the source: the file no longer matters
    spool = Spool(spool_folder(store, run), store)
    spool.path("3-1").write_text(_delivery(store, run))
    spool.close()
    assert work_off(store, run) == {"passed": 4}
    assert graded(tmp_path) == {"s0": 1, "s1": 1, "s2": 1, "s3": 1}  # the one left in the spool was not done again
    assert len(list(store.results())) == 4


def _delivery(store: Store, run: Run) -> str:
    """The delivery that a worker would have left for the third job."""
    job, first = store.jobs(run.id)[2], next(store.results())
    return Delivery(job.id, 1, first.record, "", "here", "cpu-0", "g", {}).dumps()


def test_a_run_has_one_driver(store: Store, tmp_path: Path) -> None:
    run = plan(store, tmp_path, "pass")
    spool = Spool(spool_folder(store, run), store)
    with pytest.raises(UsageError, match="another process"):
        Spool(spool_folder(store, run), store)
    spool.close()
    Spool(spool_folder(store, run), store).close()


# -- grading again


def test_regrading_keeps_both_results(store: Store, tmp_path: Path) -> None:
    first = plan(store, tmp_path, "pass", "pass")
    work_off(store, first)
    write_task(tmp_path / "task", version="2.0.0", spec_digest="sha256:9")
    old = store.task(store.jobs(first.id)[0].task_sha256)
    settings = {"device": "cpu", "retries": 0, "options": {}}
    again = plan_regrade(store, Selection(submitters=("who1",)), settings, stored_task=True)
    assert work_off(store, again) == {"passed": 1}
    assert [job.task_sha256 for job in store.jobs(again.id)] == [old.content_sha256]
    assert sorted(r.submitter for r in store.results()) == ["who0", "who1", "who1"]
    assert store.run(again.id).kind == "regrade"
    with pytest.raises(UsageError, match="no such"):
        plan_regrade(store, Selection(tasks=("none",)), settings, stored_task=True)
