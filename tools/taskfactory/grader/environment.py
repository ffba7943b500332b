"""What ran where: device, driver, versions."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch


def environment(device: str) -> dict[str, Any]:
    """The facts that a result needs to be compared with others; `device` is "cuda" or "cpu"."""
    found: dict[str, Any] = {
        "device": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _triton_version(),
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
    }
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


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def _driver_version() -> str:
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return "unknown"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")
