"""`taskfactory grade`, `measure` and `doctor`: exit codes, JSON, and what a solver may see."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grader.toy import GOOD, write_task
from taskfactory import doctor, grading
from taskfactory.cli import main, show_result
from taskfactory.grader.result import CallFailure, Result, ShapeResult, Status
from taskfactory.grader.table import summary

TOOLS = Path(__file__).resolve().parents[1] / "tools"
SECRETS = ("77123", "30720", "96, 80", "secret trace", "printed by the submission")
COLOR = re.compile(r"\x1b\[[0-9;]*[34][0-9]")


def run(*arguments: object) -> int:
    """The exit code of one command."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments], prog_name="taskfactory")
    return int(caught.value.code or 0)


class Graded:
    """Stands in for the grader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: Status = Status.PASSED) -> None:
        self.result = Result(
            "row-scale", "1.0.0", "sha256:0", "GB/s", "sha256:1", "grade", status, confinement={"tier": "confined"},
            shapes=[ShapeResult("graded", 1, [96, 80], 30720, 3, seeds=[77123])], warnings=["it was warm"],
        )  # fmt: skip
        if status is not Status.PASSED:
            self.result.message = "off at 96, 80"
            self.result.failure = CallFailure("graded", 1, "", "off at 96, 80", [96, 80], 77123, [], "secret trace")
        self.asked: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}
        monkeypatch.setattr(grading, "grade_submission", self)

    def __call__(self, *arguments: Any, **options: Any) -> tuple[Result, str]:
        self.asked, self.options = arguments, options
        return self.result, "printed by the submission\n"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    (tmp_path / "rows.py").write_text(GOOD)
    return write_task(tmp_path / "task")


# -- exit codes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["grade", "measure"])
@pytest.mark.parametrize("status", Status)
def test_a_verdict_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, task: Path, command: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    Graded(monkeypatch, status)
    expected = {Status.PASSED: 0, Status.INFRASTRUCTURE_ERROR: 3}.get(status, 1)
    assert run(command, task, "rows.py") == expected
    captured = capsys.readouterr()
    assert captured.out.startswith("shape ")
    assert f"row-scale: {status}" in captured.out
    assert (f"{status}: " in captured.err) == (status is not Status.PASSED)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["grade", "no-such-task", "rows.py"], "no-such-task"),
        (["grade", "{task}", "absent.py"], "absent.py: no such submission file"),
        (["measure", "{task}", "{task}"], "a directory"),
        (["measure", "{task}", "{rows}", "--shape", "1,2,3"], "(1, 2, 3) is no shape of row-scale"),
        (["measure", "{task}", "{rows}", "--shape", "wide"], "not a shape such as"),
        (["grade", "{task}", "{rows}", "--calls", "1"], "1 is not in the range"),
        (["grade", "{task}", "{rows}", "--device", "tpu"], "tpu"),
        (["grade", "{task}", "{rows}", "--result", "absent/result.json"], "absent: no such directory"),
        (["grade", "{task}"], "SUBMISSION"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_2_and_silent_on_stdout(
    task: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [argument.format(task=task, rows=task.parent / "rows.py") for argument in arguments]
    assert run(*filled) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert "Traceback" not in captured.err


def test_a_task_that_is_damaged_is_2(task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (task / "task.json").write_text("{}")
    assert run("grade", task, "rows.py") == 2
    assert "task.json" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_3(
    monkeypatch: pytest.MonkeyPatch, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from taskfactory.grader import supervisor

    monkeypatch.setattr(supervisor, "cuda_is_there", lambda: False)
    assert run("grade", task, task.parent / "rows.py", "--device", "cuda") == 3
    assert "--device cpu" in capsys.readouterr().err


def test_another_system_is_3(monkeypatch: pytest.MonkeyPatch, task: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert run("grade", task, task.parent / "rows.py") == 3
    assert "grading needs Linux" in capsys.readouterr().err


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, task: Path) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(grading, "grade_submission", interrupted)
    assert run("grade", task, "rows.py") == 130


# -- options -----------------------------------------------------------------------------------------------------------


def test_a_built_bundle_is_graded_with_its_hidden_half(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graded = Graded(monkeypatch)
    write_task(tmp_path / "bundle" / "tests")
    run("grade", tmp_path / "bundle", "rows.py", "--device", "cpu")
    assert graded.asked[:4] == (tmp_path / "bundle" / "tests", Path("rows.py"), "grade", "cpu")
    assert graded.options["require_tier"] == "confined"


def test_confinement_is_given_up_only_on_request(monkeypatch: pytest.MonkeyPatch, task: Path) -> None:
    graded = Graded(monkeypatch)
    run("grade", task, "rows.py", "--require-tier", "partial", "--calls", "5")
    assert (graded.options["require_tier"], graded.options["calls"]) == ("partial", 5)
    run("grade", task, "rows.py", "--allow-unconfined")
    assert graded.options["require_tier"] == "unconfined"


def test_measure_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, task: Path) -> None:
    graded = Graded(monkeypatch)
    run("measure", task, "rows.py", "--quick", "--shape", "4,64", "--shape", "5,6", "--seed", "9")
    assert graded.asked[2] == "measure"
    wanted = {"kinds": ("quick",), "shapes": ((4, 64), (5, 6)), "seed": 9, "keep_going": True}
    assert {name: graded.options[name] for name in wanted} == wanted


# -- what is shown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.PASSED, Status.INCORRECT])
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_public_hides_graded_data(
    monkeypatch: pytest.MonkeyPatch, task: Path, capsys: pytest.CaptureFixture[str], status: Status, extra: list[str]
) -> None:
    Graded(monkeypatch, status)
    run("grade", task, "rows.py", "--public", *extra)
    captured = capsys.readouterr()
    assert not [secret for secret in SECRETS if secret in captured.out + captured.err]
    assert not extra or json.loads(captured.out, parse_constant=pytest.fail)["status"] == status


def test_without_public_the_author_sees_everything(
    monkeypatch: pytest.MonkeyPatch, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Graded(monkeypatch, Status.INCORRECT)
    run("grade", task, "rows.py")
    captured = capsys.readouterr()
    for text in ("77123", "(96, 80)", "secret trace", "printed by the submission", "warning: it was warm"):
        assert text in captured.err
        assert text not in captured.out
    run("grade", task, "rows.py", "--json")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["failure"]["traceback"] == "secret trace"
    assert captured.err == ""


def test_the_private_result_is_written_even_for_a_public_showing(
    monkeypatch: pytest.MonkeyPatch, task: Path, tmp_path: Path
) -> None:
    Graded(monkeypatch, Status.TIMEOUT)
    assert run("grade", task, "rows.py", "--public", "--result", tmp_path / "result.json") == 1
    assert json.loads((tmp_path / "result.json").read_text())["failure"]["seed"] == 77123


def test_no_color_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    Graded(monkeypatch, Status.INCORRECT)
    run("grade", task, "rows.py")
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err


@pytest.mark.parametrize("no_color", [True, False])
def test_the_progress_bar_obeys_no_color(monkeypatch: pytest.MonkeyPatch, no_color: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    with show_result.watched("row-scale") as progress:
        assert progress is not None
        progress("verifying", 1, 3)
    assert "row-scale: verifying" in terminal.getvalue()
    assert bool(COLOR.search(terminal.getvalue())) is not no_color


# -- doctor ------------------------------------------------------------------------------------------------------------


def test_doctor_says_what_this_machine_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json") == 0
    facts = {fact["name"]: fact for fact in json.loads(capsys.readouterr().out)["facts"]}
    assert facts["torch"]["ok"]
    assert {"taskfactory", "python", "system", "triton", "gcc", "device", "confinement"} <= facts.keys()


def test_doctor_without_torch_is_3_and_without_a_device_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = doctor.Line("device", "no CUDA device", False, "verified on the CPU")
    monkeypatch.setattr(doctor, "device", lambda: ([missing], {}))
    monkeypatch.setattr(doctor, "confinement", lambda: doctor.Line("confinement", "confined"))
    assert run("doctor") == 0
    assert "--  device       no CUDA device   (verified on the CPU)" in capsys.readouterr().out.splitlines()
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "torch" else version(package))
    assert run("doctor") == 3
    assert "--  torch        missing   (grading needs it)" in capsys.readouterr().out.splitlines()


# -- for real ----------------------------------------------------------------------------------------------------------


def test_a_whole_measurement_from_the_shell(task: Path) -> None:
    """A submission whose output holds NaN, which had no readable table once."""
    (task.parent / "rows.py").write_text(GOOD.replace("2.0 if", "float('nan') if"))
    done = subprocess.run(
        [sys.executable, "-m", "taskfactory", "measure", task, task.parent / "rows.py", "--check", "--device", "cpu"],
        env={**os.environ, "PYTHONPATH": str(TOOLS)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "correct 2: N=8 M=100" in done.stdout  # it goes on after the first failure
    assert "scaled inf" in done.stdout
    assert "not_finite: correct shape 1" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_the_last_line_names_an_unconfined_run() -> None:
    made = Result("row-scale", "1.0.0", "", "GB/s", "", "grade", Status.PASSED)
    assert summary(made).endswith("[unconfined]")
