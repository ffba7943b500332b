"""How far the two clocks agree: trusted work of known duration, timed on the wall and by events, launch by launch.

The figures say what delta can be: `ratio` is (median wall - c) / median event time, `bias_ms` their difference.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from .clock import half_width
from .session import Session

if TYPE_CHECKING:
    from .broker import Grading, Plan

COPY_MS = (0.2, 0.35, 0.5, 0.7, 1.0, 2.0, 3.5, 5.0)
"""Aimed-at durations of the copies, at the nominal bandwidth below."""
NOMINAL_BYTES_PER_S = 4.1e12
MATMULS = ((4096, 1), (8192, 1), (8192, 3))
"""Edge and repetitions of the bf16 matrix products."""
CALLS = 48


def study(grading: Grading) -> dict[str, Any]:
    """Several launches of a trusted worker; each measures c and every known duration at the first planned shape."""
    plan = grading.plans[0]
    args = grading.make_inputs(plan, 1)
    assert args is not None
    from .memory import fill_arena

    fill_arena(grading.arenas.private, plan.layout.arguments, args)
    launches = [_launch(grading, plan, k) for k in range(grading.job.calls or 1)]
    medians = [launch["c_ms"] for launch in launches]
    return {
        "shape": list(plan.shape), "argument_bytes": plan.layout.nbytes, "calls": CALLS,
        "c_drift_ms": max(medians) - min(medians), "launches": launches,
    }  # fmt: skip


def _launch(grading: Grading, plan: Plan, number: int) -> dict[str, Any]:
    session = Session(grading.link, grading.task, grading.job, grading.arenas, trusted=True)
    cuda = grading.job.device == "cuda"
    calls = CALLS if cuda else 3
    works = [("copy", int(ms / 1e3 * NOMINAL_BYTES_PER_S / 2), 1) for ms in (COPY_MS if cuda else (0.2,))]
    works += [("matmul", edge, repeat) for edge, repeat in (MATMULS if cuda else ())]
    try:
        nulls = [e.wall_ms for e in grading.probe(session, plan, "null", 0, calls)]
        c_ms = statistics.median(nulls)
        probes = []
        for k, (kind, amount, repeat) in enumerate(works):
            grading.progress(f"launch {number + 1}", k, len(works))
            done = grading.probe(session, plan, kind, amount, calls, repeat)
            walls, claims = [e.wall_ms for e in done], [e.claim_ms for e in done]
            claim = statistics.median(claims)
            probes.append(
                {
                    "kind": kind, "amount": amount, "repeat": repeat, "claim_ms": claim,
                    "wall_minus_c_ms": statistics.median(walls) - c_ms, "half_width_ms": half_width(walls),
                    "bias_ms": statistics.median(walls) - c_ms - claim,
                    "ratio": (statistics.median(walls) - c_ms) / claim, "walls_ms": walls, "claims_ms": claims,
                }
            )  # fmt: skip
        again = statistics.median(e.wall_ms for e in grading.probe(session, plan, "null", 0, calls))
    finally:
        session.close()
    return {
        "c_ms": c_ms,
        "c_again_ms": again,
        "c_half_width_ms": half_width(nulls),
        "nulls_ms": nulls,
        "probes": probes,
    }
