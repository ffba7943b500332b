"""The clock against an adversary: untrusted workers at work of known duration, between trusted launches that know it.

One broker and one arena serve many submissions, since a worker's start takes longer than all the calls it is asked for.
The figures are raw; what they mean is computed elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .broker import COMPARED, REMAPS
from .clock import valid_claim
from .result import Status
from .session import Exchange, Session, SessionFailed

if TYPE_CHECKING:
    from .broker import Grading

RESTARTS = 8
"""How often the cells of a worker that broke are continued in a new one."""


def sweep(grading: Grading) -> dict[str, Any]:
    """Untrusted workers at work of known duration, between trusted launches of the same work and of what c comes from.

    `sweep.json` beside the submission says what to run. Both are the caller's own: no grading comes here.

        works   list of [kind, amount, repeat]: what each trusted launch does
        trusted_calls, calls, warm_ups
                calls of each work and of each cell, and those before them that are not kept
        groups  list of {"name", "file", "cells", "after"}: a submission in the same folder, the ordinals of the shapes
                that its worker is called at (the cells), and whether a trusted launch follows
        family  position in a shape of what cells have in common: where two have broken the worker, the rest is left out

    Every call is verified, and a failure is kept beside its times; unlike in a grading it ends only its cell.
    """
    folder = Path(grading.job.submission).parent
    asked = json.loads((folder / "sweep.json").read_text("utf-8"))
    found: dict[str, Any] = {"launches": [], "groups": []}
    grading.result.clock = found  # what has been measured is kept if the rest fails
    found["launches"].append(_trusted_launch(grading, asked))
    for group in asked["groups"]:
        before = len(found["launches"]) - 1
        cells = {ordinal: Cell(ordinal, list(grading.plans[ordinal - 1].shape)) for ordinal in group["cells"]}
        free_bytes = grading._free_bytes()
        _attacked(grading, group, cells, asked)
        grading._wait_for_memory(free_bytes)
        if group["after"]:
            found["launches"].append(_trusted_launch(grading, asked))
        entry = {"name": group["name"], "before": before, "after": None}
        found["groups"].append(entry | {"cells": [dataclasses.asdict(cell) for cell in cells.values()]})
        for earlier in found["groups"]:
            if group["after"] and earlier["after"] is None:
                earlier["after"] = len(found["launches"]) - 1
    return found


@dataclasses.dataclass
class Cell:
    """The calls of one worker at one shape. `status` is that of the first call that failed, warm-ups included."""

    ordinal: int
    shape: list[int]
    status: str = Status.PASSED.value
    message: str = ""
    walls_ms: list[float] = dataclasses.field(default_factory=list)
    claims_ms: list[float] = dataclasses.field(default_factory=list)
    failed: list[int] = dataclasses.field(default_factory=list)
    """Which of the calls were wrong."""
    broke: bool = False
    """Whether it ended its worker."""

    def fail(self, failure: SessionFailed) -> None:
        if self.status == Status.PASSED.value:
            self.status, self.message = failure.status.value, failure.message


def _trusted_launch(grading: Grading, asked: dict[str, Any]) -> dict[str, Any]:
    """The works in one launch of a trusted worker, interleaved at random as in a grading."""
    plan = grading.plans[0]
    session = Session(grading.link, grading.workload.task, grading.job, grading.arenas, trusted=True)
    works = [tuple(work) for work in asked["works"]]
    kept: list[list[Exchange]] = [[] for _ in works]
    order = [k for k in range(len(works)) for _ in range(asked["trusted_calls"])]
    secrets.SystemRandom().shuffle(order)
    try:
        for k, (kind, amount, repeat) in enumerate(works):
            for _ in range(asked["warm_ups"]):
                grading.trusted_call(session, plan, kind, amount, repeat)
            grading.progress("trusted launch", k, len(works))
        for k in order:
            kept[k].append(grading.trusted_call(session, plan, *works[k]))
    finally:
        session.close()
    return {
        "works": [
            {
                "kind": kind, "amount": amount, "repeat": repeat,
                "walls_ms": [e.wall_ms for e in done], "claims_ms": [e.claim_ms for e in done],
            }
            for (kind, amount, repeat), done in zip(works, kept, strict=True)
        ]
    }  # fmt: skip


def _attacked(grading: Grading, group: dict[str, Any], cells: dict[int, Cell], asked: dict[str, Any]) -> None:
    """Call one untrusted worker at all its cells; a cell that breaks it is left out and the rest goes on in another."""
    path = Path(grading.job.submission).with_name(group["file"])
    job = dataclasses.replace(grading.job, submission=str(path))
    open_cells = dict(cells)
    for _ in range(1 + RESTARTS):
        session = Session(grading.link, grading.workload.task, job, grading.arenas, trusted=False)
        at: Cell | None = None
        try:
            session.load_submission()
            order = list(open_cells.values()) * asked["warm_ups"]
            counted = [cell for cell in open_cells.values() for _ in range(asked["calls"] - len(cell.walls_ms))]
            secrets.SystemRandom().shuffle(counted)
            for k, at in enumerate([*order, *counted]):
                grading.progress(group["name"], k, len(order) + len(counted))
                _one_call(grading, session, at, k >= len(order))
            return
        except SessionFailed as failure:
            if at is None:  # it does not even import
                for cell in open_cells.values():
                    cell.fail(failure)
                return
            at.fail(failure)
            at.broke = True
            del open_cells[at.ordinal]
            family = [cell for cell in cells.values() if cell.shape[asked["family"]] == at.shape[asked["family"]]]
            if sum(cell.broke for cell in family) >= 2:
                for cell in family:
                    if open_cells.pop(cell.ordinal, None):
                        cell.fail(SessionFailed(failure.status, "left out: two others of its kind broke the worker"))
            if not open_cells:
                return
        finally:
            session.close()
    for cell in open_cells.values():
        cell.fail(SessionFailed(Status.WORKER_DIED, f"not run to its end: {1 + RESTARTS} workers broke before"))


def _one_call(grading: Grading, session: Session, cell: Cell, counted: bool) -> None:
    """One verified call; times of wrong outputs are kept too.

    Raises:
        SessionFailed: the worker is of no more use.
    """
    plan = grading.plans[cell.ordinal - 1]
    for _ in range(REMAPS):
        layout, args = grading.fill(plan, secrets.randbits(63))
        exchange = session.exchange(layout.arguments, layout.nbytes, grading.job.call_s)
        wrong = False
        try:
            grading._verify(plan, args, layout, exchange, grading.shapes[plan.kind, plan.ordinal])
        except SessionFailed as failure:
            if failure.status not in COMPARED:
                raise
            cell.fail(failure)
            wrong = True
        if counted and exchange.mapped:
            if session.arenas.device == "cuda" and not valid_claim(exchange.claim_ms, exchange.wall_ms):
                cell.fail(SessionFailed(Status.CLOCK_MISMATCH, f"claims {exchange.claim_ms} ms"))
                wrong = True
            if wrong:
                cell.failed.append(len(cell.walls_ms))
            cell.walls_ms.append(exchange.wall_ms)
            cell.claims_ms.append(exchange.claim_ms)
            return
        if not counted:
            return
    raise SessionFailed(Status.PROTOCOL_VIOLATION, "call after call returns memory from a new allocation")
