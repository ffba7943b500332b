"""A person's grading or measurement and the fleet's gradings take turns on a GPU; the GPUs are pretended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from grader.toy import GOOD, write_task
from taskfactory import grading
from taskfactory.cli import calibrate, main
from taskfactory.errors import InfrastructureError, UsageError
from taskfactory.fleet import leases
from taskfactory.fleet.leases import Gpu, Lease, first_gpu
from taskfactory.grader import supervisor
from taskfactory.grader.result import Result, Status

REAL = leases.find_gpus
GPUS = [Gpu("GPU-fake-a", "Imaginary"), Gpu("GPU-fake-b", "Imaginary")]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKFACTORY_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(leases, "find_gpus", lambda: GPUS)


def refuse_to_speak(text: str) -> None:
    raise AssertionError(text)


def test_the_first_gpu_is_held_and_named_alone() -> None:
    with first_gpu(True, refuse_to_speak):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-fake-a"
        assert not Lease("GPU-fake-a").acquire()
        assert Lease("GPU-fake-b").acquire()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert Lease("GPU-fake-a").acquire()


def test_who_waits_gets_the_gpu_when_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    other = Lease("GPU-fake-a")
    assert other.acquire()
    said: list[str] = []
    turns: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        threading.Timer(0.2, give_back).start()

    def give_back() -> None:
        turns.append("given back")
        other.release()

    with first_gpu(True, say):
        turns.append("taken")
    assert turns == ["given back", "taken"]
    assert said == ["another grading is using Imaginary GPU-fake-a; waiting for it"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_who_does_not_wait_is_told() -> None:
    other = Lease("GPU-fake-a")
    assert other.acquire()
    with pytest.raises(InfrastructureError, match="GPU-fake-a"), first_gpu(False, refuse_to_speak):
        raise AssertionError("the GPU is in use")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_where_cuda_is_to_see_nothing_nothing_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with first_gpu(True, refuse_to_speak):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
        assert Lease("GPU-fake-a").acquire()


@pytest.mark.parametrize("error", [InfrastructureError("nvidia-smi is not there"), UsageError("no GPU MIG-1 here")])
def test_a_gpu_that_cannot_be_told_apart_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> list[Gpu]:
        raise error

    monkeypatch.setattr(leases, "find_gpus", fail)
    said: list[str] = []
    with first_gpu(True, said.append):
        pass
    assert len(said) == 1
    assert str(error) in said[0]


def by_hand(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[Any, list[Any]]:
    """`taskfactory grade` or `measure` where there is a GPU, with a stand-in for the grader.

    Returns what became of it, and of each call of the grader: what CUDA would have seen, and whether it was alone.
    """
    seen: list[Any] = []

    def stand_in(_: Path, __: Path, mode: str, *___: Any, **____: Any) -> tuple[Result, str]:
        seen.append((os.environ.get("CUDA_VISIBLE_DEVICES"), not Lease("GPU-fake-a").acquire()))
        return Result("row-scale", "1.0.0", "sha256:0", "GB/s", "sha256:1", mode, Status.PASSED), ""

    monkeypatch.setattr(grading, "grade_submission", stand_in)
    monkeypatch.setattr(supervisor, "cuda_is_there", lambda: True)
    (tmp_path / "rows.py").write_text(GOOD)
    task = write_task(tmp_path / "task")
    return CliRunner().invoke(main, [command, str(task), str(tmp_path / "rows.py"), *options]), seen


BOTH = pytest.mark.parametrize("command", ["grade", "measure"])


@BOTH
def test_by_hand_the_gpu_is_held(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, seen = by_hand(command, tmp_path, monkeypatch)
    assert (done.exit_code, seen) == (0, [("GPU-fake-a", True)])
    assert Lease("GPU-fake-a").acquire()


@BOTH
def test_by_hand_without_waiting_exits_with_3(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Lease("GPU-fake-a")
    assert other.acquire()
    done, seen = by_hand(command, tmp_path, monkeypatch, "--no-wait")
    assert (done.exit_code, seen) == (3, [])
    assert "another grading is using Imaginary GPU-fake-a" in done.output
    done, seen = by_hand(command, tmp_path, monkeypatch, "--no-wait", "--device", "cpu")
    assert (done.exit_code, seen) == (0, [(None, True)])  # the CPU is nobody's alone


@BOTH
def test_by_hand_one_waits_for_the_fleet(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Lease("GPU-fake-a")
    assert other.acquire()
    timer = threading.Timer(0.2, other.close)
    timer.start()
    done, seen = by_hand(command, tmp_path, monkeypatch)
    timer.join()
    assert (done.exit_code, seen) == (0, [("GPU-fake-a", True)])
    assert "waiting for it" in done.output


@pytest.mark.gpu
def test_cuda_sees_the_gpu_that_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "find_gpus", REAL)
    code = "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)"
    with first_gpu(True, refuse_to_speak):
        held = os.environ["CUDA_VISIBLE_DEVICES"]
        seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert not Lease(held).acquire()
    assert seen == ["1", held.removeprefix("GPU-")]


def test_calibration_and_the_red_team_take_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(calibrate, "_all", lambda *_: seen.append(not Lease("GPU-fake-a").acquire()) or 0)
    monkeypatch.setattr(supervisor, "cuda_is_there", lambda: True)
    (tmp_path / "rows.py").write_text(GOOD)
    attacked = ["redteam", str(write_task(tmp_path / "task")), "--honest", str(tmp_path / "rows.py"), "--device=cuda"]
    measured = ["calibrate", "based-forward", "--device=cuda"]
    assert CliRunner().invoke(main, measured).exit_code == 0
    other = Lease("GPU-fake-a")
    assert other.acquire()
    for command in (attacked, measured):
        done = CliRunner().invoke(main, [*command, "--no-wait"])
        assert done.exit_code == 3
        assert "another grading is using Imaginary GPU-fake-a" in done.output
    # one that calibrates with --jobs holds it for those that it starts
    assert CliRunner().invoke(main, [*measured, "--has-turn"]).exit_code == 0
    assert seen == [True, True]
    other.close()
