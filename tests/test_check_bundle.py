"""The gates of `check-bundle`, with a harbor that is a script; the real one runs in `make test-ecosystem`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskfactory.check_bundle import Outcome, Setup, check_bundle, harbor_program, judge
from taskfactory.cli import main
from taskfactory.errors import InfrastructureError, UsageError
from taskfactory.registry import content_digest

HARBOR = """#!{python}
import json, os, pathlib, sys
words = sys.argv[1:]
if words[0] == "lint":
    print({lint!r})
    sys.exit(0)
at = lambda name: pathlib.Path(words[words.index(name) + 1])
path, agent = at("--path"), str(at("--agent"))
for task in sorted(path.iterdir()) if agent == "oracle" else [path]:
    trial = at("--jobs-dir") / "job" / task.name
    (trial / "verifier").mkdir(parents=True)
    reward = {rewards!r}.get(task.name if agent == "oracle" else "no-op")
    (trial / "verifier" / "reward-details.json").write_text(json.dumps({{"status": "passed"}}))
    found = None if reward is None else {{"rewards": {{"reward": reward}}}}
    record = {{"task_id": {{"path": str(task)}}, "verifier_result": found, "words": words}}
    record["exception_info"] = {{"exception_message": "it broke"}}
    (trial / "result.json").write_text(json.dumps(record))
"""
GOOD = {"oracle": 0.5, "slow": 0.2, "replay": 0.0, "write-inputs": 0.0, "forge-reward": 0.0, "no-op": 0.0}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "one"
    (folder / "tests").mkdir(parents=True)
    (folder / "solution").mkdir()
    (folder / "tests" / "task.json").write_text(json.dumps({"module": "one.py", "func": "one"}))
    (folder / "solution" / "one.py").write_text("def one(x):\n    return x\n")
    return folder


def fake_harbor(folder: Path, rewards: dict[str, float], lint: str = "[]", digest: str = "") -> Path:
    folder.mkdir()
    (folder / "harbor").write_text(HARBOR.format(python=sys.executable, rewards=rewards, lint=lint))
    read = json.dumps({"name": "taskfactory/one", "digest": digest})
    (folder / "python").write_text(f"#!/bin/sh\necho '{read}'\n")
    for name in ("harbor", "python"):
        (folder / name).chmod(0o755)
    return folder / "harbor"


def test_all_gates_pass(bundle: Path, tmp_path: Path) -> None:
    harbor = fake_harbor(tmp_path / "bin", GOOD, digest=content_digest(bundle))
    gates = check_bundle(bundle, Setup(harbor, jobs=tmp_path / "jobs"), attacks=True)
    assert {gate.name for gate in gates} == {"lint", "parse", *GOOD}
    assert all(gate.passed for gate in gates), gates
    assert (tmp_path / "jobs" / "one-oracle" / "job" / "slow" / "result.json").is_file()


@pytest.mark.parametrize(
    ("name", "reward"),
    [("oracle", 0.0), ("oracle", None), ("no-op", 0.1), ("no-op", None), ("slow", 0.5), ("slow", 0.0), ("replay", 0.2)],
)
def test_a_wrong_reward_fails_its_gate(bundle: Path, tmp_path: Path, name: str, reward: float | None) -> None:
    harbor = fake_harbor(tmp_path / "bin", GOOD | {name: reward}, digest=content_digest(bundle))  # type: ignore[dict-item]
    gates = check_bundle(bundle, Setup(harbor), attacks=True)
    failed = {gate.name for gate in gates if not gate.passed}
    assert name in failed
    assert failed <= {name, "slow"}  # without an oracle's reward nothing can lie below it


def test_lint_and_parse_fail(bundle: Path, tmp_path: Path) -> None:
    lint = json.dumps([{"rule": "root-agent", "message": "the agent is root"}])
    harbor = fake_harbor(tmp_path / "bin", GOOD, lint=lint, digest="sha256:0")
    gates = {gate.name: gate for gate in check_bundle(bundle, Setup(harbor))}
    assert not gates["lint"].passed
    assert "root-agent" in gates["lint"].seen
    assert not gates["parse"].passed
    assert gates["oracle"].passed


def test_judge_names_what_went_wrong() -> None:
    (gate,) = judge({"oracle": Outcome(None, "no reward: no device")})
    assert not gate.passed
    assert "no device" in gate.seen


def test_a_harbor_that_leaves_no_record(bundle: Path, tmp_path: Path) -> None:
    harbor = fake_harbor(tmp_path / "bin", {}, digest=content_digest(bundle))
    harbor.write_text("#!/bin/sh\necho '[]'\n")
    with pytest.raises(InfrastructureError, match="no record"):
        check_bundle(bundle, Setup(harbor))


def test_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a bundle"):
        check_bundle(tmp_path, Setup(tmp_path / "harbor"))


def test_no_harbor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="not found"):
        harbor_program(str(tmp_path / "harbor"))


def test_command(bundle: Path, tmp_path: Path) -> None:
    harbor = fake_harbor(tmp_path / "bin", GOOD, digest=content_digest(bundle))
    done = CliRunner().invoke(main, ["check-bundle", str(bundle), "--harbor", str(harbor), "--rehearse"])
    assert done.exit_code == 0, done.output
    assert "rehearsal" in done.output
    bad = fake_harbor(tmp_path / "other", GOOD | {"no-op": 1.0}, digest=content_digest(bundle))
    done = CliRunner().invoke(main, ["check-bundle", str(bundle), "--harbor", str(bad), "--rehearse"])
    assert done.exit_code == 1
    assert "FAIL  no-op" in done.output
