"""The reward files that `grade --out` leaves: missing submissions, machines without a GPU, rehearsals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grader.toy import GOOD, TASK, write_task
from taskfactory.grader import cli, rehearsal
from taskfactory.grader.result import Result, ShapeResult, Status


def run(task: Path, submission: Path, out: Path, *more: str) -> int:
    out.mkdir(exist_ok=True)
    words = ["--task", str(task), "--submission", str(submission), "--device", "cpu", "--out", str(out), "--quiet"]
    return cli.main(["grade", *words, *more])


def reward(out: Path) -> Any:
    return json.loads((out / "reward.json").read_text())


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "task")


def test_a_missing_submission_is_worth_nothing_and_says_so(task: Path, tmp_path: Path) -> None:
    assert run(task, tmp_path / "absent.py", tmp_path / "out") == cli.EXIT_FAILED
    assert reward(tmp_path / "out") == {"reward": 0.0}
    details = json.loads((tmp_path / "out" / "reward-details.json").read_text())
    assert details["status"] == "import_error"
    assert "no such submission file" in details["message"]


def test_an_unreadable_submission_is_worth_nothing(task: Path, tmp_path: Path) -> None:
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\0")
    assert run(task, tmp_path / "binary.py", tmp_path / "out") == cli.EXIT_FAILED
    assert reward(tmp_path / "out") == {"reward": 0.0}


def test_without_out_a_missing_submission_is_a_usage_error(task: Path, tmp_path: Path) -> None:
    words = ["--task", str(task), "--submission", str(tmp_path / "absent.py"), "--device", "cpu"]
    assert cli.main(["grade", *words]) == cli.EXIT_USAGE


def test_a_broken_task_leaves_no_reward(tmp_path: Path) -> None:
    assert run(tmp_path / "nowhere", tmp_path / "absent.py", tmp_path / "out") == cli.EXIT_USAGE
    assert list((tmp_path / "out").iterdir()) == []


def result_of(status: Status, wall_ms: list[float]) -> Result:
    shape = ShapeResult("given", 1, [4, 32], 512, len(wall_ms), wall_ms=wall_ms)
    return Result("row-scale", "1.0.0", "sha256:0", "GB/s", "sha256:1", "measure", status, shapes=[shape])


def test_a_rehearsal_takes_the_smallest_shape_and_says_what_it_is(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def grade(*words: Any, **options: Any) -> tuple[Result, str]:
        seen.update(options, words=words)
        return result_of(Status.PASSED, [900.0, 1000.0, 5000.0]), ""

    monkeypatch.setattr(rehearsal, "grade", grade)
    (tmp_path / "rows.py").write_text(GOOD)
    assert run(task, tmp_path / "rows.py", tmp_path / "out", "--rehearse") == cli.EXIT_PASSED
    assert reward(tmp_path / "out") == {"reward": 0.5}
    assert seen["shapes"] == (tuple(min(TASK["shapes"]["correct"])),)
    assert seen["words"][2:4] == ("measure", "cpu")
    details = json.loads((tmp_path / "out" / "reward-details.json").read_text())
    assert details["score"] is None
    assert any("not comparable" in warning for warning in details["warnings"])


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.WORKER_DIED, Status.INPUTS_MODIFIED])
def test_a_failed_rehearsal_is_worth_nothing(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    monkeypatch.setattr(rehearsal, "grade", lambda *_, **__: (result_of(status, []), ""))
    (tmp_path / "rows.py").write_text(GOOD)
    assert run(task, tmp_path / "rows.py", tmp_path / "out", "--rehearse") == cli.EXIT_FAILED
    assert reward(tmp_path / "out") == {"reward": 0.0}


def test_a_broken_machine_leaves_no_reward(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "grade", lambda *_, **__: (result_of(Status.INFRASTRUCTURE_ERROR, []), ""))
    (tmp_path / "rows.py").write_text(GOOD)
    assert run(task, tmp_path / "rows.py", tmp_path / "out", "--rehearse") == cli.EXIT_ENVIRONMENT
    assert not (tmp_path / "out" / "reward.json").exists()


@pytest.mark.parametrize("status", [Status.PASSED, Status.INCORRECT])
def test_without_a_gpu_nothing_is_decided(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    monkeypatch.setattr(cli, "grade", lambda *_, **__: (result_of(status, []), ""))
    (tmp_path / "rows.py").write_text(GOOD)
    assert run(task, tmp_path / "rows.py", tmp_path / "out") == cli.EXIT_ENVIRONMENT
    assert not (tmp_path / "out" / "reward.json").exists()
    assert (tmp_path / "out" / "reward-details.json").exists()


def test_the_rehearsal_reward_falls_with_the_time() -> None:
    values = [rehearsal.rehearsal_reward(t) for t in (0.0, 0.01, 1.0, 100.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 1.0
    assert values[-1] > 0.0


def test_an_honest_submission_rehearses_end_to_end(task: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(GOOD)
    words = ("--rehearse", "--require-tier", "unconfined")
    assert run(task, tmp_path / "rows.py", tmp_path / "out", *words) == cli.EXIT_PASSED
    assert 0.5 < reward(tmp_path / "out")["reward"] < 1.0
