"""What else went on while a submission was graded: clocks, heat, power and neighbours of the GPU, load of the machine.

NVML is asked twice a second from a process without CUDA; where it is not there only the load is known.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PERIOD_S = 0.5

# Bits of NVML's clock event reasons that slow a GPU down against its will, and what to call them.
_REASONS = {
    0x08: "hardware slowdown",
    0x20: "heat",
    0x40: "heat",
    0x80: "power brake",
}


@contextmanager
def watched(gpu: str | None) -> Iterator[dict[str, Any]]:
    """A dict that is filled in when the block ends; `gpu` is a UUID, or None on a CPU machine."""
    found: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 2)}
    sampler = _Sampler(gpu) if gpu is not None else None
    try:
        yield found
    finally:
        found["load_after"] = round(os.getloadavg()[0], 2)
        if sampler is not None:
            found |= sampler.finish()


class _Sampler:
    def __init__(self, gpu: str) -> None:
        self.clocks_mhz: list[int] = []
        self.temperatures_c: list[int] = []
        self.power_w: list[float] = []
        self.reasons: set[str] = set()
        self.neighbours: set[int] = set()
        self.stop = threading.Event()
        self.thread: threading.Thread | None = None
        self.error = ""
        try:
            import pynvml
        except ImportError:
            self.error = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
        except pynvml.NVMLError as error:
            self.error = str(error)
            return
        self.thread = threading.Thread(target=self._watch, args=(pynvml, handle), daemon=True)
        self.thread.start()

    def _watch(self, nvml: Any, handle: Any) -> None:
        while True:
            for read in (self._clock, self._heat, self._power, self._slowdown, self._processes):
                # Each for itself: what one device does not tell must not hide the rest.
                with contextlib.suppress(nvml.NVMLError):
                    read(nvml, handle)
            if self.stop.wait(PERIOD_S):
                break
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    def _clock(self, nvml: Any, handle: Any) -> None:
        self.clocks_mhz.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))

    def _heat(self, nvml: Any, handle: Any) -> None:
        self.temperatures_c.append(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))

    def _power(self, nvml: Any, handle: Any) -> None:
        self.power_w.append(nvml.nvmlDeviceGetPowerUsage(handle) / 1e3)

    def _slowdown(self, nvml: Any, handle: Any) -> None:
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        self.reasons |= {name for bit, name in _REASONS.items() if bits & bit}

    def _processes(self, nvml: Any, handle: Any) -> None:
        ours = _family()  # before and after: one of ours that starts or ends meanwhile is nobody else
        pids = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        # In a container NVML speaks of pids outside, where ours cannot be told from others'.
        self.neighbours |= {pid for pid in pids if os.path.exists(f"/proc/{pid}")} - ours - _family()

    def finish(self) -> dict[str, Any]:
        """Stop, and say what was seen."""
        self.stop.set()
        if self.thread is None:
            return {"nvml": self.error}
        self.thread.join(timeout=5)
        seen: dict[str, Any] = {"samples": len(self.clocks_mhz), "slowed_by": sorted(self.reasons)}
        seen["neighbours"] = len(self.neighbours)
        for name, values in (("sm_mhz", self.clocks_mhz), ("temperature_c", self.temperatures_c)):
            if values:
                seen[name] = [min(values), statistics.median(values), max(values)]
        if self.power_w:
            seen["power_w_max"] = max(self.power_w)
        return seen


def _family() -> set[int]:
    from taskfactory.grader.processes import descendants

    return descendants(os.getpid()) | {os.getpid()}


def flags(conditions: dict[str, Any]) -> list[str]:
    """What a reader should know of: sentences, none if all was well."""
    said = []
    if conditions.get("slowed_by"):
        said.append(f"The GPU slowed down during the grading ({', '.join(conditions['slowed_by'])}).")
    if conditions.get("neighbours"):
        said.append(f"{conditions['neighbours']} other process(es) used the GPU during the grading.")
    return said
