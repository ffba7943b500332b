"""Circumstances of a grading, with a pretended NVML."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskfactory.fleet import conditions
from taskfactory.fleet.conditions import flags, watched
from taskfactory.fleet.leases import find_gpus


class NVMLError(Exception):
    """As in pynvml."""


def pretend(monkeypatch: pytest.MonkeyPatch, bits: int, pids: list[int]) -> None:
    def by_uuid(uuid: str) -> str:
        if uuid == "GPU-none":
            raise NVMLError("not found")
        return uuid

    nvml: dict[str, Any] = {
        "NVMLError": NVMLError, "NVML_CLOCK_SM": 1, "NVML_TEMPERATURE_GPU": 0, "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
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


def test_what_a_device_does_not_tell_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: str) -> int:
        raise NVMLError("not supported")

    pretend(monkeypatch, 0x20, [])
    monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetPowerUsage", refuse)
    with watched("GPU-x") as found:
        pass
    assert found["slowed_by"] == ["heat"]
    assert "power_w_max" not in found


def test_everything_asked_of_nvml_is_there() -> None:
    """Against the package itself, which needs no GPU to be imported."""
    import pynvml as real

    asked = set(re.findall(r"\bnvml\.(\w+)|pynvml\.(\w+)", Path(conditions.__file__).read_text()))
    names = {name for pair in asked for name in pair if name}
    assert len(names) >= 9
    assert [name for name in sorted(names) if not hasattr(real, name)] == []
    bits = {
        real.nvmlClocksThrottleReasonHwSlowdown, real.nvmlClocksThrottleReasonSwThermalSlowdown,
        real.nvmlClocksThrottleReasonHwThermalSlowdown, real.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    }  # fmt: skip
    assert set(conditions._REASONS) == bits


@pytest.mark.gpu
def test_a_real_gpu_tells_its_state_and_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    (gpu, *_) = find_gpus()
    code = "import torch; torch.zeros(1, device='cuda'); print('up', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    with watched(gpu.uuid) as calm:
        pass
    monkeypatch.setattr(conditions, "_family", lambda: {os.getpid()})  # as if the child were somebody else's
    with watched(gpu.uuid) as busy:
        pass
    pynvml.nvmlInit()
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
    child.communicate("\n")
    ours = child.pid in {process.pid for process in listed}  # not in a container with pids of its own
    assert (calm["neighbours"], busy["neighbours"]) == (0, 1 if ours else 0)
    assert busy["sm_mhz"][0] > 0
    assert 0 < busy["temperature_c"][0] < 120
    assert busy["power_w_max"] > 0


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
