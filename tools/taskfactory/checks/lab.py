"""One spec's sources, executed, with the means to experiment on them: inputs, outputs, regions, the grader's verdict.

This executes the spec and imports torch, so only a process that may be killed imports it (`taskfactory.checks.child`,
and calibration).
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from taskfactory.checks.record import SourceFailed, field_at
from taskfactory.grader.compare import Gates, Region, compare_outputs
from taskfactory.grader.plan import input_makers
from taskfactory.grader.sources import Part, load_namespace
from taskfactory.grader.task import MIXED
from taskfactory.load import SpecFile

Shape = tuple[int, ...]
Outputs = tuple[torch.Tensor, ...]
Notice = Callable[[str, str, int], None]
"""Called with (what is about to be run, its field, its line), so that whoever watches can say where it hung."""

SHARED_SOURCES = (
    "reference_imports", "flops_src", "reference_src", "make_inputs_src", "timed_src", "cases_src", "regions_src",
)  # fmt: skip
SEED = 20_260
"""Seed of the inputs; `SEED + 1` gives the other ones."""


class Unsupported(Exception):
    """An alternate or ablation raised NotImplementedError: it says nothing about these inputs."""


class Malformed(Exception):
    """A source returned something that is not what its place in the spec asks for."""


@dataclass(frozen=True)
class Judgement:
    """The grader's verdict on one call."""

    passed: bool
    structural: bool
    """Shape, dtype or count were wrong: no values were compared."""
    error: float
    """Largest E of all outputs."""
    use: float
    """Largest share of a gate that was used up: E / tol, tile ratio / kappa, region E / its tol; 1.0 is at the gate."""
    message: str
    outputs: tuple[bool, ...] = ()
    """Which of the outputs passed."""


class Lab:
    """The sources of one spec in one namespace on one device."""

    def __init__(self, file: SpecFile, device: str = "cpu", notice: Notice | None = None) -> None:
        """Execute the shared sources.

        Raises:
            SourceFailed: one of them raises.
        """
        self.file, self.spec, self.device = file, file.spec, device
        self.notice: Notice = notice or (lambda doing, field, line: None)
        self.names: tuple[str, ...] = self.spec.tuple_names or ("out",)
        self.gates = Gates(self.spec.tol, self.spec.tile_kappa, self.spec.tile_epsilon)
        with self.guard("reference_src", "executing the sources"):
            self.namespace = load_namespace(self._parts(), device)
        self.reference: Callable[..., Any] = self.namespace[self.spec.func]
        self.makers = input_makers(self.namespace, bool(self.spec.timed_src))
        self.cases: dict[str, Callable[..., Any]] = {name: make for name, make in self.makers.items() if name}
        self.timed_case = MIXED if self.spec.timed_src else ""
        """The kind of inputs that timed calls get."""
        self.parameters = list(inspect.signature(self.reference).parameters.values())

    def _parts(self, *extra: str) -> list[Part]:
        sources = [self.file.source(name) for name in (*SHARED_SOURCES, *extra) if self.file.value(name)]
        return [Part(source.text, str(source.path), source.first_line) for source in sources]

    def variant(self, field: str) -> Callable[..., Any]:
        """The function of `alternates.<name>` or `ablations.<name>`, in a namespace of its own.

        Raises:
            SourceFailed: executing its source raises.
        """
        with self.guard(field, f"executing {field}"):
            function: Callable[..., Any] = load_namespace(self._parts(field), self.device)[field.partition(".")[2]]
        return function

    def smallest_first(self) -> list[Shape]:
        """The correct shapes by canonical work."""
        formulas = self.file.formulas()
        return sorted(self.spec.correct_shapes, key=lambda shape: (formulas.call("canonical_work", *shape), shape))

    @contextmanager
    def guard(self, field: str, doing: str) -> Iterator[None]:
        """Run a part of the spec: announce it, and turn whatever it raises into SourceFailed."""
        self.notice(doing, field, self.file.lines.get(field, 0))
        try:
            yield
        except (Unsupported, Malformed, SourceFailed):
            raise
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: a source may raise anything
            place, line = self._place(error, field)
            said = str(error).strip().split("\n")[0]
            kind = type(error).__name__
            raise SourceFailed(place, line, f"{kind}: {said[:300]}" if said else kind) from error

    def _place(self, error: BaseException, field: str) -> tuple[str, int]:
        """The innermost line of the spec in the traceback, and its field."""
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename == str(self.file.path) and frame.lineno:
                return field_at(self.file, frame.lineno) or field, frame.lineno
        return field, self.file.lines.get(field, 0)

    def call(self, field: str, doing: str, function: Callable[..., Any], args: Sequence[Any]) -> Outputs:
        """A function's outputs as a tuple.

        Raises:
            SourceFailed: it raises.
            Unsupported: it raises NotImplementedError and is not the reference.
            Malformed: it returns something other than tensors of the documented count.
        """
        with self.guard(field, doing):
            try:
                value = function(*args)
            except NotImplementedError as error:
                if "." in field:
                    raise Unsupported(str(error)) from error
                raise
        if self.spec.compare == "tensor":
            if not isinstance(value, torch.Tensor):
                raise Malformed(f"returns a {type(value).__name__}, not one tensor")
            return (value,)
        if not isinstance(value, tuple | list):
            raise Malformed(f"returns a {type(value).__name__}, not a tuple of {len(self.names)} tensors")
        if len(value) != len(self.names):
            raise Malformed(f"returns {len(value)} outputs, but tuple_names has {len(self.names)}")
        for name, output in zip(self.names, value, strict=True):
            if not isinstance(output, torch.Tensor):
                raise Malformed(f"returns a {type(output).__name__} for {name}, not a tensor")
        return tuple(value)

    def inputs(self, shape: Shape, case: str = "", seed: int = SEED) -> tuple[Any, ...] | None:
        """Fresh arguments of one call; None where the case does not apply.

        Raises:
            SourceFailed: `_mk`, `mix` or the case raises.
            Malformed: they are not arguments that can be passed.
        """
        with self.guard(maker_of(case)[1], f"{said(case)} at {shape}"):
            args = self.makers[case](*shape, seed)
        if args is None and case not in ("", MIXED):
            return None
        self._check_arguments(args)
        return tuple(args)

    def _check_arguments(self, args: Any) -> None:
        if not isinstance(args, tuple | list):
            raise Malformed(f"returns a {type(args).__name__}, not a tuple of arguments")
        if len(args) > len(self.parameters):
            raise Malformed(f"returns {len(args)} arguments for {len(self.parameters)} parameters")
        for parameter in self.parameters[len(args) :]:
            if parameter.default is inspect.Parameter.empty:
                raise Malformed(f"returns no {parameter.name}, which has no default")
        for parameter, value in zip(self.parameters, args, strict=False):
            for part in value if isinstance(value, tuple | list) else (value,):
                if isinstance(part, torch.Tensor):
                    if part.device.type != torch.device(self.device).type:
                        raise Malformed(f"returns {parameter.name} on {part.device}, not on the device of the call")
                elif not (part is None or type(part) in (bool, int, float)):
                    raise Malformed(f"returns a {type(part).__name__} in {parameter.name}")

    def with_defaults(self, args: Sequence[Any]) -> list[Any]:
        """The arguments with those that were left out."""
        return [*args, *(parameter.default for parameter in self.parameters[len(args) :])]

    def regions(self, args: Sequence[Any], expected: Outputs) -> list[Region]:
        """The declared regions of one call.

        Raises:
            SourceFailed: `regions` raises.
            Malformed: what it returns is not regions.
        """
        if not self.spec.regions_src:
            return []
        with self.guard("regions_src", "regions"):
            declared = self.namespace["regions"](*args)
        if not isinstance(declared, Mapping):
            raise Malformed(f"regions() returns a {type(declared).__name__}, not a dict")
        return [self._region(name, entry, expected) for name, entry in declared.items()]

    def _region(self, name: Any, entry: Any, expected: Outputs) -> Region:
        if not isinstance(name, str) or not isinstance(entry, tuple | list) or len(entry) != 3:
            raise Malformed(f"regions() has {name!r}: {str(entry)[:60]}, not a name: (output name, mask, tolerance)")
        output, mask, tol = entry
        if output not in self.names:
            raise Malformed(f"region {name!r} names the output {output!r}; there are {', '.join(self.names)}")
        index = self.names.index(output)
        if not expected[index].is_floating_point():
            raise Malformed(f"region {name!r} is of {output!r}, which is compared exactly")
        if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool:
            what = f"{mask.dtype} tensor" if isinstance(mask, torch.Tensor) else type(mask).__name__
            raise Malformed(f"region {name!r} has a {what} for a mask, not a bool tensor")
        try:
            mask.expand(expected[index].shape)
        except RuntimeError:
            shapes = f"{tuple(mask.shape)} does not broadcast to {tuple(expected[index].shape)}"
            raise Malformed(f"region {name!r} has a mask whose shape {shapes}") from None
        if type(tol) not in (int, float) or not 0 < tol < 1:
            raise Malformed(f"region {name!r} has the tolerance {tol!r}, which is not above 0 and below 1")
        return Region(name, index, mask, float(tol))

    def judge(self, expected: Outputs, actual: Outputs, regions: Sequence[Region]) -> Judgement:
        """What the grader would say of these outputs."""
        reports = compare_outputs(expected, actual, self.names, self.gates, self.spec.output_dtypes, regions)
        structural = any(report.failure in ("wrong_shape", "wrong_dtype") for report in reports)
        limits = {region.name: region.tol for region in regions}
        use = math.inf if structural else 0.0
        for report, output in zip(reports, expected, strict=True):
            if report.failure in ("wrong_shape", "wrong_dtype"):
                continue
            shares = [report.error / self.gates.tol, report.tile_ratio / self.gates.kappa]
            if not output.is_floating_point():
                shares = [math.inf if report.error else 0.0]
            shares += [error / limits[name] for name, error in report.regions.items()]
            use = max([use, *(math.inf if math.isnan(share) else share for share in shares)])
        message = "; ".join(
            report.message if report.message.startswith(report.name) else f"{report.name}: {report.message}"
            for report in reports
            if report.failure
        )
        error = max(report.error for report in reports)
        passed = tuple(not report.failure for report in reports)
        return Judgement(all(passed), structural, error, use, message, passed)


def said(case: str) -> str:
    """What to call a kind of inputs in messages."""
    return {"": "the default inputs", MIXED: "the mixed inputs"}.get(case, f"case {case}")


def maker_of(case: str) -> tuple[str, str]:
    """The function that makes a kind of inputs, and the field that defines it."""
    if case == MIXED:
        return "mix", "timed_src"
    return (f"case_{case}", "cases_src") if case else ("_mk", "make_inputs_src")


def line_of(function: Callable[..., Any]) -> int:
    """The file line of a function's `def`; 0 if it was not written as one."""
    code = getattr(function, "__code__", None)
    return int(code.co_firstlineno) if code is not None else 0
