"""What this machine can do: versions, compilers, device, confinement, and the device's ceilings."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from taskfactory import __version__

_CEILINGS = (
    "import json, sys; sys.path.insert(0, {root!r}); import torch\n"
    "from taskfactory.grader.ceilings import datasheet_peaks, measure_ceilings\n"
    "from taskfactory.grader.environment import environment\n"
    "torch.cuda.init(); torch.zeros(1, device='cuda')\n"
    "known = datasheet_peaks(torch.cuda.get_device_name()) is not None\n"
    "print(json.dumps([environment('cuda'), measure_ceilings(), known]))"
)


@dataclass(frozen=True)
class Line:
    """One fact, whether it is as it should be, and what follows if not."""

    name: str
    value: str
    ok: bool = True
    advice: str = ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(*command: str) -> str | None:
    """The first line a program prints, or None if it is not there."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return (done.stdout or done.stderr).strip().split("\n")[0]


def software() -> list[Line]:
    """Interpreter, packages and compilers."""
    lines = [
        Line("taskfactory", __version__),
        Line("python", platform.python_version()),
        Line("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
    ]
    for package, needed in (("torch", "grading"), ("triton", "Triton submissions"), ("numpy", "grading on CUDA")):
        version = _version(package)
        lines.append(Line(package, version or "missing", version is not None, f"{needed} needs it"))
    for compiler, use in (("gcc", "Triton's launchers"), ("nvcc", "inline CUDA")):
        found = _first_line(compiler, "--version")
        lines.append(Line(compiler, found or "missing", found is not None or compiler == "nvcc", f"{use} need it"))
    return lines


def confinement() -> Line:
    """The tier that a probe worker observed here."""
    if not sys.platform.startswith("linux"):
        return Line("confinement", "none", False, "grading needs Linux")
    from taskfactory.grader.supervisor import cuda_is_there, observe

    observed = observe("cuda" if cuda_is_there() else "cpu")
    detail = observed.error or f"the probe succeeded with: {', '.join(observed.succeeded)}"
    return Line("confinement", observed.tier, observed.tier in ("confined", "namespaced"), detail)


def device() -> tuple[list[Line], dict[str, Any]]:
    """The CUDA device and its measured ceilings, found by a child process; ([...], {}) where there is none."""
    from taskfactory.grader.supervisor import cuda_is_there

    if not cuda_is_there():
        return [Line("device", "no CUDA device", False, "submissions are verified on the CPU and not timed")], {}
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(
        [sys.executable, "-c", _CEILINGS.format(root=root)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        return [Line("device", "broken", False, done.stderr.strip().rsplit("\n", 1)[-1])], {}
    environment, ceilings, known = json.loads(done.stdout)
    return [
        Line("device", environment["device"], known, "no datasheet peaks: impossible times are not recognised"),
        Line("driver", environment["driver"]),
        Line("copy", f"{ceilings['copy_gbps']:.0f} GB/s"),
        Line("bf16 matmul", f"{ceilings['matmul_tflops']:.0f} TFLOP/s"),
    ], {"environment": environment, "ceilings": ceilings}
