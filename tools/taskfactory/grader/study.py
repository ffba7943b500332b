"""How far the two clocks agree: trusted work of known duration, timed on the wall and by events, launch by launch.

The figures say what delta can be: `ratio` is (low end of the walls - c) over the median event time, `bias_ms`
their difference. A job of this mode that has a submission asks for a sweep against an adversary, which is in `sweep`.
"""

from __future__ import annotations

import secrets
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from .ceilings import probe_bytes
from .clock import Overhead, half_width, low
from .session import Exchange, Session

if TYPE_CHECKING:
    from .broker import Grading
    from .plan import Plan

COPY_MS = (0.2, 0.35, 0.5, 0.7, 1.0, 2.0, 3.5, 5.0)
"""Aimed-at durations of the copies, at the nominal bandwidth below."""
NOMINAL_BYTES_PER_S = 4.1e12
MATMULS = ((4096, 1), (8192, 1), (8192, 3))
"""Edge and repetitions of the bf16 matrix products."""
CALLS = 24
SETTLE_MS = (0.0, 2.0, 10.0, 30.0)
"""Durations of steady work before each call that are compared."""
REFERENCES = ("full", "small", "none")
WARM_UPS = 2


def study(grading: Grading) -> dict[str, Any]:
    """Several launches of a trusted worker; each measures c and every known duration at the first planned shape."""
    if grading.job.submission:
        from .sweep import sweep

        return sweep(grading)
    plan = grading.plans[0]
    launches = [_launch(grading, plan, k) for k in range(grading.job.calls or 1)]
    overheads = [launch["c_ms"] for launch in launches]
    settling = _settling(grading, plan) if grading.job.device == "cuda" else []
    return {
        "one_process": one_process() if grading.job.device == "cuda" else {},
        "shape": list(plan.shape), "argument_bytes": plan.layout.nbytes, "calls": CALLS,
        "c_drift_ms": max(overheads) - min(overheads), "launches": launches, "settling": settling,
        "around": _around(grading, plan),
    }  # fmt: skip


def _settling(grading: Grading, plan: Plan) -> list[dict[str, Any]]:
    """How steady the overhead is after so many ms of steady work on the device."""
    session = Session(grading.link, grading.workload.task, grading.job, grading.arenas, trusted=True)
    found = []
    try:
        for settle_ms in SETTLE_MS:
            session.settle_ms = settle_ms
            probes = _probes(grading, session, plan, CALLS)
            found.append(
                {
                    "settle_ms": settle_ms, "c_ms": probes.c_ms, "half_width_ms": half_width(probes.beyond_ms),
                    "beyond_ms": probes.beyond_ms,
                }
            )  # fmt: skip
    finally:
        session.close()
    return found


def _around(grading: Grading, plan: Plan) -> list[dict[str, Any]]:
    """c with the reference between trusted calls, with a small one and with none, at random, and what a call takes."""
    session = Session(grading.link, grading.workload.task, grading.job, grading.arenas, trusted=True)
    calls = CALLS if grading.job.device == "cuda" else 3
    order = [reference for reference in REFERENCES for _ in range(calls)]
    secrets.SystemRandom().shuffle(order)
    # What lies between two calls matters to the second: a call belongs to what the one before it did.
    done: dict[str, list[Exchange]] = {reference: [] for reference in REFERENCES}
    seconds = dict.fromkeys(REFERENCES, 0.0)
    before = ""
    try:
        for reference in [*([REFERENCES[0]] * WARM_UPS), *order]:
            started = time.perf_counter()
            amount = probe_bytes(plan.unavoidable)
            exchange = grading.trusted_call(session, plan, "copy", amount, reference=reference)
            seconds[reference] += time.perf_counter() - started
            if before:
                done[before].append(exchange)
            before = reference
    finally:
        session.close()
    counts = dict.fromkeys(REFERENCES, calls) | {REFERENCES[0]: calls + WARM_UPS}
    return [
        {
            "reference": kind, "c_ms": Overhead.of(exchanges).c_ms,
            "half_width_ms": half_width(Overhead.of(exchanges).beyond_ms),
            "beyond_ms": Overhead.of(exchanges).beyond_ms, "call_ms": 1e3 * seconds[kind] / counts[kind],
        }
        for kind, exchanges in done.items()
    ]  # fmt: skip


def _calls(
    grading: Grading, session: Session, plan: Plan, calls: int, kind: str, amount: int = 0, repeat: int = 1
) -> list[Exchange]:
    """Calls of one kind, after warm-ups that are not kept."""
    done = [grading.trusted_call(session, plan, kind, amount, repeat) for _ in range(calls + WARM_UPS)]
    return done[WARM_UPS:]


def _probes(grading: Grading, session: Session, plan: Plan, calls: int) -> Overhead:
    """The copies from which a grading takes c at this shape."""
    return Overhead.of(_calls(grading, session, plan, calls, "copy", probe_bytes(plan.unavoidable)))


def one_process() -> dict[str, float]:
    """The same two clocks without any second process: matrix products timed by events and by the host, in ms."""
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    found = {}
    for repeat in (1, 4, 16, 128):
        events, walls = [], []
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            start.record()
            for _ in range(repeat):
                torch.mm(a, a)
            end.record()
            torch.cuda.synchronize()
            walls.append((time.perf_counter_ns() - began) / 1e6)
            events.append(start.elapsed_time(end))
        found[f"events_{repeat}_ms"] = statistics.median(events)
        found[f"wall_{repeat}_ms"] = statistics.median(walls)
    return found


def _launch(grading: Grading, plan: Plan, number: int) -> dict[str, Any]:
    session = Session(grading.link, grading.workload.task, grading.job, grading.arenas, trusted=True)
    cuda = grading.job.device == "cuda"
    calls = CALLS if cuda else 3
    works = [("copy", int(ms / 1e3 * NOMINAL_BYTES_PER_S / 2), 1) for ms in (COPY_MS if cuda else (0.2,))]
    works += [("matmul", edge, repeat) for edge, repeat in (MATMULS if cuda else ())]
    try:
        overhead = _probes(grading, session, plan, calls)
        c_ms = overhead.c_ms
        nulls = [e.wall_ms for e in _calls(grading, session, plan, calls, "null")]
        probes = []
        for k, (kind, amount, repeat) in enumerate(works):
            grading.progress(f"launch {number + 1}", k, len(works))
            done = _calls(grading, session, plan, calls, kind, amount, repeat)
            walls, claims = [e.wall_ms for e in done], [e.claim_ms for e in done]
            claim = statistics.median(claims)
            probes.append(
                {
                    "kind": kind, "amount": amount, "repeat": repeat, "claim_ms": claim,
                    "wall_minus_c_ms": low(walls) - c_ms, "half_width_ms": half_width(walls),
                    "bias_ms": low(walls) - c_ms - claim,
                    "ratio": (low(walls) - c_ms) / claim, "walls_ms": walls, "claims_ms": claims,
                    "reveals_ms": [e.reveal_ms for e in done], "snapshots_ms": [e.snapshot_ms for e in done],
                }
            )  # fmt: skip
        again = _probes(grading, session, plan, calls).c_ms
    finally:
        session.close()
    return {
        "c_ms": c_ms,
        "c_again_ms": again,
        "c_half_width_ms": half_width(overhead.beyond_ms),
        "beyond_ms": overhead.beyond_ms,
        "nulls_ms": nulls,
        "probes": probes,
    }
