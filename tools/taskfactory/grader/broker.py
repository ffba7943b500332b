"""The trusted process: inputs, reference, clock, verdict. It never imports the submission.

learn     what every shape and case looks like: argument layout, output shapes
overhead  a trusted worker at work of known duration: c
verify    the submission, untimed: every correct shape and case; the first failure ends it
time      the submission: warm-ups, then N calls a shape, interleaved at random, every one verified
overhead  again, once the submission's processes and GPU memory are gone, until two launches agree
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import secrets
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from . import ceilings, confine, memory
from .clock import STEADY, Overhead, allowance, valid_claim
from .environment import environment
from .job import Job, Link, job_from_json
from .plan import BrokenEnvironment, Plan, Workload
from .processes import die_with_parent
from .result import CallFailure, Result, ShapeResult, Status, dumps, write_atomically
from .score import ImpossibleTime, Timed, fill_in, total
from .session import Arenas, Exchange, Session, SessionFailed

WARM_UPS = 3
PROBE_CALLS = 32
MOST_LAUNCHES = 4
"""Of trusted workers, the one before the submission included."""
REMAPS = 16
"""How often per shape a call that returns memory not seen before is repeated."""
COMPARED = frozenset(
    (Status.INCORRECT, Status.NOT_FINITE, Status.WRONG_SHAPE, Status.WRONG_DTYPE, Status.INPUTS_MODIFIED)
)
"""Failures after which a worker still is as good as before."""


class Grading:
    """The state of one grading. Its methods are the steps of the module's docstring."""

    def __init__(self, job: Job, link: Link) -> None:
        self.job, self.link = job, link
        self.cuda = job.device == "cuda"
        self.workload = Workload(Path(job.task_dir), job.device)
        task = self.workload.task
        self.result = Result(
            task.name, task.version, task.spec_digest, task.metric, job.submission_sha256, job.mode,
            Status.INFRASTRUCTURE_ERROR, environment=environment(job.device),
            started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )  # fmt: skip
        self.plans: list[Plan] = []
        self.shapes: dict[tuple[str, int], ShapeResult] = {}
        self.next_seed = job.seed
        self.arenas: Arenas
        name = self.result.environment["device"]
        self.peaks = ceilings.datasheet_peaks(name) if self.cuda else None
        if self.cuda and self.peaks is None:
            self.result.warnings.append(f"no datasheet peaks for {name}: impossible times are not recognised")
        if not task.mixed:
            self.result.warnings.append("timed inputs are not mixed: the cases can be told from timed calls (TF227)")

    def run(self) -> Result:
        """All steps; always returns a result."""
        started = time.monotonic()
        try:
            self._steps()
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

    def _steps(self) -> None:
        self.progress("preparing inputs and reference", 0, 1)
        self.learn()
        self.result.ceilings = self.measure_ceilings()
        if self.job.mode == "clock":
            from .study import study

            self.result.clock = study(self)
            self.result.status = Status.PASSED
            return
        launches = [self.overhead()]
        free_bytes = self._free_bytes()
        failures = self.judge()
        self._wait_for_memory(free_bytes)
        launches.append(self.overhead())
        self._check_drift()
        if failures:
            raise failures[0]
        while len(launches) < MOST_LAUNCHES and self._unsteady(launches):
            launches.append(self.overhead())
        self.result.status = Status.PASSED
        if launches[0]:
            self.score(launches)

    # -- what to run ---------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Plan every call and size the shared memory."""
        for plan in self.workload.plans(self.job):
            if not self.workload.learn(plan, secrets.randbits(63)):
                continue
            self.plans.append(plan)
            if plan.timed:
                floor_ms = (self.peaks or ceilings.NOMINAL).floor_ms(*plan.unavoidable)
                plan.calls = self.job.calls or (64 if floor_ms < 1.0 else 32)
            if (plan.kind, plan.ordinal) not in self.shapes:
                shape = ShapeResult(plan.kind, plan.ordinal, list(plan.shape), plan.work, 0)
                self.shapes[plan.kind, plan.ordinal] = shape
                self.result.shapes.append(shape)
        self.release()
        self.arenas = Arenas.allocate(
            self.job.device,
            max(plan.layout.nbytes for plan in self.plans),
            max(plan.snapshot_bytes for plan in self.plans),
        )

    def release(self) -> None:
        """Give cached GPU memory back to the device, so that a worker has it."""
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    @functools.cached_property
    def small_inputs(self) -> tuple[Any, ...]:
        """The ordinary inputs of the first correct shape."""
        return tuple(self.workload.makers[""](*self.workload.task.shapes["correct"][0], secrets.randbits(63)))

    # -- calls ---------------------------------------------------------------------------------------------------

    def seed(self) -> int:
        """A fresh random seed, or the next consecutive one if the job fixed the first."""
        if self.next_seed is None:
            return secrets.randbits(63)
        self.next_seed += 1
        return self.next_seed - 1

    def fill(self, plan: Plan, seed: int) -> tuple[memory.Layout, tuple[Any, ...]]:
        """Put one call's inputs into the private arena; returns their layout and views of them."""
        args = self.workload.make_inputs(plan, seed)
        assert args is not None
        layout = memory.plan_layout(args)
        if layout.nbytes > self.arenas.private.numel():
            raise BrokenEnvironment(f"{plan.label}: the inputs' size depends on the seed")
        return layout, tuple(memory.fill_arena(self.arenas.private, layout.arguments, args))

    def call(self, session: Session, plan: Plan, timeout_s: float) -> Exchange:
        """One verified call of the submission with fresh inputs.

        Raises:
            SessionFailed: the call failed in any way; the failure is recorded.
        """
        seed = self.seed()
        layout, args = self.fill(plan, seed)
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

    def trusted_call(
        self, session: Session, plan: Plan, kind: str, amount: int = 0, repeat: int = 1, *, reference: str = "full"
    ) -> Exchange:
        """One call of a trusted worker, with the same work of the broker around it as around a submission's call.

        Args:
            reference: "full" runs the reference on the call's inputs, "small" on those of the first correct shape, as
                much work for the host, "none" does not run it; the clock study asks how much that matters.
        """
        layout, args = self.fill(plan, secrets.randbits(63))
        probe = {"kind": kind, "amount": amount, "repeat": repeat, "outputs": plan.outputs}
        exchange = session.exchange(layout.arguments, layout.nbytes, self.job.call_s, probe)
        self.arenas.unchanged(layout.nbytes)
        if reference == "full":
            self.workload.reference(args)
        elif reference == "small":
            self.workload.reference(self.small_inputs)
        return exchange

    def _verify(
        self, plan: Plan, args: tuple[Any, ...], layout: memory.Layout, exchange: Exchange, shape: ShapeResult
    ) -> None:
        if not self.arenas.unchanged(layout.nbytes):
            raise SessionFailed(Status.INPUTS_MODIFIED, f"{plan.label}: the function wrote into its inputs")
        expected = self.workload.reference(args)
        if len(exchange.outputs) != len(expected):
            count = f"{len(exchange.outputs)} outputs, expected {len(expected)}"
            raise SessionFailed(Status.WRONG_COUNT, f"{plan.label}: {count}")
        reports = self.workload.compare(args, expected, exchange.outputs)
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

    def judge(self) -> list[SessionFailed]:
        """The submission's whole life: import, verification, timing; returns the failures a job wants to go past."""
        session = Session(self.link, self.workload.task, self.job, self.arenas, trusted=False)
        self.result.confinement = {"layers": session.layers}
        try:
            session.load_submission()
            failures = self.verify(session)
            self.time(session)
        except RuntimeError as error:
            if not memory.is_cuda_error(error):
                raise
            self.result.clock["broker_cuda_error"] = True
            raise BrokenEnvironment(f"CUDA error in the broker while the submission ran: {error}") from None
        finally:
            session.close()
        return failures

    def verify(self, session: Session) -> list[SessionFailed]:
        """Every correct shape and case, untimed; the first failure is raised unless the job says to go on."""
        failures: list[SessionFailed] = []
        plans = [plan for plan in self.plans if not plan.timed]
        for k, plan in enumerate(plans):
            self.progress("verifying", k, len(plans))
            try:
                exchange = self.call(session, plan, self.job.first_call_s)
                self.shapes[plan.kind, plan.ordinal].claim_ms.append(exchange.claim_ms)
            except SessionFailed as failure:
                failures.append(failure)
                if not (self.job.keep_going and failure.status in COMPARED):
                    raise
        return failures

    def time(self, session: Session) -> None:
        """Warm every timed shape up, then the counted calls in random order."""
        plans = [plan for plan in self.plans if plan.timed]
        for k, plan in enumerate(plans):
            self.progress("warming up", k, len(plans))
            for attempt in range(WARM_UPS):
                self.call(session, plan, self.job.call_s if attempt else self.job.first_call_s)
        remaps: dict[int, int] = defaultdict(int)

        def fail(plan: Plan, status: Status, reason: str) -> NoReturn:
            failure = SessionFailed(status, f"{plan.label}: {reason}")
            self._record(failure, plan)
            raise failure

        def one(plan: Plan) -> None:
            exchange = self.call(session, plan, self.job.call_s)
            while not exchange.mapped:
                remaps[id(plan)] += 1
                if remaps[id(plan)] > REMAPS:
                    reason = "call after call returns memory from a new allocation; keep torch's allocator"
                    fail(plan, Status.PROTOCOL_VIOLATION, reason)
                exchange = self.call(session, plan, self.job.call_s)
            if self.cuda and not valid_claim(exchange.claim_ms, exchange.wall_ms):
                times = f"claims {exchange.claim_ms} ms within {exchange.wall_ms} ms of wall clock"
                fail(plan, Status.CLOCK_MISMATCH, times)
            self.shapes[plan.kind, plan.ordinal].add(exchange)

        self.interleave("timing", [(plan, plan.calls) for plan in plans], one)

    def interleave(self, step: str, counts: list[tuple[Plan, int]], one: Callable[[Plan], None]) -> None:
        """Do `one(plan)` the given number of times for every plan, in random order."""
        order = [plan for plan, count in counts for _ in range(count)]
        random.SystemRandom().shuffle(order)
        for k, plan in enumerate(order):
            self.progress(step, k, len(order))
            one(plan)

    def overhead(self) -> dict[int, Overhead]:
        """One trusted launch: copies of about the floor's duration at every timed shape; nothing on the CPU.

        Returns:
            By `id(plan)`.
        """
        plans = [plan for plan in self.plans if plan.timed]
        if not self.cuda or not plans:
            return {}
        session = Session(self.link, self.workload.task, self.job, self.arenas, trusted=True)
        probes: dict[int, list[Exchange]] = defaultdict(list)

        def copy(plan: Plan) -> None:
            probes[id(plan)].append(self.trusted_call(session, plan, "copy", ceilings.probe_bytes(plan.unavoidable)))

        try:
            for plan in plans:
                copy(plan)
            probes.clear()
            self.interleave("measuring the overhead", [(plan, PROBE_CALLS) for plan in plans], copy)
        finally:
            session.close()
        return {key: Overhead.of(done) for key, done in probes.items()}

    def _unsteady(self, launches: list[dict[int, Overhead]]) -> bool:
        """Whether delta is larger than it should be at some shape; decided by trusted launches and limits alone."""
        return any(
            allowance([launch[id(plan)] for launch in launches])[2]
            > STEADY * ceilings.limit_ms(*plan.unavoidable, self.result.ceilings)
            for plan in self.plans
            if id(plan) in launches[0]
        )

    def score(self, launches: list[dict[int, Overhead]]) -> None:
        """Every timed shape's figures and, for a grading, the task's score and reward.

        Raises:
            SessionFailed: a time is impossible. BrokenEnvironment: the clock is too noisy to bound a graded time.
        """
        plans = [plan for plan in self.plans if plan.timed]
        for plan in plans:
            shape = self.shapes[plan.kind, plan.ordinal]
            entry = Timed(plan, shape, [launch[id(plan)] for launch in launches])
            try:
                if fill_in(entry, self.result.ceilings, self.peaks, self.workload.task.work_unit):
                    self.result.clock["disagree"] = True
            except ImpossibleTime as error:
                failure = SessionFailed(Status.IMPOSSIBLE_TIME, str(error))
                self._record(failure, plan)
                raise failure from None
        if self.job.mode != "grade":
            return
        shapes = [self.shapes[plan.kind, plan.ordinal] for plan in plans]
        total(self.result, shapes)

    def measure_ceilings(self) -> dict[str, float]:
        """The device's ceilings now; none on the CPU or where nothing is timed."""
        if not self.cuda or not any(plan.timed for plan in self.plans):
            return {}
        measured = ceilings.measure_ceilings()
        self.release()
        return measured

    def progress(self, step: str, done: int, count: int) -> None:
        """Tell whoever watches how far the grading is."""
        self.link.send({"op": "progress", "step": step, "done": done, "total": count})

    def _free_bytes(self) -> int:
        self.release()
        return torch.cuda.mem_get_info()[0] if self.cuda else 0

    def _wait_for_memory(self, free_bytes: int) -> None:
        """Wait until the device has the dead worker's memory back."""
        deadline = time.monotonic() + 20
        while self.cuda and self._free_bytes() < free_bytes - (256 << 20):
            if time.monotonic() > deadline:
                raise BrokenEnvironment("the worker is dead, but its GPU memory did not come back within 20 s")
            time.sleep(0.05)

    def _check_drift(self) -> None:
        for name, value in self.measure_ceilings().items():
            drift = value / self.result.ceilings[name] - 1
            if abs(drift) > 0.02:
                self.result.warnings.append(f"the ceiling {name} drifted by {drift:+.1%} during the grading")
            self.result.ceilings[name] = max(value, self.result.ceilings[name])


def main(argv: list[str]) -> None:
    """Entry point: the descriptor of the link to the supervisor, which sends the job."""
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
    os._exit(0)
