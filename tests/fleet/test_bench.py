"""`bench/fleet.py` does what it says, in small; its figures are not judged. The part with the real grader is `full`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: object) -> dict[str, Any]:
    """The figures of one mode."""
    command = [sys.executable, str(ROOT / "bench" / "fleet.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def test_many_loses_and_doubles_nothing() -> None:
    found = bench("many", "--count", 6)
    assert (found["counts"], found["lost"], found["doubled"]) == ({"passed": 6}, 0, 0)


@pytest.mark.full
def test_the_two_gpu_study_can_be_rehearsed(tmp_path: Path) -> None:
    out = tmp_path / "two.json"
    found = bench("gpus", "--rehearse", "--alone", 1, "--count", 2, "--contend", 1, "--out", out)
    assert found["statuses"] == {"passed": 6}
    assert (found["shared_a_gpu"], found["refused_as_shared"]) == (0, 0)
    rows = json.loads(out.read_text())["gradings"]
    assert sorted((row["phase"], row["gpu"]) for row in rows if row["phase"] != "two runs") == [
        ("alone, GPU 0", 0), ("alone, GPU 1", 1), ("both", 0), ("both", 1),
    ]  # fmt: skip
