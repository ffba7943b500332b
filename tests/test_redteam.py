"""The corpus of attacks against the grader: that it is well formed, that every attack is defeated, that one would show.

The whole corpus runs in the fast suite; what is for a device is marked `gpu`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from grader.toy import GOOD, write_task
from taskfactory import paths
from taskfactory.cli import main
from taskfactory.errors import InfrastructureError, UsageError
from taskfactory.grader import confine, supervisor
from taskfactory.grader.clock import Overhead, shape_time
from taskfactory.grader.processes import descendants
from taskfactory.grader.result import Result, ShapeResult, Status
from taskfactory.grading import load
from taskfactory.redteam import campaign, corpus, submission
from taskfactory.redteam.campaign import Bait, Outcome, judge, run_attack
from taskfactory.redteam.corpus import Attack, load_corpus

CORPUS = load_corpus()
LARGE = {"correct": [[4, 32], [8, 100]], "graded": [[65536, 4096]]}  # long enough to be timed on a device
ON_DEVICE = ("asynchrony", "clock", "honest", "outputs", "phases", "protocol", "replay")  # the rest knows no device
ZEROS = (
    '"""Returns zeros.\n\nSource: own\n"""\nCLASS = "outputs"\nEXPECTED = ("{}",)\n\n\ndef attack(honest, *args):\n'
    "    return [output.zero_() for output in honest(*args)]\n"
)


def _parameters(device: str) -> list[Any]:
    chosen = []
    for attack in CORPUS:
        needs_device = "cuda" in attack.needs
        if attack.applies or (needs_device if device == "cpu" else not needs_device and attack.kind not in ON_DEVICE):
            continue
        marks = [pytest.mark.gpu] if device == "cuda" else []
        if attack.open:
            marks.append(pytest.mark.xfail(strict=True, reason=attack.open))
        chosen.append(pytest.param(attack, marks=marks, id=attack.name))
    return chosen


def _run(attack: Attack, task_dir: Path, device: str = "cpu", against: Result | None = None, **options: Any) -> Outcome:
    outcome = run_attack(attack, task_dir, load(task_dir), GOOD, device, against, **options)
    if outcome.verdict == "skipped":
        pytest.skip(outcome.message)
    return outcome


@pytest.mark.parametrize("attack", _parameters("cpu"))
def test_an_attack_is_defeated_and_a_control_passes(tmp_path: Path, attack: Attack) -> None:
    outcome = _run(attack, write_task(tmp_path / "task"))
    assert outcome.verdict == "held", outcome


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A larger toy for a device, and the honest implementation's grading on it."""
    if not supervisor.cuda_is_there():
        pytest.skip("needs a CUDA device")
    folder = tmp_path_factory.mktemp("device")
    task_dir = write_task(folder / "task", shapes=LARGE, work={"correct": [512, 3200], "graded": [4 * 65536 * 4096]})
    (folder / "rows.py").write_text(GOOD)
    result, _ = supervisor.grade(task_dir, folder / "rows.py", "grade", "cuda")
    assert result.status is Status.PASSED, result.message
    return task_dir, result


@pytest.mark.parametrize("attack", _parameters("cuda"))
def test_an_attack_on_a_device_is_defeated_or_gains_nothing(attack: Attack, on_device: tuple[Path, Result]) -> None:
    outcome = _run(attack, on_device[0], "cuda", on_device[1])
    assert outcome.verdict == "held", outcome


def test_every_class_has_an_attack_that_needs_no_device() -> None:
    kinds = {attack.kind for attack in CORPUS}
    assert {attack.kind for attack in CORPUS if "cuda" not in attack.needs} == kinds
    assert len(kinds) >= 14


def test_every_file_of_the_corpus_says_what_it_is() -> None:
    assert len({attack.name for attack in CORPUS}) == len(CORPUS)
    for attack in CORPUS:
        assert attack.mechanism.endswith("."), attack.name
        assert len(attack.mechanism) > 15, attack.name
        assert attack.source, attack.name
        assert Status.INFRASTRUCTURE_ERROR not in attack.on_cpu, attack.name


def test_without_confinement_the_same_attack_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-check: an attack that fails because it is broken would fail here too."""
    nothing = confine.Observed(0, None, error="switched off by a test")
    monkeypatch.setattr(supervisor, "observe", lambda device: nothing)
    for name in ("read_hidden_files", "network", "signal_broker"):
        outcome = _run(corpus.find(CORPUS, name), write_task(tmp_path / "task"), require_tier="unconfined")
        assert outcome.verdict == "broken", name
        assert outcome.breaches, name


def test_an_installed_package_shows_a_worker_neither_specs_nor_solutions(tmp_path: Path) -> None:
    """A wheel carries them inside the site-packages that a worker must read."""
    root, package = Path(__file__).parents[1], tmp_path / "site-packages" / "taskfactory"
    shutil.copytree(root / "tools" / "taskfactory", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, source in {"specs": "specs", "solutions": "solutions", "exploits": "tests/exploits"}.items():
        shutil.copytree(root / source, package / "_data" / name)
    write_task(tmp_path / "task")
    (tmp_path / "honest.py").write_text(GOOD)
    arguments = _command(tmp_path, "--attack", "read_installed_solutions", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "taskfactory", *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(package.parent)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["outcomes"][0]["verdict"] == "held"


def test_a_spread_of_its_own_walls_does_not_lower_the_bound() -> None:
    """What the attack `spread_of_walls` does, in figures: 1 ms of work, 0.5 ms of overhead, most calls 0.4 ms late."""
    trusted = Overhead((1.5,) * 16, (1.0,) * 16)
    honest = shape_time([1.5] * 64, [1.0] * 64, [trusted, trusted])
    attack = shape_time([1.5] * 9 + [1.9] * 55, [0.1] * 64, [trusted, trusted])
    assert honest.score_ms == pytest.approx(1.0)
    assert attack.score_ms >= 0.98 * honest.score_ms


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param("Seccomp_filters:\t2", id="once it runs the submission"),
        pytest.param("", id="as soon as it exists"),
    ],
)  # fmt: skip
def test_a_killed_supervisor_leaves_no_worker(tmp_path: Path, sign: str) -> None:
    """The worker's state is read from /proc; the second seccomp filter goes on just before the import."""
    write_task(tmp_path / "task")
    (tmp_path / "rows.py").write_text("import threading\nthreading.Event().wait()\n")
    program = (
        "import sys; from pathlib import Path; from taskfactory.grader.supervisor import grade\n"
        "if __name__ == '__main__':\n"
        "    say = lambda step, done, total: print(step, flush=True)\n"
        "    grade(Path(sys.argv[1]), Path(sys.argv[2]), 'grade', 'cpu', say, first_call_s=60.0)\n"
    )
    path = {"PYTHONPATH": str(Path(paths.__file__).parents[1])}
    command = [sys.executable, "-c", program, str(tmp_path / "task"), str(tmp_path / "rows.py")]
    with subprocess.Popen(command, env={**os.environ, **path}, stdout=subprocess.PIPE, text=True) as grading:
        assert grading.stdout is not None
        assert grading.stdout.readline()  # the broker prepares; the worker starts soon
        workers: set[int] = set()
        while not workers:
            assert grading.poll() is None
            workers = {pid for pid in descendants(grading.pid) if _is_worker(pid, sign)}
        watched = {pid: os.pidfd_open(pid) for pid in workers}
        grading.kill()
    poller = select.poll()
    for descriptor in watched.values():
        poller.register(descriptor, select.POLLIN)
    gone = poller.poll(5000)
    for descriptor in watched.values():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
    assert len(gone) == len(watched)


def test_what_one_grading_plants_in_its_caches_is_not_there_in_the_next(tmp_path: Path) -> None:
    attack = corpus.find(CORPUS, "poisoned_triton_cache")
    for _ in range(2):
        assert _run(attack, write_task(tmp_path / "task")).verdict == "held"


def _is_worker(pid: int, sign: str) -> bool:
    try:
        named = Path(f"/proc/{pid}/comm").read_text() == "grader.worker\n"
        return named and sign in Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return False


def test_a_result_that_commands_the_terminal_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load(write_task(tmp_path / "task"))
    result = Result("t", "1", "d", "GB/s", "s", "grade", Status.RUNTIME_ERROR, message="\x1b[2Jpassed")
    assert campaign.misshown(result, task) == []  # the table spells them out
    monkeypatch.setattr(campaign, "describe_failure", lambda result, private: result.message)
    assert "control characters" in campaign.misshown(result, task)[0]


def _outcome(**changes: Any) -> Outcome:
    return Outcome(**{"name": "a", "kind": "k", "control": False, "status": "passed", "expected": ["passed"],
                      "verdict": "", **changes})  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "held"),
        ({"status": "incorrect"}, "broken"),
        ({"breaches": ["BREACH x"]}, "broken"),
        ({"gain": 0.03, "allowance": 0.02}, "broken"),
        ({"gain": 0.01, "allowance": 0.02}, "held"),
        ({"gain": -0.5, "allowance": 0.02}, "held"),
        ({"control": True, "gain": 0.03, "allowance": 0.02}, "held"),
    ],
)
def test_the_verdict(changes: dict[str, Any], verdict: str) -> None:
    attack = corpus.find(CORPUS, "plain" if changes.get("control") else "zeros")
    assert judge(_outcome(**changes), attack) == verdict
    assert judge(_outcome(**changes), dataclasses.replace(attack, open="known")) in ("held", "open")


def test_the_gain_is_measured_against_what_delta_allows() -> None:
    def result(score: float | None) -> Result:
        shapes = [ShapeResult("graded", 1, [8], 1, 4, delta_ms=0.02, score_ms=1.0)]
        return Result("t", "1", "d", "GB/s", "s", "grade", Status.PASSED, timed=True, score=score, shapes=shapes)

    gain, allowance = campaign.gain_over(result(110.0), result(100.0))
    assert gain == pytest.approx(0.10)
    assert allowance == pytest.approx(0.02)
    assert campaign.gain_over(result(None), result(100.0)) == (None, None)


def test_the_bait_notices_what_happens_to_it(tmp_path: Path) -> None:
    bait = Bait.lay(tmp_path)
    assert bait.disturbed() == []
    Path(bait.prized[0]).write_text("forged")
    Path(bait.hidden[0]).unlink()
    Path(bait.outside, "here").touch()
    Path(bait.prized[1] + ".linked").touch()
    (bait.temporary / "scratch").mkdir()
    assert len(bait.disturbed()) == 5
    assert not list(bait.temporary.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def attack(", "never closed"),
        ('"""A."""\nCLASS = "x"\nEXPECTED = ("passed",)\n\n\ndef attack(honest): ...\n', "Source"),
        (ZEROS.format("no_such_status"), "no_such_status"),
        (ZEROS.format("incorrect").replace("def attack", "def other"), "attack"),
        (ZEROS.format("incorrect").replace('CLASS = "outputs"\n', ""), "CLASS"),
        (ZEROS.format("incorrect").replace("EXPECTED", "NEEDS = (1,)\nEXPECTED"), "NEEDS"),
    ],
)
def test_a_malformed_file_is_an_error_with_its_path(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"(?is)broken\.py.*" + message):
        corpus.load_attack(path, control=False)


def test_the_text_of_a_submission_keeps_both_sources_apart(tmp_path: Path) -> None:
    task = load(write_task(tmp_path / "task"))
    attack = corpus.find(CORPUS, "zeros")
    facts = submission.facts_of(task, 1, ["hidden"], ["prized"], "outside", "secret")
    text = submission.compose(attack, "x = '''{func} \\n'''\n", task, facts)
    compile(text, "rows.py", "exec")
    assert repr("x = '''{func} \\n'''\n") in text
    assert "def row_scale(*args)" in text


def test_the_honest_implementation_is_the_given_one_the_bundles_or_ours(tmp_path: Path) -> None:
    task = load(write_task(tmp_path / "bundle" / "tests"))
    with pytest.raises(UsageError, match="--honest"):
        submission.honest_source(task, tmp_path / "bundle", None)
    (tmp_path / "bundle" / "solution").mkdir()
    (tmp_path / "bundle" / "solution" / "rows.py").write_text("# the bundle's\n")
    (tmp_path / "given.py").write_text("# given\n")
    assert submission.honest_source(task, tmp_path / "bundle", None) == "# the bundle's\n"
    assert submission.honest_source(task, tmp_path / "bundle", tmp_path / "given.py") == "# given\n"
    ours = dataclasses.replace(task, module="based.py")
    assert submission.honest_source(ours, None, None) == (paths.solutions_dir() / "based.py").read_text("utf-8")


def test_the_corpus_of_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "taskfactory")
    assert paths.exploits_dir() == tmp_path / "taskfactory" / "_data" / "exploits"
    wheel = Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8")
    assert '"tests/exploits" = "taskfactory/_data/exploits"' in wheel


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of one attack that is defeated and one that is said to pass and does not; a task and a solution."""
    folder = tmp_path / "exploits"
    (folder / "controls").mkdir(parents=True)
    (folder / "defeated.py").write_text(ZEROS.format("incorrect"))
    (folder / "misjudged.py").write_text(ZEROS.format("not_finite"))
    monkeypatch.setattr(corpus, "exploits_dir", lambda: folder)
    write_task(tmp_path / "task")
    (tmp_path / "honest.py").write_text(GOOD)
    return tmp_path


def _command(folder: Path, *more: str) -> list[str]:
    return ["redteam", str(folder / "task"), "--honest", str(folder / "honest.py"), "--device", "cpu", *more]


def test_the_command_prints_a_table_and_its_status_says_whether_all_held(
    own_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [
        _outcome(name="defeated", kind="outputs", status="incorrect", verdict="held"),
        _outcome(name="fast", kind="clock", verdict="broken", gain=0.5, allowance=0.02, breaches=["BREACH seen"]),
        _outcome(name="absent", kind="clock", status="", verdict="skipped", message="needs a CUDA device"),
    ]
    against = Result("row-scale", "1", "d", "GB/s", "s", "grade", Status.PASSED)
    monkeypatch.setattr(campaign, "run_campaign", lambda *_, **__: (against, outcomes))
    done = CliRunner().invoke(main, _command(own_corpus))
    assert done.exit_code == 1, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert ["outputs/defeated", "held", "incorrect"] in lines
    assert ["clock/fast", "broken", "passed", "+50.0%", "(allowed", "2.0%)"] in lines
    assert ["BREACH", "seen"] in lines
    assert lines[-1] == ["1", "held,", "1", "skipped,", "0", "open,", "1", "broken"]
    del outcomes[1]
    assert CliRunner().invoke(main, _command(own_corpus)).exit_code == 0


def test_one_attack_as_json(own_corpus: Path) -> None:
    done = CliRunner().invoke(main, _command(own_corpus, "--attack", "defeated", "--json"))
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["tier"] in ("confined", "namespaced")
    (outcome,) = record["outcomes"]
    assert (outcome["status"], outcome["verdict"], outcome["gain"]) == ("incorrect", "held", None)


def test_listing_runs_nothing() -> None:
    done = CliRunner().invoke(main, ["redteam", "--list", "--class", "clock"])
    assert done.exit_code == 0
    assert len(done.output.splitlines()) == sum(attack.kind == "clock" for attack in CORPUS)


def test_wrong_arguments(own_corpus: Path) -> None:
    assert CliRunner().invoke(main, ["redteam"]).exit_code == 2
    assert CliRunner().invoke(main, _command(own_corpus, "--attack", "no-such")).exit_code == 2
    missing = ["redteam", str(own_corpus / "task"), "--honest", "nowhere.py", "--device", "cpu"]
    assert CliRunner().invoke(main, missing).exit_code == 2


def test_a_dishonest_honest_implementation_says_nothing(own_corpus: Path) -> None:
    task = load(own_corpus / "task")
    with pytest.raises(InfrastructureError, match="does not pass"):
        campaign.run_campaign([], own_corpus / "task", task, "import nothing", "cpu", lambda *_: None)
