"""Two GPUs of one host: how much faster than one, and does a busy neighbour move the scores? `bench/fleet.py gpus`.

    alone    GPU 0 grades the same submission again and again, GPU 1 has nothing to do
    both     each of them does, at the same time
    alone    GPU 1 grades, GPU 0 has nothing to do; so a drift of the machine would show with opposite signs
    two runs two drivers that know nothing of each other want both GPUs at once

All of it through the fleet and the real grader, confined and timed, on a task of our own that is cheap to verify: a
bf16 matrix product, once bound by arithmetic and once by memory. During every grading a file marks its GPU as taken,
and is created exclusively: two timed gradings on one GPU would end in an error instead of a result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import two_gpus_figures as figures

from grader.toy import TASK
from taskfactory.errors import InfrastructureError
from taskfactory.fleet import driver
from taskfactory.fleet.leases import Gpu, find_gpus
from taskfactory.fleet.local import LocalExecutor
from taskfactory.fleet.manifest import Entry
from taskfactory.fleet.plan import plan_run, spool_folder
from taskfactory.fleet.spool import Spool
from taskfactory.grader.result import Result
from taskfactory.grading import grade_submission
from taskfactory.store.store import Store, open_store

LOG = "TWO_GPUS_LOG"
"""Environment variable: the folder where gradings note when they had which GPU."""
REFUSAL = "is in use by another grading"
PRETENDED = (Gpu("GPU-rehearsal-0", "none"), Gpu("GPU-rehearsal-1", "none"))

REFERENCE = '''import torch


def product(a, b):
    """(M, K) times (K, N), bf16."""
    return a @ b
'''
MAKE_INPUTS = """import torch


def canonical_work(M, K, N):
    return 2 * M * K * N


def _mk(M, K, N, seed):
    gen = torch.Generator(device="cuda").manual_seed(seed)
    a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=gen) for shape in ((M, K), (K, N)))
    return a, b


def make_inputs(shape, seed):
    return _mk(*shape, seed)
"""
SHAPES = {"correct": [[33, 64, 16], [128, 256, 40]], "graded": [[8192, 8192, 8192], [200_000, 8192, 16]]}


def write_product(folder: Path) -> Path:
    """The task's directory; its limits on an H200 are about 1.5 ms (arithmetic) and 0.8 ms (memory)."""
    folder.mkdir()
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "make_inputs.py").write_text(MAKE_INPUTS)
    facts = TASK | {
        "name": "product", "title": "Matrix product", "version": "1.0.0",
        "spec_digest": "sha256:product-1", "module": "product.py", "func": "product", "parameters": ["a", "b"],
        "metric": "TFLOP/s", "compare": "tensor", "outputs": [{"name": "out", "dtypes": None}], "has_regions": False,
        "shape_names": ["M", "K", "N"], "cases": [],
        "shapes": SHAPES, "work": {kind: [2 * m * k * n for m, k, n in rows] for kind, rows in SHAPES.items()},
        "floor": {
            kind: [[2 * (m * k + k * n + m * n), 2 * m * k * n] for m, k, n in rows] for kind, rows in SHAPES.items()
        },
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(facts))
    return folder


def witnessed(task_dir: Path, submission: Path, *rest: Any, **options: Any) -> tuple[Result, str]:
    """The real grader, in a worker of the fleet; refuses if its GPU is marked as taken, and notes begin and end."""
    folder, gpu = Path(os.environ[LOG]), os.environ["CUDA_VISIBLE_DEVICES"]
    mark = folder / f"taken-{gpu}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        raise InfrastructureError(f"{gpu} {REFUSAL}") from None
    begin = time.time()
    try:
        return grade_submission(task_dir, submission, *rest, **options)
    finally:
        line = {"source": submission.stem, "gpu": gpu, "begin": begin, "end": time.time()}
        mark.unlink()
        with (folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")


def work_off(store: Store, run_id: str, gpus: Sequence[Gpu]) -> Counter[str]:
    """Drive a run on these GPUs to its end."""
    driver.BROKEN_AFTER = 1 << 30  # a clock too noisy to score is a finding of this study, not a reason to stop
    run = store.run(run_id)
    spool = Spool(spool_folder(store, run), store)
    try:
        executor = LocalExecutor(spool, gpus=gpus, grade="two_gpus:witnessed")
        return driver.drive(store, run, executor)
    finally:
        spool.close()


class Study:
    """The phases one after the other; what they left is in the store and in the log."""

    def __init__(self, store: Store, folder: Path, gpus: Sequence[Gpu], settings: dict[str, Any]) -> None:
        self.store, self.folder, self.gpus, self.settings = store, folder, gpus, settings
        self.task = write_product(folder / "product")
        self.phases: dict[str, dict[str, Any]] = {}
        self.submissions = 0

    def plan(self, count: int) -> str:
        """A run of `count` gradings of one submission; a last line tells them apart. Returns the run's id."""
        entries = []
        for _ in range(count):
            self.submissions += 1
            path = self.folder / f"s{self.submissions}.py"
            path.write_text(f"{REFERENCE}\n# {self.submissions}\n")
            entries.append(Entry(str(self.task), path, "product", str(self.submissions)))
        return plan_run(self.store, entries, self.settings).id

    def phase(self, name: str, gpus: Sequence[Gpu], count: int) -> float:
        """One run on these GPUs; returns its seconds."""
        run = self.plan(count)
        started = time.perf_counter()
        counts = work_off(self.store, run, gpus)
        return self.note(name, [run], len(gpus), count, time.perf_counter() - started, counts)

    def note(self, name: str, runs: list[str], gpus: int, count: int, seconds: float, counts: Counter[str]) -> float:
        """Keep what a phase was; returns its seconds."""
        self.phases[name] = {"runs": runs, "gpus": gpus, "gradings": count, "seconds": seconds, "counts": dict(counts)}
        print(f"{name}: {count} gradings in {seconds:.1f} s, {dict(counts)}", file=sys.stderr, flush=True)
        return seconds

    def two_runs(self, count: int) -> None:
        """Two drivers, each with `count` gradings, at once on the same GPUs."""
        runs = [self.plan(count) for _ in range(2)]
        url = str(self.store.sqlite_path)
        started = time.perf_counter()
        uuids = [gpu.uuid for gpu in self.gpus]
        drivers = [subprocess.Popen([sys.executable, __file__, url, run, *uuids]) for run in runs]
        for process in drivers:
            process.wait()
        counts = Counter(r.status for r in self.store.results(runs))
        self.note("two runs", runs, len(self.gpus), 2 * count, time.perf_counter() - started, counts)


def study(arguments: Any, folder: Path, store: Store) -> dict[str, Any]:
    """All phases, then the figures. With `rehearse`, on pretended GPUs and the CPU: all but the times is as it will be.

    Raises:
        InfrastructureError: there are no two GPUs.
    """
    gpus = PRETENDED if arguments.rehearse else find_gpus()[:2]
    if len(gpus) < 2:
        raise InfrastructureError("this study needs two GPUs; --rehearse goes through it without")
    os.environ[LOG] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent)])  # of workers
    device = "cpu" if arguments.rehearse else "cuda"
    options = {"calls": arguments.calls, "require_tier": "confined"}
    work = Study(store, folder, gpus, {"device": device, "retries": 0, "options": options})
    started = time.perf_counter()
    first = work.phase("alone, GPU 0", gpus[:1], arguments.alone)
    each = first / arguments.alone
    left = arguments.limit_s - (time.perf_counter() - started) - first - arguments.contend * each
    count = min(arguments.count, max(2, 2 * int(left / each)))
    if count < arguments.count:
        print(f"{count} instead of {arguments.count} gradings on both, for --limit-s", file=sys.stderr, flush=True)
    work.phase("both", gpus, count)
    work.phase("alone, GPU 1", gpus[1:], arguments.alone)
    if arguments.contend:
        work.two_runs(arguments.contend)
    rows = figures.raw(store, work.phases, [gpu.uuid for gpu in gpus], folder / "log.jsonl")
    found = {"what": "two GPUs against one, the real grader on a matrix product", **figures.summary(rows, work.phases)}
    found["refused_as_shared"] = sum(REFUSAL in json.loads(result.record)["message"] for result in store.results())
    found["environment"] = json.loads(next(store.results()).record)["environment"]
    found["grader_sha256"] = next(store.results()).grader_sha256
    print(figures.table(found), file=sys.stderr)
    if arguments.out:
        Path(arguments.out).write_text(json.dumps({**found, "gradings": rows}, indent=None, default=str) + "\n")
    return found


if __name__ == "__main__":  # one of two drivers: STORE RUN UUID...
    work_off(open_store(sys.argv[1]), sys.argv[2], [Gpu(uuid, "") for uuid in sys.argv[3:]])
