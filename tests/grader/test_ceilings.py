"""What counts as impossible, and how far a time is from the limit."""

from __future__ import annotations

import pytest

from taskfactory.grader.ceilings import NOMINAL, Peaks, datasheet_peaks, limit_ms, probe_bytes


@pytest.mark.parametrize(
    ("name", "terabytes_per_s"),
    [
        ("NVIDIA H200", 4.8), ("NVIDIA H200 NVL", 4.8), ("NVIDIA H100 80GB HBM3", 3.35), ("NVIDIA H100 PCIe", 2.0),
        ("NVIDIA H100 NVL", 3.9), ("NVIDIA A100-SXM4-80GB", 2.039), ("NVIDIA A100-PCIE-40GB", 2.039),
        ("NVIDIA L40S", 0.864), ("NVIDIA L4", 0.3), ("NVIDIA B200", 8.0),
    ],
)  # fmt: skip
def test_known_devices(name: str, terabytes_per_s: float) -> None:
    peaks = datasheet_peaks(name)
    assert peaks is not None
    assert peaks.bytes_per_s == pytest.approx(terabytes_per_s * 1e12)


@pytest.mark.parametrize(
    "name", ["NVIDIA L40", "NVIDIA GH200 480GB", "NVIDIA H20", "NVIDIA A10", "Tesla V100", "", "x86_64"]
)
def test_unknown_devices_have_no_peaks(name: str) -> None:
    """Least of all those of a slower device with a shorter name: honest times would be called impossible."""
    assert datasheet_peaks(name) is None


def test_the_floor_is_the_slower_of_moving_and_computing() -> None:
    peaks = Peaks(bytes_per_s=1e12, flop_per_s=1e15)
    assert peaks.floor_ms(1e9, 0) == pytest.approx(1.0)
    assert peaks.floor_ms(1e9, 1e12) == pytest.approx(1.0)
    assert peaks.floor_ms(1e9, 5e12) == pytest.approx(5.0)
    assert peaks.floor_ms(0, 0) == 0.0


def test_the_limit_is_in_decimal_units() -> None:
    ceilings = {"copy_gbps": 1000.0, "matmul_tflops": 500.0}
    assert limit_ms(1e9, 0, ceilings) == pytest.approx(1.0)
    assert limit_ms(0, 1e12, ceilings) == pytest.approx(2.0)
    assert limit_ms(3e9, 1e12, ceilings) == pytest.approx(3.0)


def test_a_probe_takes_about_as_long_as_the_floor() -> None:
    assert probe_bytes((4.8e9, 0.0)) == pytest.approx(2.4e9, rel=1e-6)  # 4.8 GB moved: half read, half written
    seconds = NOMINAL.floor_ms(0.0, 1e12) / 1e3
    assert 2 * probe_bytes((0.0, 1e12)) / NOMINAL.bytes_per_s == pytest.approx(seconds, rel=1e-6)
    assert probe_bytes((0.0, 0.0)) == 64 << 20
    assert probe_bytes((1e15, 0.0)) == 8 << 30
