"""What a grading will call: one plan a shape or case, and the task's own code that makes inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import memory
from .compare import Gates, OutputReport, Region, as_tuple, build_regions, compare_outputs, dtype_name
from .job import Job
from .sources import case_functions, load_directory
from .task import MIXED, Task, load_task


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
    """Shape, dtype, numel and itemsize of each output of the reference."""
    calls: int = 1
    """Timed calls."""

    @property
    def label(self) -> str:
        """How messages name it; graded shapes by ordinal only."""
        return f"{self.kind} shape {self.ordinal}" + (f", case {self.case}" if self.case else "")

    @property
    def timed(self) -> bool:
        """Whether its calls are timed."""
        return self.kind != "correct"

    @property
    def unavoidable(self) -> tuple[float, float]:
        """(bytes, FLOPs) of the floor; the output's bytes where the spec declares none."""
        return self.floor or (float(sum(o["numel"] * o["itemsize"] for o in self.outputs)), 0.0)

    @property
    def snapshot_bytes(self) -> int:
        """Room for its outputs, in fp32 if need be."""
        return sum(aligned(o["numel"] * max(4, o["itemsize"])) for o in self.outputs)


def aligned(nbytes: int) -> int:
    """Rounded up to the arenas' alignment."""
    return -(-nbytes // memory.ALIGNMENT) * memory.ALIGNMENT


def input_makers(namespace: Mapping[str, Any], mixed: bool) -> dict[str, Callable[..., Any]]:
    """The functions that make one call's arguments: `_mk` as "", the cases by name, and `mix` as "mixed" where a task
    has it for its timed calls."""
    makers = {"": namespace["_mk"], **case_functions(dict(namespace))}
    return makers | ({MIXED: namespace["mix"]} if mixed else {})


class Workload:
    """A task's facts and its executed sources."""

    def __init__(self, directory: Path, device: str) -> None:
        self.task: Task = load_task(directory)
        self.namespace = load_directory(directory, device)
        self.makers = input_makers(self.namespace, self.task.mixed)
        self.gates = Gates(self.task.tol, self.task.tile_kappa, self.task.tile_epsilon)
        self.names = [output.name for output in self.task.outputs]

    def plans(self, job: Job) -> Iterator[Plan]:
        """Every shape and case that a job asks for.

        Raises:
            BrokenEnvironment: the task directory has no shapes of that kind.
        """
        task = self.task
        kinds = job.kinds
        cases = ("", *task.cases, *([MIXED] if task.mixed else []))
        if job.mode == "grade":
            kinds = ("correct", "graded") if job.device == "cuda" else ("correct",)
        for kind in kinds:
            if kind not in task.shapes:
                raise BrokenEnvironment(f"this task directory has no {kind} shapes; grade with the hidden one (tests/)")
            floors = task.floor[kind] if task.floor else (None,) * len(task.shapes[kind])
            for k, (shape, work, floor) in enumerate(zip(task.shapes[kind], task.work[kind], floors, strict=True)):
                for case in cases if kind == "correct" else ("",):
                    yield Plan(kind, k + 1, shape, case, work, floor)
        for k, shape in enumerate(job.shapes):
            if len(shape) != len(task.shape_names):
                raise BrokenEnvironment(f"a shape has {len(task.shape_names)} numbers: {', '.join(task.shape_names)}")
            yield Plan("given", k + 1, shape, "", int(self.namespace["canonical_work"](*shape)), None)

    def learn(self, plan: Plan, seed: int) -> bool:
        """Fill in a plan's layouts by running generator and reference once; False where a case does not apply."""
        args = self.make_inputs(plan, seed)
        if args is None:
            return False
        plan.layout = memory.plan_layout(args)
        plan.outputs = [
            {"shape": list(o.shape), "dtype": dtype_name(o.dtype), "numel": o.numel(), "itemsize": o.element_size()}
            for o in self.reference(args)
        ]
        return True

    def make_inputs(self, plan: Plan, seed: int) -> tuple[Any, ...] | None:
        """One call's arguments, or None where a case does not apply to a shape. Timed calls get mixed inputs."""
        kind = MIXED if plan.timed and self.task.mixed else plan.case
        args = self.makers[kind](*plan.shape, seed)
        return None if args is None else tuple(args)

    def reference(self, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The expected outputs."""
        with torch.no_grad():
            return as_tuple(self.namespace[self.task.func](*args))

    def compare(
        self, args: Sequence[Any], expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]
    ) -> list[OutputReport]:
        """All gates of one call."""
        regions: list[Region] = []
        if self.task.has_regions:
            regions = build_regions(self.namespace["regions"](*args), self.names)
        declared = [output.dtypes for output in self.task.outputs]
        return compare_outputs(expected, actual, self.names, self.gates, declared, regions)
