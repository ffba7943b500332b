"""The bundle's own command line: exit codes, what goes where, and the files a harness reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from grader.toy import GOOD, write_task
from taskfactory.grader import cli
from taskfactory.grader.result import CallFailure, Result, ShapeResult, Status
from taskfactory.grader.task import TaskError


class Recorder:
    """Stands in for the supervisor: keeps what it was asked for and returns one result."""

    def __init__(self, status: Status = Status.PASSED, **changes: Any) -> None:
        failed = status is not Status.PASSED
        self.result = Result("row-scale", "1.0.0", "sha256:0", "GB/s", "sha256:1", "grade", status,
                             message="off at 96 x 80" if failed else "", confinement={"tier": "confined"},
                             shapes=[ShapeResult("graded", 1, [96, 80], 30720, 3, seeds=[77123])],
                             **changes)  # fmt: skip
        if failed:
            self.result.failure = CallFailure("graded", 1, "", "off at 96 x 80", [96, 80], 77123, [], "secret trace")
        self.asked: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def __call__(self, *arguments: Any, **options: Any) -> tuple[Result, str]:
        self.asked, self.options = arguments, options
        return self.result, "printed by the submission\n"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "rows.py").write_text(GOOD)
    return ["--task", str(write_task(tmp_path / "task")), "--submission", str(tmp_path / "rows.py")]


def use(monkeypatch: pytest.MonkeyPatch, status: Status = Status.PASSED, **changes: Any) -> Recorder:
    recorder = Recorder(status, **changes)
    monkeypatch.setattr(cli, "grade", recorder)
    return recorder


# -- exit codes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", Status)
def test_every_status_has_its_exit_code(monkeypatch: pytest.MonkeyPatch, files: list[str], status: Status) -> None:
    use(monkeypatch, status)
    assert cli.main(["grade", *files]) == {Status.PASSED: 0, Status.INFRASTRUCTURE_ERROR: 3}.get(status, 1)


def test_a_task_error_is_2_and_says_which_file(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["grade", "--task", "absent", *files[2:]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("grader: absent/task.json: no such file")
    assert cli.main(["grade", *files[:2], "--submission", "absent.py"]) == 2
    assert cli.main(["measure", *files, "--shape", "1,2,3"]) == 2
    assert "(1, 2, 3) is no shape of row-scale, which has 2 numbers: N, M" in capsys.readouterr().err


def test_an_error_of_the_machine_is_3(monkeypatch: pytest.MonkeyPatch, files: list[str], tmp_path: Path) -> None:
    use(monkeypatch)
    assert cli.main(["grade", *files, "--out", str(tmp_path / "absent")]) == 3
    monkeypatch.setattr(cli, "grade", lambda *a, **k: (_ for _ in ()).throw(OSError("no processes left")))
    assert cli.main(["grade", *files]) == 3
    monkeypatch.setattr(cli, "grade", lambda *a, **k: (_ for _ in ()).throw(TaskError("bad")))
    assert cli.main(["grade", *files]) == 2


@pytest.mark.parametrize(
    "arguments",
    [[], ["grade"], ["grade", "--nonsense"], ["measure", "--shape", "a,b"], ["grade", "--calls", "1"],
     ["grade", "--calls", "-3"], ["grade", "--calls", "many"], ["grade", "--device", "tpu"],
     ["grade", "--require-tier", "hopeful"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_2(files: list[str], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments + (files if len(arguments) > 1 else []))
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


# -- options -----------------------------------------------------------------------------------------------------------


def test_grade_asks_for_a_confined_grading(monkeypatch: pytest.MonkeyPatch, files: list[str]) -> None:
    recorder = use(monkeypatch)
    cli.main(["grade", *files])
    assert recorder.asked[2:4] == ("grade", "auto")
    assert recorder.options["require_tier"] == "confined"
    assert recorder.options["calls"] is None
    cli.main(["grade", *files, "--device", "cpu", "--calls", "9", "--require-tier", "unconfined"])
    assert recorder.asked[2:4] == ("grade", "cpu")
    assert (recorder.options["require_tier"], recorder.options["calls"]) == ("unconfined", 9)


@pytest.mark.parametrize(
    ("arguments", "kinds", "shapes"),
    [
        ([], ("measure",), ()), (["--check"], ("correct",), ()), (["--quick"], ("quick",), ()),
        (["--shape", "4,64"], (), ((4, 64),)), (["--shape", "(4, 64)", "--shape", "5,6"], (), ((4, 64), (5, 6))),
        (["--quick", "--shape", "4,64"], ("quick",), ((4, 64),)),
    ],
)  # fmt: skip
def test_what_measure_runs(
    monkeypatch: pytest.MonkeyPatch, files: list[str], arguments: list[str], kinds: Any, shapes: Any
) -> None:
    recorder = use(monkeypatch)
    cli.main(["measure", *files, "--seed", "5", *arguments])
    assert recorder.asked[2] == "measure"
    assert (recorder.options["kinds"], recorder.options["shapes"]) == (kinds, shapes)
    assert recorder.options["seed"] == 5
    assert recorder.options["keep_going"]


@pytest.mark.parametrize(("text", "shape"), [("4,64", (4, 64)), ("(4, 64)", (4, 64)), ("4,", (4,)), ("-1", (-1,))])
def test_shapes_are_read(text: str, shape: tuple[int, ...]) -> None:
    assert cli.parse_shape(text) == shape


@pytest.mark.parametrize("text", ["x", "4;64", "4.5", "4,,x"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="not a shape such as"):
        cli.parse_shape(text)


# -- what is printed and written ---------------------------------------------------------------------------------------

SECRETS = ("77123", "30720", "secret trace", "printed by the submission", "96")


@pytest.mark.parametrize("extra", [[], ["--json"]])
@pytest.mark.parametrize("status", [Status.PASSED, Status.INCORRECT])
def test_grade_prints_nothing_of_the_graded_shapes(
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    capsys: pytest.CaptureFixture[str],
    status: Status,
    extra: list[str],
) -> None:
    use(monkeypatch, status)
    cli.main(["grade", *files, *extra])
    captured = capsys.readouterr()
    assert not [secret for secret in SECRETS if secret in captured.out + captured.err]
    if extra:
        assert json.loads(captured.out)["status"] == status
        assert captured.err == ""
    else:
        assert captured.out.splitlines()[-1].startswith("row-scale: ")
        assert ("incorrect: graded shape 1" in captured.err) == (status is Status.INCORRECT)


def test_measure_tells_everything(
    monkeypatch: pytest.MonkeyPatch, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Status.INCORRECT)
    assert cli.main(["measure", *files]) == 1
    captured = capsys.readouterr()
    assert "printed by the submission" in captured.err
    assert "at shape (96, 80), seed 77123" in captured.err
    assert "secret trace" in captured.err
    assert "printed by the submission" not in captured.out
    cli.main(["measure", *files, "--json"])
    assert json.loads(capsys.readouterr().out)["failure"]["seed"] == 77123


def test_a_harness_finds_reward_and_public_details(
    monkeypatch: pytest.MonkeyPatch, files: list[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "resolve_device", lambda device: "cuda")
    use(monkeypatch, timed=True, score=100.0, reward=0.5, score_interval=[99.0, 101.0])
    cli.main(["grade", *files, "--out", str(tmp_path), "--result", str(tmp_path / "private.json")])
    assert json.loads((tmp_path / "reward.json").read_text()) == {"reward": 0.5}
    public = (tmp_path / "reward-details.json").read_text()
    assert json.loads(public)["score"] == 100.0
    assert not [secret for secret in SECRETS if secret in public]
    assert json.loads((tmp_path / "private.json").read_text())["shapes"][0]["seeds"] == [77123]


def test_a_failure_is_worth_nothing_and_a_broken_machine_says_nothing(
    monkeypatch: pytest.MonkeyPatch, files: list[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "resolve_device", lambda device: "cuda")
    for status, names in ((Status.INFRASTRUCTURE_ERROR, set()), (Status.TIMEOUT, {"reward.json"})):
        out = tmp_path / status
        out.mkdir()
        use(monkeypatch, status)
        cli.main(["grade", *files, "--out", str(out)])
        assert set(os.listdir(out)) == {"reward-details.json", *names}
    assert json.loads((tmp_path / "timeout" / "reward.json").read_text()) == {"reward": 0.0}


def test_without_a_device_there_is_no_reward(
    monkeypatch: pytest.MonkeyPatch, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pass that nothing timed must not look like a failure to a harness that reads numbers."""
    use(monkeypatch)
    assert cli.main(["grade", *files, "--device", "cpu", "--out", str(tmp_path)]) == 3
    assert not (tmp_path / "reward.json").exists()
    assert json.loads((tmp_path / "reward-details.json").read_text())["status"] == "passed"
    assert "--rehearse" in capsys.readouterr().err


def test_a_harness_gets_nothing_for_a_submission_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, files: list[str], tmp_path: Path
) -> None:
    recorder = use(monkeypatch)
    command = ["grade", *files[:2], "--submission", str(tmp_path / "absent.py"), "--device", "cpu", "--out"]
    assert cli.main([*command, str(tmp_path)]) == 1
    assert recorder.asked == ()
    assert json.loads((tmp_path / "reward.json").read_text()) == {"reward": 0.0}
    assert json.loads((tmp_path / "reward-details.json").read_text())["status"] == "import_error"


# -- for real ----------------------------------------------------------------------------------------------------------


def test_the_vendored_copy_grades_by_itself(tmp_path: Path) -> None:
    """As in a bundle: the package copied under another name, no taskfactory, nothing in the environment."""
    task = write_task(tmp_path / "tests")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(cli.__file__).parent, task / "grader", ignore=ignored)
    (tmp_path / "rows.py").write_text(GOOD.replace("2.0 if", "float('nan') if"))
    command = [sys.executable, "-m", "grader", "grade", "--task", ".", "--submission", str(tmp_path / "rows.py"),
               "--device", "cpu", "--rehearse", "--out", str(tmp_path)]  # fmt: skip
    done = subprocess.run(
        command, cwd=task, capture_output=True, text=True, timeout=120, check=False,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "scaled inf" in done.stdout
    assert "not_finite: given shape 1" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert json.loads((tmp_path / "reward.json").read_text()) == {"reward": 0.0}
    assert json.loads((tmp_path / "reward-details.json").read_text())["status"] == "not_finite"
    assert sorted(path.name for path in task.iterdir()) == ["grader", "make_inputs.py", "reference.py", "task.json"]
