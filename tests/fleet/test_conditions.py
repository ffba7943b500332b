"""Circumstances of a grading, with a pretended NVML."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from taskfactory.fleet import conditions
from taskfactory.fleet.conditions import flags, watched


class NVMLError(Exception):
    """As in pynvml."""


def pretend(monkeypatch: pytest.MonkeyPatch, bits: int, pids: list[int]) -> None:
    def by_uuid(uuid: str) -> str:
        if uuid == "GPU-none":
            raise NVMLError("not found")
        return uuid

    nvml: dict[str, Any] = {
        "NVMLError": NVMLError, "NVML_CLOCK_SM": 1, "NVML_TEMPERATURE_GPU": 0, "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": by_uuid, "nvmlDeviceGetClockInfo": lambda h, kind: 1980,
        "nvmlDeviceGetTemperature": lambda h, kind: 55, "nvmlDeviceGetPowerUsage": lambda h: 400_000,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda h: bits,
        "nvmlDeviceGetComputeRunningProcesses": lambda h: [SimpleNamespace(pid=pid) for pid in pids],
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**nvml))


def test_a_calm_grading_has_no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0x1 | 0x4, [os.getpid()])  # idle, and the power cap that every full load meets
    with watched("GPU-x") as found:
        pass
    assert found["sm_mhz"] == [1980, 1980, 1980]
    assert found["temperature_c"] == [55, 55, 55]
    assert found["power_w_max"] == 400.0
    assert flags(found) == []


def test_heat_and_neighbours_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "_family", set)
    pretend(monkeypatch, 0x40 | 0x80, [os.getppid(), 2**22 + 1])  # the second is a pid that does not exist here
    with watched("GPU-x") as found:
        pass
    heat, neighbour = flags(found)
    assert "heat, power brake" in heat
    assert neighbour.startswith("1 other")


def test_without_nvml_the_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0, [])
    with watched("GPU-none") as found:
        pass
    assert found["nvml"] == "not found"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with watched("GPU-x") as found:
        pass
    assert "not installed" in found["nvml"]
    with watched(None) as found:
        pass
    assert set(found) == {"load_before", "load_after"}
