"""The process that times implementations on a GPU, at measure and graded shapes; `taskfactory.checks.watch` starts it.

This is a stopwatch for ranks, not the grader's clock: one process, CUDA events, the L2 overwritten before each call,
outputs not looked at. The task's own solution runs here as trusted code.

{"device": {...}}                      once: name, L2 bytes, measured ceilings
{"doing": [implementation, place]}     before each; place counts the job's shapes
{"time": [implementation, place, ms]}  after each
{"gap": [implementation, place, why]}  instead, if it could not be timed
{"failed": message}                    the spec's own sources fail
{"done": true}
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from taskfactory.checks.child import Channel, enter

SLOWEST_S = 8.0
"""One call of an implementation takes no longer, or it is a gap."""
COMPILED_S = 60.0
"""What the solution's first calls, which compile, may take at all shapes together, beside the budget."""
REPEATS = 7
FLUSHED_L2 = 4


def main(arguments: list[str]) -> None:
    """Run as a child of a calibration."""
    enter(arguments, _run)


def _run(channel: Channel, job: dict[str, Any], _: Any) -> None:
    import torch

    from taskfactory.calibrate.beyond import USABLE
    from taskfactory.checks.lab import Lab, Malformed
    from taskfactory.checks.record import SourceFailed
    from taskfactory.grader.ceilings import measure_ceilings
    from taskfactory.load import SpecFile
    from taskfactory.spec import TaskSpec

    torch.set_num_threads(1)
    torch.cuda.set_per_process_memory_fraction(USABLE * job["memory_share"])
    file = SpecFile(Path(job["path"]), TaskSpec(**job["spec"]), job["lines"], job["text"])
    l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)
    channel.send(device={"name": torch.cuda.get_device_name(), "l2_bytes": l2_bytes, "ceilings": measure_ceilings()})
    try:
        lab = Lab(file, "cuda")
        with torch.no_grad():
            _time_all(channel, job, lab, torch.empty(FLUSHED_L2 * l2_bytes, dtype=torch.uint8, device="cuda"))
    except (SourceFailed, Malformed) as error:
        channel.send(failed=f"{error}")
    channel.send(done=True)


def _implementations(lab: Any, solution: str) -> list[str]:
    """Their names, the solution first: it is the fastest, and it compiles before the budget is spent."""
    return [*(["solution"] if solution else []), "reference", *(f"alternates.{name}" for name in lab.spec.alternates)]


def _load(lab: Any, name: str, solution: str) -> Callable[..., Any]:
    """An implementation's function; raises whatever its source raises."""
    if name == "reference":
        return cast(Callable[..., Any], lab.reference)
    if name != "solution":
        return cast(Callable[..., Any], lab.variant(name))
    import importlib.util

    found = importlib.util.spec_from_file_location("calibrated_solution", solution)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return cast(Callable[..., Any], getattr(module, lab.spec.func))


def _time_all(channel: Channel, job: dict[str, Any], lab: Any, junk: Any) -> None:
    """Each implementation at each shape has an equal slice of the budget; compiling has a budget of its own."""
    import torch

    from taskfactory.calibrate.deadline import TooLong
    from taskfactory.checks.lab import Malformed
    from taskfactory.checks.record import SourceFailed

    names = _implementations(lab, job["solution"])
    known = [(str(name), int(place)) for name, place in job["known"]]
    pairs = max(1, len(names) * len(job["shapes"]) - len(known))
    slice_s = job["budget_s"] / pairs
    ends = time.monotonic() + job["budget_s"]
    compiling_s = COMPILED_S
    loaded: dict[str, Callable[..., Any]] = {}
    for place, shape in enumerate(job["shapes"]):
        args: tuple[Any, ...] | None = None
        for name in names:
            if (name, place) in known:
                continue
            channel.send(doing=[name, place])
            if time.monotonic() > ends or (name == "solution" and compiling_s <= 0):
                channel.send(gap=[name, place, "out of time"])
                continue
            try:
                if args is None:
                    args = lab.inputs(tuple(shape), lab.timed_case) or ()
                    torch.cuda.synchronize()
                begun = time.monotonic()
                if name not in loaded:
                    loaded[name] = _load(lab, name, job["solution"])
                first_ms = _call_ms(loaded[name], args, junk, compiling_s if name == "solution" else SLOWEST_S)
                if name == "solution":
                    spent_s = time.monotonic() - begun
                    compiling_s, ends = compiling_s - spent_s, ends + spent_s
                ms = _median_ms(loaded[name], args, junk, first_ms, slice_s, compiled=name == "solution")
                channel.send(time=[name, place, ms])
            except TooLong:
                torch.cuda.synchronize()
                channel.send(gap=[name, place, "out of time: a call takes too long"])
            except (SourceFailed, Malformed, Exception) as error:
                said = f"{type(error).__name__}: {error}".split("\n")[0]
                if "out of memory" not in said and "CUDA error" in said:
                    raise  # the context is lost; a new process goes on behind this one
                channel.send(gap=[name, place, "out of memory" if "OutOfMemory" in said else said[:120]])
            gc.collect()  # what hangs on the traceback of a call that failed
            torch.cuda.empty_cache()
        args = None


def _call_ms(function: Callable[..., Any], args: tuple[Any, ...], junk: Any, limit_s: float) -> float:
    """Milliseconds of one call.

    Raises:
        TooLong: it takes more than `limit_s`.
    """
    import torch

    from taskfactory.calibrate.deadline import deadline

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with deadline(limit_s):
        junk.zero_()
        begin.record()
        function(*args)
        end.record()
        torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def _median_ms(
    function: Callable[..., Any], args: tuple[Any, ...], junk: Any, first_ms: float, slice_s: float, *, compiled: bool
) -> float:
    """Median of what fits into a slice of the budget behind a first call; of a slow implementation the first call's.

    Raises:
        TooLong: a call takes more than `SLOWEST_S`.
    """
    if first_ms > 1e3 * slice_s and not compiled:
        return first_ms
    ends = time.monotonic() + slice_s
    times = [_call_ms(function, args, junk, SLOWEST_S)]
    while len(times) < REPEATS and time.monotonic() < ends:
        times.append(_call_ms(function, args, junk, SLOWEST_S))
    return statistics.median(times)


if __name__ == "__main__":
    main(sys.argv[1:])
