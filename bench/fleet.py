"""What grading through the fleet costs and whether it loses anything. Prints its figures as JSON.

    python bench/fleet.py many --count 2000              the fleet alone: a stand-in answers in place of the grader
    python bench/fleet.py many --count 2000 --ray HOST:PORT
    python bench/fleet.py chaos --count 300              the same with kill -9 of workers and driver at random
    python bench/fleet.py chaos --store postgresql://... ... and of database connections
    python bench/fleet.py real --count 2000 --limit-s 600  the real grader on a toy task: bare and through the fleet
    python bench/fleet.py real --count 2000 --ray HOST:PORT  ... through Ray only
    python bench/fleet.py gpus --count 40 --out FILE     two GPUs against one, and a busy neighbour (two_gpus.py)

`many` and `chaos` measure what is around the grader: plan, hand-over, spool, store. Their "results" are invented by the
stand-in and are no gradings. `real` grades on the CPU, verified and not timed. Only `gpus` needs GPUs, two of them;
with `--rehearse` it goes through the same steps on the CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATH = [str(ROOT / "tools"), str(ROOT / "tests")]  # for workers too; not bench/, whose fleet.py hides tests/fleet
sys.path[:0] = [*PATH, str(ROOT / "bench")]

from two_gpus import study  # noqa: E402

from grader.toy import GOOD, write_task  # noqa: E402
from taskfactory.fleet.driver import Quiet, drive  # noqa: E402
from taskfactory.fleet.local import GRADE, LocalExecutor  # noqa: E402
from taskfactory.fleet.manifest import Entry  # noqa: E402
from taskfactory.fleet.orders import Order  # noqa: E402
from taskfactory.fleet.plan import plan_run, spool_folder  # noqa: E402
from taskfactory.fleet.spool import Spool  # noqa: E402
from taskfactory.store.engine import read  # noqa: E402
from taskfactory.store.store import Store, open_store  # noqa: E402

STAND_IN = "fleet.stand_in:obedient"
SETTINGS: dict[str, Any] = {"device": "cpu", "retries": 1, "options": {}}


def rss_mib() -> float:
    """Resident memory of this process."""
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024


class Memory(Quiet):
    """Notes the driver's memory after every hundred results."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.count = 0

    def finished(self, order: Order, status: str, slot: str) -> None:
        self.count += 1
        if self.count % 100 == 0:
            self.seen.append(round(rss_mib(), 1))


def entries(folder: Path, count: int, source: str) -> list[Entry]:
    """Submissions that differ in their last line."""
    task = write_task(folder / "task")
    made = []
    for k in range(count):
        path = folder / f"s{k}.py"
        path.write_text(f"{source}\n# s{k}\n")
        made.append(Entry(str(task), path, f"who{k % 40}", str(k // 40)))
    return made


def executor_for(spool: Spool, arguments: argparse.Namespace, grade: str) -> Any:
    """The local pool, or Ray."""
    if arguments.ray:
        from taskfactory.fleet.on_ray import RayExecutor

        forward = ("PYTHONPATH", "STAND_IN_FOLDER")
        return RayExecutor(spool, arguments.ray, cuda=False, workers=arguments.workers, grade=grade, forward=forward)
    return LocalExecutor(spool, workers=arguments.workers, grade=grade)


def work_off(
    store: Store, run_id: str, arguments: argparse.Namespace, grade: str, watcher: Quiet,
    stop: Callable[[], bool] = lambda: False,
) -> Counter[str]:  # fmt: skip
    """Drive a run to its end, or until it is stopped."""
    run = store.run(run_id)
    spool = Spool(spool_folder(store, run), store)
    try:
        return drive(store, run, executor_for(spool, arguments, grade), watcher, retry_infra=True, stop=stop)
    finally:
        spool.close()


def check(store: Store, run_id: str) -> dict[str, int]:
    """How many jobs have no result, and how many more than one of the same attempt or more than one verdict."""
    verdicts = Counter(r.job_id for r in store.results([run_id]) if r.status != "infrastructure_error")
    jobs = store.jobs(run_id)
    lost = sum(verdicts[job.id] == 0 for job in jobs)
    return {"jobs": len(jobs), "lost": lost, "doubled": sum(n > 1 for n in verdicts.values())}


def many(arguments: argparse.Namespace, folder: Path, store: Store) -> dict[str, Any]:
    """Throughput and memory of the fleet alone."""
    started = time.perf_counter()
    run = plan_run(store, entries(folder, arguments.count, "# pass"), SETTINGS)
    planned = time.perf_counter() - started
    memory = Memory()
    started = time.perf_counter()
    counts = work_off(store, run.id, arguments, STAND_IN, memory)
    seconds = time.perf_counter() - started
    return {
        "what": "the fleet alone, with a stand-in for the grader", "executor": "ray" if arguments.ray else "local",
        "workers": arguments.workers, "plan_s": round(planned, 2), "drive_s": round(seconds, 2),
        "per_second": round(arguments.count / seconds, 1),
        "ms_per_submission_and_worker": round(1e3 * arguments.workers * seconds / arguments.count, 2),
        "driver_rss_mib": [memory.seen[0], memory.seen[len(memory.seen) // 2], memory.seen[-1]] if memory.seen else [],
        "counts": counts, **check(store, run.id),
    }  # fmt: skip


def chaos(arguments: argparse.Namespace, folder: Path, store: Store) -> dict[str, Any]:
    """Kill workers, driver and connections at random until the run is done all the same."""
    dice = random.Random(arguments.seed)
    made = entries(folder, arguments.count, "# pass")
    for k in range(0, arguments.count, 20):
        made[k].submission.write_text(f"# kill-worker-once {k}\n# s{k}\n")
    run = plan_run(store, made, SETTINGS)
    command = [
        sys.executable, __file__, "drive", "--store", arguments.store or str(store.sqlite_path), "--run", run.id,
        "--workers", str(arguments.workers),
    ]  # fmt: skip
    done: Counter[str] = Counter()
    started = time.perf_counter()
    while store.tally(run).done < arguments.count and time.perf_counter() - started < arguments.limit_s:
        driver = subprocess.Popen(command)
        done["drivers started"] += 1
        until = time.perf_counter() + dice.uniform(1.5, 4.0)
        while time.perf_counter() < until and driver.poll() is None:
            time.sleep(dice.uniform(0.1, 0.3))
            done.update(hurt(store, driver.pid, dice))
        if driver.poll() is None:
            driver.send_signal(signal.SIGKILL)
            done["drivers killed"] += 1
        driver.wait()
    graded = Counter((folder / "graded.log").read_text().split())
    return {
        "what": "kill -9 at random, with a stand-in for the grader", "seconds": round(time.perf_counter() - started, 1),
        **done, "kill-worker-once": len(range(0, arguments.count, 20)), "gradings_begun": sum(graded.values()),
        **check(store, run.id),
    }  # fmt: skip


def hurt(store: Store, driver: int, dice: random.Random) -> dict[str, int]:
    """Kill one worker of the driver, or its database connection."""
    if store.engine.dialect.name == "postgresql" and dice.random() < 0.5:
        query = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        ended = read(store.engine, lambda connection: int(connection.exec_driver_sql(query).scalar_one()))
        return {"connections ended": ended}
    children = Path(f"/proc/{driver}/task/{driver}/children")
    try:
        pids = [int(pid) for pid in children.read_text().split()]
        if not pids:
            return {}
        os.kill(dice.choice(pids), signal.SIGKILL)
    except (OSError, ProcessLookupError):
        return {}
    return {"workers killed": 1}


class Times(Memory):
    """Notes too when each result came."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def finished(self, order: Order, status: str, slot: str) -> None:
        super().finished(order, status, slot)
        self.at.append(time.perf_counter())

    def steps(self) -> list[float]:
        """Seconds from each result to the next."""
        return [later - earlier for earlier, later in itertools.pairwise(self.at)]


def real(arguments: argparse.Namespace, folder: Path, store: Store) -> dict[str, Any]:
    """The real grader: bare against one worker of the fleet in turn, then all workers for what is left of --limit-s."""
    ends = time.perf_counter() + arguments.limit_s
    made = entries(folder, arguments.count, GOOD)
    figures: dict[str, Any] = {"what": "the real grader on a toy task on the CPU", "executor": "local"}
    if arguments.ray:
        figures["executor"] = "ray"
    else:
        figures |= against_bare(arguments, made, store)
    run = plan_run(store, made, SETTINGS)
    watcher = Times()
    started = time.perf_counter()
    counts = work_off(store, run.id, arguments, GRADE, watcher, stop=lambda: time.perf_counter() > ends)
    seconds, done = time.perf_counter() - started, sum(counts.values()) - counts["not graded"]
    return {
        **figures, "workers": arguments.workers, "graded": done, "seconds": round(seconds, 1),
        "a_minute": round(60 * done / seconds, 1),
        "s_per_grading_and_worker": round(arguments.workers * seconds / max(done, 1), 2),
        "driver_rss_mib": watcher.seen, "counts": counts, "doubled": check(store, run.id)["doubled"],
    }  # fmt: skip


def against_bare(arguments: argparse.Namespace, made: Sequence[Entry], store: Store, block: int = 10) -> dict[str, Any]:
    """Three times a block of gradings bare, then through one worker; what the start of the worker costs is apart."""
    from taskfactory.grader.supervisor import grade

    one = argparse.Namespace(**{**vars(arguments), "workers": 1})
    bare, steps, blocks = [], [], []
    for k in range(3):
        own = made[k * block : (k + 1) * block]
        for entry in own:
            started = time.perf_counter()
            result, _ = grade(Path(entry.task), entry.submission, "grade", "cpu")
            bare.append(time.perf_counter() - started)
            assert result.status == "passed", result.message
        run, watcher = plan_run(store, own, SETTINGS), Times()
        started = time.perf_counter()
        counts = work_off(store, run.id, one, GRADE, watcher)
        assert counts == {"passed": len(own)}, counts
        blocks.append(time.perf_counter() - started)
        steps += watcher.steps()
    return {
        "bare_median_s": round(statistics.median(bare), 3), "fleet_median_s": round(statistics.median(steps), 3),
        "start_and_end_s": round(statistics.median(blocks) - block * statistics.median(steps), 2),
        "n": [len(bare), len(steps)],
    }  # fmt: skip


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("many", "chaos", "real", "gpus", "drive"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", help="database URL instead of a SQLite file of its own")
    parser.add_argument("--ray", metavar="ADDRESS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=300)
    two = parser.add_argument_group("gpus")
    two.add_argument("--alone", type=int, default=5, help="gradings on each GPU while the other is idle")
    two.add_argument("--contend", type=int, default=2, help="gradings of each of two runs that want the same GPUs")
    two.add_argument("--calls", type=int, default=16, help="timed calls a shape")
    two.add_argument("--rehearse", action="store_true", help="pretended GPUs, on the CPU")
    two.add_argument("--out", help="file for the figures with every grading's raw times")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([*PATH, *filter(None, [os.environ.get("PYTHONPATH")])])
    if arguments.what == "drive":
        work_off(open_store(arguments.store), arguments.run, arguments, STAND_IN, Quiet())
        return
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as name:
        folder = Path(name)
        os.environ["STAND_IN_FOLDER"] = name
        store = open_store(arguments.store or str(folder / "results.db"), create=True)
        figures = {"many": many, "chaos": chaos, "real": real, "gpus": study}[arguments.what](arguments, folder, store)
        store.close()
    load = [round(value, 1) for value in os.getloadavg()]
    print(json.dumps({**figures, "load": load, "cores": len(os.sched_getaffinity(0))}, indent=1))


if __name__ == "__main__":
    main()
