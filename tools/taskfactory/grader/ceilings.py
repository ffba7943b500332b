"""What the device at hand reaches, and what its maker says it could at most.

Measured ceilings give the fraction of limit. Datasheet peaks decide only what is impossible, so they err upwards:
for matrix work the fastest dense rate of any format counts, since a task may allow low precision.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .memory import copy_bits

COPY_BYTES = 1 << 30
MATMUL_EDGE = 8192


@dataclass(frozen=True)
class Peaks:
    """Datasheet peaks: memory bandwidth in bytes/s and the fastest dense matrix rate in FLOP/s."""

    bytes_per_s: float
    flop_per_s: float

    def floor_ms(self, nbytes: float, flops: float) -> float:
        """The time below which `nbytes` moved and `flops` done are impossible, in milliseconds."""
        return max(nbytes / self.bytes_per_s, flops / self.flop_per_s) * 1e3


# NVIDIA's datasheets; dense fp8 (or int8) rate. Longest name first where one contains another.
_PEAKS = {
    "H200": Peaks(4.8e12, 1.979e15),
    "H100 PCIe": Peaks(2.0e12, 1.513e15),
    "H100 NVL": Peaks(3.9e12, 1.671e15),
    "H100": Peaks(3.35e12, 1.979e15),
    "B200": Peaks(8.0e12, 9.0e15),
    "A100": Peaks(2.039e12, 6.24e14),
    "L40S": Peaks(0.864e12, 7.33e14),
    "L4": Peaks(0.3e12, 2.42e14),
}


NOMINAL = Peaks(4.8e12, 1e15)
"""Stands in for an unknown device where a duration only has to be about right."""


def probe_bytes(unavoidable: tuple[float, float]) -> int:
    """Bytes whose copy takes about as long on an H200 as a floor of (bytes, FLOPs), within 64 MiB and 8 GiB."""
    seconds = NOMINAL.floor_ms(*unavoidable) / 1e3
    return min(max(int(seconds * NOMINAL.bytes_per_s / 2), 64 << 20), 8 << 30)  # a copy reads and writes


def datasheet_peaks(device_name: str) -> Peaks | None:
    """Peaks of a known device, else None: then no time is called impossible, and the result says so."""
    # whole words: an L40 is no L4, and a GH200 no H200
    return next((peaks for name, peaks in _PEAKS.items() if re.search(rf"\b{name}\b", device_name)), None)


def _median_ms(run: Callable[[], object], repeats: int) -> float:
    """Median event time of one call, after two warm-ups, in milliseconds."""
    times = []
    for k in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if k >= 2:
            times.append(start.elapsed_time(end))
    return float(statistics.median(times))


def measure_ceilings() -> dict[str, float]:
    """Copy bandwidth ("copy_gbps", bytes read plus written, decimal) and bf16 matmul rate ("matmul_tflops")."""
    source = torch.randint(1 << 60, (COPY_BYTES // 8,), device="cuda")
    target = torch.empty_like(source)
    copy_ms = _median_ms(lambda: copy_bits(target, source), 10)
    a, b = (torch.randn(MATMUL_EDGE, MATMUL_EDGE, device="cuda").bfloat16() for _ in range(2))
    c = torch.empty_like(a)
    matmul_ms = _median_ms(lambda: torch.mm(a, b, out=c), 10)
    return {"copy_gbps": 2 * COPY_BYTES / copy_ms / 1e6, "matmul_tflops": 2 * MATMUL_EDGE**3 / matmul_ms / 1e9}


def limit_ms(nbytes: float, flops: float, ceilings: dict[str, float]) -> float:
    """Time of the floor's bytes and FLOPs at the measured ceilings, in milliseconds."""
    return max(nbytes / ceilings["copy_gbps"] / 1e6, flops / ceilings["matmul_tflops"] / 1e9)
