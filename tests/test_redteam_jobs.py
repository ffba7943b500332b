"""Several attacks at once: which may, and that it changes no outcome."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from grader.toy import GOOD, write_task
from taskfactory.cli import main
from taskfactory.errors import InfrastructureError
from taskfactory.grader.result import Status
from taskfactory.grading import load
from taskfactory.redteam import campaign
from taskfactory.redteam.corpus import find, load_corpus

CORPUS = load_corpus()


def test_what_is_timed_or_selfish_runs_alone() -> None:
    on_device = [attack for attack in CORPUS if campaign.runs_beside_others(attack, "cuda")]
    assert on_device
    assert not any(Status.PASSED in attack.expected or attack.control for attack in on_device)
    for device in ("cpu", "cuda"):
        beside = {attack.kind for attack in CORPUS if campaign.runs_beside_others(attack, device)}
        assert beside
        assert not beside & set(campaign.SELFISH)
    assert campaign.runs_beside_others(find(CORPUS, "plain"), "cpu")


def test_the_outcomes_are_those_of_one_after_the_other_in_the_given_order(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "task")
    names = ("zeros", "starve_broker", "read_hidden_files", "exit_zero", "load_left_behind")
    attacks = [find(CORPUS, name) for name in names]
    seen: list[tuple[int, int]] = []
    against, outcomes = campaign.run_campaign(
        attacks, task_dir, load(task_dir), GOOD, "cpu", lambda name, done, total: seen.append((done, total)), jobs=2
    )
    assert against.status is Status.PASSED
    assert [outcome.name for outcome in outcomes] == list(names)
    assert [outcome.verdict for outcome in outcomes] == ["held"] * 4 + ["skipped"]
    assert seen == [(0, 5), (0, 5), (1, 5), (2, 5), (3, 5), (4, 5)]


def test_a_dishonest_baseline_starts_no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(campaign, "ProcessPoolExecutor")
    task_dir = write_task(tmp_path / "task")
    with pytest.raises(InfrastructureError, match="does not pass"):
        campaign.run_campaign(
            [find(CORPUS, "zeros")], task_dir, load(task_dir), "import nothing", "cpu", lambda *_: None, jobs=2
        )


def test_the_command_hands_the_number_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def stand_in(*given: object, **options: object) -> None:
        asked.append(given[-1])
        raise InfrastructureError("enough")

    monkeypatch.setattr(campaign, "run_campaign", stand_in)
    write_task(tmp_path / "task")
    (tmp_path / "honest.py").write_text(GOOD)
    command = ["redteam", str(tmp_path / "task"), "--honest", str(tmp_path / "honest.py"), "--device", "cpu"]
    assert CliRunner().invoke(main, [*command, "--jobs", "3"]).exit_code == 3
    assert asked == [3]
    assert CliRunner().invoke(main, [*command, "--jobs", "0"]).exit_code == 2
