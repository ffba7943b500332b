"""`tests/ecosystem/device.py`: gates through test.sh, in as many calls as it takes; the verifier is a stand-in."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parent / "ecosystem" / "device.py"
ORACLE = "import os\n\n\ndef f(x):\n    return x\n"
STARTER = "def f(x):\n    raise NotImplementedError\n"
VERIFIER = """#!/bin/sh
# A stand-in for the grader: rewards by what the submission looks like, or what a file beside it says.
cd "$(dirname "$0")"
python3 - "$TASKFACTORY_SUBMISSION" "$TASKFACTORY_OUT" <<'END'
import json, pathlib, sys
text, out = pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[2])
signs = {"range(": "slow", "_kept": "replay", ".zero_()": "write-inputs", "_exit(": "forge-reward", "NotImpl": "no-op"}
name = next((name for sign, name in signs.items() if sign in text), "oracle")
with open("../log", "a") as log:
    print(name, file=log)
rewards = {"oracle": 0.8, "slow": 0.2} | json.loads(pathlib.Path("../rewards.json").read_text())
if rewards.get(name, 0.0) is None:
    sys.exit("the clock is too noisy")
(out / "reward.json").write_text(json.dumps({"reward": rewards.get(name, 0.0)}))
(out / "reward-details.json").write_text(json.dumps({"status": "some", "confinement": {"tier": "confined"}}))
END
"""
NAMES = ["oracle", "no-op", "slow", "replay", "write-inputs", "forge-reward"]


@pytest.fixture(scope="module")
def device() -> ModuleType:
    spec = importlib.util.spec_from_file_location("device", FILE)
    assert spec is not None
    assert spec.loader is not None
    before = list(sys.path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    for part in ("tests", "solution", "environment/app"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text('schema_version = "1.4"\n')
    (folder / "instruction.md").write_text("x\n")
    (folder / "tests" / "task.json").write_text(json.dumps({"module": "f.py", "func": "f"}))
    (folder / "tests" / "test.sh").write_text(VERIFIER)
    (folder / "solution" / "f.py").write_text(ORACLE)
    (folder / "environment" / "app" / "f.py").write_text(STARTER)
    (folder / "rewards.json").write_text("{}")
    return folder


def run(device: ModuleType, bundle: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setenv("TASKFACTORY_PYTHON", sys.executable)
    out = bundle.parent / "out.jsonl"
    monkeypatch.setattr(sys, "argv", ["device.py", "--out", str(out), *options, str(bundle)])
    return int(device.main())


def graded(bundle: Path) -> list[str]:
    log = bundle / "log"
    return log.read_text().split() if log.is_file() else []


def test_all_gates_pass_and_nothing_is_graded_twice(
    device: ModuleType, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(device, bundle, monkeypatch) == 0
    assert graded(bundle) == NAMES
    assert capsys.readouterr().out.count("ok ") == len(NAMES)
    assert run(device, bundle, monkeypatch) == 0
    assert graded(bundle) == NAMES
    (bundle / "solution" / "f.py").write_text(ORACLE + "# changed\n")
    assert run(device, bundle, monkeypatch) == 0
    assert len(graded(bundle)) == 2 * len(NAMES)  # another oracle is another bundle


@pytest.mark.parametrize("rewards", [{"replay": 0.1}, {"slow": 0.8}, {"slow": 0.0}, {"oracle": 0.0}, {"no-op": 1.0}])
def test_a_wrong_reward_fails(
    rewards: dict[str, float], device: ModuleType, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bundle / "rewards.json").write_text(json.dumps(rewards))
    assert run(device, bundle, monkeypatch) == 1


def test_what_may_not_end_in_time_is_left_for_another_call(
    device: ModuleType, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(device, bundle, monkeypatch, "--limit-s", "1") == 3
    assert graded(bundle) == []
    assert capsys.readouterr().out.count("left") == len(NAMES)
    assert run(device, bundle, monkeypatch, "--limit-s", "1000") == 0


def test_without_a_bundle_nothing_is_proved(
    device: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report").mkdir()
    assert run(device, tmp_path / "report", monkeypatch) == 3
    assert "not a bundle" in capsys.readouterr().err


def test_a_machine_that_cannot_measure_is_asked_again(
    device: ModuleType, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bundle / "rewards.json").write_text('{"slow": null}')
    assert run(device, bundle, monkeypatch) == 3
    assert graded(bundle).count("slow") == device.ATTEMPTS
    (bundle / "rewards.json").write_text("{}")
    before = len(graded(bundle))
    assert run(device, bundle, monkeypatch) == 0
    assert graded(bundle)[before:] in (["slow"], NAMES)
