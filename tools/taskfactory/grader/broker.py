"""The trusted process: inputs, reference, clock, verdict. It never imports the submission.

learn     what every shape and case looks like: argument layout, output shapes
overhead  a trusted worker: c, and the bias of the wall clock against events
verify    the submission, untimed: every correct shape and case; the first failure ends it
time      the submission: warm-ups, then N calls a shape, interleaved at random, every one verified
overhead  again, once the submission's processes and GPU memory are gone
"""

from __future__ import annotations

import dataclasses
import os
import platform
import random
import secrets
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import ceilings, confine, memory
from .clock import UNBOUNDED_BELOW, Overhead, shape_time
from .compare import Gates, as_tuple, build_regions, compare_outputs, dtype_name
from .job import Job, Link, job_from_json
from .memory import DriverError
from .processes import die_with_parent
from .protocol import valid_claim
from .result import CallFailure, Result, ShapeResult, Status, dumps, geometric_mean, write_atomically
from .session import Arenas, Exchange, Session, SessionFailed
from .sources import case_functions, load_directory
from .task import Task, load_task

WARM_UPS = 3
NULL_CALLS = 32
PROBE_CALLS = 16
REMAPS = 16
"""How often per shape a call that returns memory not seen before is repeated."""


class BrokenEnvironment(Exception):
    """The grading cannot be carried out, for reasons that are not the submission's."""


@dataclass
class Plan:
    """One shape or case and everything known about it beforehand."""

    kind: str
    ordinal: int
    shape: tuple[int, ...]
    case: str
    work: int
    floor: tuple[float, float] | None
    layout: memory.Layout = field(default_factory=lambda: memory.Layout([], 0))
    outputs: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 1

    @property
    def label(self) -> str:
        """How messages name it; graded shapes by ordinal only."""
        return f"{self.kind} shape {self.ordinal}" + (f", case {self.case}" if self.case else "")


class Grading:
    """The state of one grading. Each method is one step of the module's docstring."""

    def __init__(self, job: Job, link: Link) -> None:
        self.job, self.link = job, link
        directory = Path(job.task_dir)
        self.task: Task = load_task(directory)
        self.namespace = load_directory(directory, job.device)
        self.cases = case_functions(self.namespace)
        self.gates = Gates(self.task.tol, self.task.tile_kappa, self.task.tile_epsilon)
        self.result = Result(
            self.task.name, self.task.version, self.task.spec_digest, self.task.metric,
            job.submission_sha256, job.mode, Status.INFRASTRUCTURE_ERROR,
            environment=environment(job.device), started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )  # fmt: skip
        self.plans: list[Plan] = []
        self.shapes: dict[tuple[str, int], ShapeResult] = {}
        self.next_seed = job.seed
        self.arenas: Arenas
        name = self.result.environment["device"]
        self.peaks = ceilings.datasheet_peaks(name) if job.device == "cuda" else None
        if job.device == "cuda" and self.peaks is None:
            self.result.warnings.append(f"no datasheet peaks for {name}: impossible times are not recognised")

    # -- what to run ---------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Plan every call and size the shared memory by running generator and reference once per plan."""
        kinds = ("correct", "graded") if self.job.mode == "grade" else self.job.kinds
        if self.job.device == "cpu" and self.job.mode == "grade":
            kinds = ("correct",)
        for kind in kinds:
            if kind not in self.task.shapes:
                raise BrokenEnvironment(f"this task directory has no {kind} shapes; grade with the hidden one (tests/)")
            floors = self.task.floor[kind] if self.task.floor else [None] * len(self.task.shapes[kind])
            for k, shape in enumerate(self.task.shapes[kind]):
                for case in ("", *self.task.cases) if kind == "correct" else ("",):
                    self.plans.append(Plan(kind, k + 1, shape, case, self.task.work[kind][k], floors[k]))
        for k, shape in enumerate(self.job.shapes):
            work = int(self.namespace["canonical_work"](*shape))
            self.plans.append(Plan("given", k + 1, shape, "", work, None))
        self.plans = [plan for plan in self.plans if self._learn(plan)]
        argument_bytes = max(plan.layout.nbytes for plan in self.plans)
        output_bytes = max(
            sum(_aligned(o["numel"] * max(4, o["itemsize"])) for o in plan.outputs) for plan in self.plans
        )
        self.release()
        self.arenas = Arenas.allocate(self.job.device, argument_bytes, output_bytes)

    def _learn(self, plan: Plan) -> bool:
        args = self.make_inputs(plan, secrets.randbits(63))
        if args is None:
            return False
        plan.layout = memory.plan_layout(args)
        for output in as_tuple(self.reference(args)):
            plan.outputs.append(
                {
                    "shape": list(output.shape), "dtype": dtype_name(output.dtype),
                    "numel": output.numel(), "itemsize": output.element_size(),
                }
            )  # fmt: skip
        nbytes = plan.floor[0] if plan.floor else _aligned(sum(o["numel"] * o["itemsize"] for o in plan.outputs))
        floor_ms = (self.peaks or ceilings.Peaks(4.8e12, 1e15)).floor_ms(nbytes, plan.floor[1] if plan.floor else 0.0)
        if plan.kind != "correct":
            plan.calls = self.job.calls or (64 if floor_ms < 1.0 else 32)
        if (plan.kind, plan.ordinal) not in self.shapes:
            shape = ShapeResult(plan.kind, plan.ordinal, list(plan.shape), plan.work, 0)
            self.shapes[plan.kind, plan.ordinal] = shape
            self.result.shapes.append(shape)
        return True

    def make_inputs(self, plan: Plan, seed: int) -> tuple[Any, ...] | None:
        """One call's arguments, or None where a case does not apply to a shape."""
        maker = self.cases[plan.case] if plan.case else self.namespace["_mk"]
        args = maker(*plan.shape, seed)
        return None if args is None else tuple(args)

    def reference(self, args: Sequence[Any]) -> Any:
        """The expected outputs."""
        with torch.no_grad():
            return self.namespace[self.task.func](*args)

    def release(self) -> None:
        """Give cached GPU memory back to the device, so that a worker has it."""
        if self.job.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    # -- calls ---------------------------------------------------------------------------------------------------

    def seed(self) -> int:
        """A fresh random seed, or the next consecutive one if the job fixed the first."""
        if self.next_seed is None:
            return secrets.randbits(63)
        self.next_seed += 1
        return self.next_seed - 1

    def call(self, session: Session, plan: Plan, timeout_s: float) -> Exchange:
        """One verified call with fresh inputs.

        Raises:
            SessionFailed: the call failed in any way; the failure is recorded.
        """
        seed = self.seed()
        args = self.make_inputs(plan, seed)
        assert args is not None
        layout = memory.plan_layout(args)
        if layout.nbytes > self.arenas.private.numel():
            raise BrokenEnvironment(f"{plan.label}: the inputs' size depends on the seed")
        args = tuple(memory.fill_arena(self.arenas.private, layout.arguments, args))
        shape = self.shapes[plan.kind, plan.ordinal]
        try:
            exchange = session.exchange(layout.arguments, layout.nbytes, timeout_s)
            self._verify(plan, args, layout, exchange, shape)
        except SessionFailed as failure:
            self._record(failure, plan, seed)
            raise
        shape.seeds.append(seed)
        shape.calls += 1
        self.result.calls_verified += 1
        return exchange

    def _verify(
        self, plan: Plan, args: Sequence[Any], layout: memory.Layout, exchange: Exchange, shape: ShapeResult
    ) -> None:
        if not self.arenas.unchanged(layout.nbytes):
            raise SessionFailed(Status.INPUTS_MODIFIED, f"{plan.label}: the function wrote into its inputs")
        expected = as_tuple(self.reference(args))
        names = [output.name for output in self.task.outputs]
        if len(exchange.outputs) != len(names):
            count = f"{len(exchange.outputs)} outputs, expected {len(names)}"
            raise SessionFailed(Status.WRONG_COUNT, f"{plan.label}: {count}")
        regions = build_regions(self.namespace["regions"](*args), names) if self.task.has_regions else []
        reports = compare_outputs(
            expected, exchange.outputs, names, self.gates, [output.dtypes for output in self.task.outputs], regions
        )
        for report in reports:
            shape.errors[report.name] = max(report.error, shape.errors.get(report.name, 0.0))
            shape.tile_ratios[report.name] = max(report.tile_ratio, shape.tile_ratios.get(report.name, 0.0))
            for region, error in report.regions.items():
                shape.regions[region] = max(error, shape.regions.get(region, 0.0))
        broken = next((report for report in reports if report.failure), None)
        if broken is not None:
            raise SessionFailed(Status(broken.failure), f"{plan.label}: {broken.message}", outputs=reports)

    def _record(self, failure: SessionFailed, plan: Plan | None = None, seed: int | None = None) -> None:
        """Keep the first failure; what is broken here is none of the submission's."""
        if self.result.failure is None and failure.status is not Status.INFRASTRUCTURE_ERROR:
            self.result.failure = CallFailure(
                plan.kind if plan else "", plan.ordinal if plan else 0, plan.case if plan else "",
                failure.message, list(plan.shape) if plan else [], seed,
                [dataclasses.asdict(report) for report in failure.outputs], failure.traceback,
            )  # fmt: skip

    # -- steps ---------------------------------------------------------------------------------------------------

    def verify(self, session: Session) -> list[SessionFailed]:
        """Every correct shape and case, untimed; first failures are raised unless the job says to go on."""
        failures: list[SessionFailed] = []
        plans = [plan for plan in self.plans if plan.kind == "correct"]
        for k, plan in enumerate(plans):
            self.progress("verifying", k, len(plans))
            try:
                exchange = self.call(session, plan, self.job.first_call_s)
                self.shapes[plan.kind, plan.ordinal].claim_ms.append(exchange.claim_ms)
            except SessionFailed as failure:
                comparison = failure.status in (
                    Status.INCORRECT, Status.NOT_FINITE, Status.WRONG_SHAPE, Status.WRONG_DTYPE, Status.INPUTS_MODIFIED,
                )  # fmt: skip
                failures.append(failure)
                if not (self.job.keep_going and comparison):
                    raise
        return failures

    def time(self, session: Session) -> None:
        """Warm every timed shape up, then the counted calls in random order."""
        plans = [plan for plan in self.plans if plan.kind != "correct"]
        for k, plan in enumerate(plans):
            self.progress("warming up", k, len(plans))
            for attempt in range(WARM_UPS):
                self.call(session, plan, self.job.call_s if attempt else self.job.first_call_s)
        order = [plan for plan in plans for _ in range(plan.calls)]
        random.SystemRandom().shuffle(order)
        remaps: dict[int, int] = defaultdict(int)
        for k, plan in enumerate(order):
            self.progress("timing", k, len(order))
            exchange = self.call(session, plan, self.job.call_s)
            while not exchange.mapped:
                remaps[id(plan)] += 1
                if remaps[id(plan)] > REMAPS:
                    raise SessionFailed(
                        Status.PROTOCOL_VIOLATION,
                        f"{plan.label}: call after call returns memory from a new allocation; keep torch's allocator",
                    )
                exchange = self.call(session, plan, self.job.call_s)
            shape = self.shapes[plan.kind, plan.ordinal]
            if self.job.device == "cuda" and not valid_claim(exchange.claim_ms, exchange.wall_ms):
                times = f"claims {exchange.claim_ms} ms within {exchange.wall_ms} ms of wall clock"
                raise SessionFailed(Status.CLOCK_MISMATCH, f"{plan.label}: {times}")
            shape.wall_ms.append(exchange.wall_ms)
            shape.claim_ms.append(exchange.claim_ms)

    def overhead(self) -> dict[int, Overhead]:
        """One trusted launch: c and bias at every timed shape, by `id(plan)`."""
        plans = [plan for plan in self.plans if plan.kind != "correct"]
        if self.job.device != "cuda" or not plans:
            return {}
        for plan in plans:
            args = self.make_inputs(plan, secrets.randbits(63))
            assert args is not None
            memory.fill_arena(self.arenas.private, memory.plan_layout(args).arguments, args)
        session = Session(self.link, self.task, self.job, self.arenas, trusted=True)
        measured = {}
        try:
            for k, plan in enumerate(plans):
                self.progress("measuring the overhead", k, len(plans))
                nulls = self.probe(session, plan, "null", 0, NULL_CALLS)
                probes = self.probe(session, plan, "copy", self._probe_bytes(plan), PROBE_CALLS)
                measured[id(plan)] = Overhead(
                    tuple(e.wall_ms for e in nulls), tuple(e.wall_ms for e in probes), tuple(e.claim_ms for e in probes)
                )
        finally:
            session.close()
        return measured

    def probe(
        self, session: Session, plan: Plan, kind: str, amount: int, calls: int, repeat: int = 1
    ) -> list[Exchange]:
        """Repeat one probe at a plan's shape, after warm-ups that are not kept."""
        request = {"kind": kind, "amount": amount, "repeat": repeat, "outputs": plan.outputs}
        done = [
            session.exchange(plan.layout.arguments, plan.layout.nbytes, self.job.call_s, request)
            for _ in range(calls + WARM_UPS)
        ]
        return done[WARM_UPS:]

    def _probe_bytes(self, plan: Plan) -> int:
        """Bytes whose copy takes about the time of the plan's floor, or of writing its outputs without a floor."""
        peaks = self.peaks or ceilings.Peaks(4.8e12, 1e15)
        nbytes, flops = plan.floor or (sum(o["numel"] * o["itemsize"] for o in plan.outputs), 0.0)
        # A copy reads and writes, hence half; FLOPs at half of the fastest dense rate, which is the bf16 one.
        seconds = max(nbytes / peaks.bytes_per_s, 2 * flops / peaks.flop_per_s)
        return min(max(int(seconds * peaks.bytes_per_s / 2), 64 << 20), 8 << 30)

    def score(self, before: dict[int, Overhead], after: dict[int, Overhead]) -> None:
        """Fill in every timed shape's figures and, for a grading, the task's score and reward.

        Raises:
            SessionFailed: a time is impossible.
        """
        fractions, metrics, intervals = [], [], []
        for plan in self.plans:
            if plan.kind == "correct":
                continue
            shape = self.shapes[plan.kind, plan.ordinal]
            timed = shape_time(shape.wall_ms, shape.claim_ms, before[id(plan)], after[id(plan)])
            shape.overhead_ms = list(before[id(plan)].null_ms)
            shape.c_ms, shape.c_after_ms, shape.bias_ms = timed.c_ms, timed.c_after_ms, timed.bias_ms
            shape.delta_ms, shape.score_ms, shape.interval_ms = timed.delta_ms, timed.score_ms, list(timed.interval_ms)
            if timed.disagree:
                self.result.clock["disagree"] = True
            nbytes, flops = plan.floor or (float(sum(o["numel"] * o["itemsize"] for o in plan.outputs)), 0.0)
            floor_ms = self.peaks.floor_ms(nbytes, flops) if self.peaks else 0.0
            if timed.score_ms < floor_ms:
                times = f"{timed.score_ms:.4g} ms, the floor is {floor_ms:.4g} ms"
                failure = SessionFailed(Status.IMPOSSIBLE_TIME, f"{plan.label}: {times}")
                self._record(failure, plan)
                raise failure
            shape.limit_ms = ceilings.limit_ms(nbytes, flops, self.result.ceilings)
            shape.bounded = shape.limit_ms >= UNBOUNDED_BELOW * timed.delta_ms
            unit = plan.work / self.task.work_unit * 1e3
            shape.metric = unit / timed.score_ms
            shape.fraction_of_limit = shape.limit_ms / timed.score_ms
            metrics.append(shape.metric)
            fractions.append(shape.fraction_of_limit)
            intervals.append((unit / timed.interval_ms[1], unit / timed.interval_ms[0]))
            if self.job.mode == "grade" and not shape.bounded:
                raise BrokenEnvironment(
                    f"{plan.label}: the clock is too noisy here (delta {timed.delta_ms:.3g} ms against a limit of "
                    f"{shape.limit_ms:.3g} ms); is something else using the device?"
                )
        if metrics and self.job.mode == "grade":
            self.result.timed = True
            self.result.status = Status.PASSED
            self.result.score = geometric_mean(metrics)
            self.result.score_interval = [geometric_mean([i[k] for i in intervals]) for k in (0, 1)]
            self.result.reward = min(1.0, geometric_mean(fractions))

    def measure_ceilings(self) -> dict[str, float]:
        """The device's ceilings now; none on the CPU."""
        if self.job.device != "cuda" or all(plan.kind == "correct" for plan in self.plans):
            return {}
        measured = ceilings.measure_ceilings()
        self.release()
        return measured

    def progress(self, step: str, done: int, total: int) -> None:
        """Tell whoever watches how far the grading is."""
        self.link.send({"op": "progress", "step": step, "done": done, "total": total})

    def run(self) -> Result:
        """All steps; always returns a result."""
        started = time.monotonic()
        try:
            self._run()
        except SessionFailed as failure:
            self.result.status, self.result.message = failure.status, failure.message
            self._record(failure)
        except (BrokenEnvironment, OSError) as error:
            self.result.status, self.result.message = Status.INFRASTRUCTURE_ERROR, str(error)
        self.result.duration_s = time.monotonic() - started
        if self.result.status is not Status.PASSED:
            self.result.score = self.result.reward = self.result.score_interval = None
            self.result.timed = False
        return self.result

    def _run(self) -> None:
        self.progress("preparing inputs and reference", 0, 1)
        self.learn()
        self.result.ceilings = self.measure_ceilings()
        if self.job.mode == "clock":
            from .study import study

            self.result.clock = study(self)
            self.result.status = Status.PASSED
            return
        before = self.overhead()
        free_bytes = self._free_bytes()
        failures: list[SessionFailed] = []
        if self.job.submission:
            session = Session(self.link, self.task, self.job, self.arenas, trusted=False)
            self.result.confinement = {"layers": session.layers}
            try:
                session.load_submission()
                failures = self.verify(session)
                self.time(session)
            except RuntimeError as error:
                if not _is_cuda_error(error):
                    raise
                self.result.clock["broker_cuda_error"] = True
                raise BrokenEnvironment(f"CUDA error in the broker while the submission ran: {error}") from None
            finally:
                session.close()
        self._wait_for_memory(free_bytes)
        after = self.overhead()
        self._check_drift()
        if failures:
            raise failures[0]
        self.result.status = Status.PASSED
        if before:
            self.score(before, after)

    def _free_bytes(self) -> int:
        self.release()
        return torch.cuda.mem_get_info()[0] if self.job.device == "cuda" else 0

    def _wait_for_memory(self, free_bytes: int) -> None:
        """Wait until the device has the dead worker's memory back."""
        deadline = time.monotonic() + 20
        while self.job.device == "cuda" and self._free_bytes() < free_bytes - (256 << 20):
            if time.monotonic() > deadline:
                raise BrokenEnvironment("the worker is dead, but its GPU memory did not come back within 20 s")
            time.sleep(0.05)

    def _check_drift(self) -> None:
        again = self.measure_ceilings()
        for name, value in again.items():
            drift = value / self.result.ceilings[name] - 1
            if abs(drift) > 0.02:
                self.result.warnings.append(f"the ceiling {name} drifted by {drift:+.1%} during the grading")
            self.result.ceilings[name] = max(value, self.result.ceilings[name])


def _is_cuda_error(error: RuntimeError) -> bool:
    """Whether an error is the CUDA context's, not one of ours: torch.AcceleratorError, or of that text before 2.8."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error) or isinstance(error, DriverError)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // memory.ALIGNMENT) * memory.ALIGNMENT


def environment(device: str) -> dict[str, Any]:
    """What ran where: device, driver, versions."""
    found: dict[str, Any] = {
        "device": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
    }
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "device": properties.name,
            "device_memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "sm_count": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "driver": _driver_version(),
        }
    return found


def _driver_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    words = text.split()
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def main(argv: list[str]) -> None:
    """Entry point: the descriptor of the link to the supervisor, and where to put the result."""
    confine.harden_trusted()
    die_with_parent()
    link = Link(socket.socket(fileno=int(argv[0])))
    message, _ = link.receive()
    job = job_from_json(message["job"])
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    if job.device == "cuda":
        torch.cuda.init()
        torch.zeros(1, device="cuda")
    result = Grading(job, link).run()
    write_atomically(Path(message["result_path"]), dumps(result.to_json()))
    link.send({"op": "finished"})
    sys.stdout.flush()
    os._exit(0)
