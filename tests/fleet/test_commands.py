"""`taskfactory run` and `regrade` as a person uses them, with the real grader on the CPU. The long part is `full`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from grader.toy import GOOD, write_task
from taskfactory.cli import main
from taskfactory.report.site import Options, Site
from taskfactory.store.store import open_store

TOOLS = str(Path(__file__).resolve().parents[2] / "tools")


def folder_of(tmp_path: Path) -> Path:
    """Two submitters, one of them wrong, in the manifest form."""
    write_task(tmp_path / "task")
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(GOOD.replace("2.0", "2.1"))
    (tmp_path / "m.toml").write_text(
        '[defaults]\ntask = "./task"\n[[submission]]\nsubmission = "good.py"\nwho = "ann"\n'
        '[[submission]]\nsubmission = "bad.py"\nwho = "bob"\n'
    )
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a manifest"),
        (["--retry", "infra", "{m}"], "goes with --resume"),
        (["{m}", "--resume", "last"], "not both"),
        (["--resume", "last", "--store", "none.db"], "no such store"),
    ],
)
def test_misuse_is_explained(tmp_path: Path, arguments: list[str], said: str) -> None:
    manifest = str(folder_of(tmp_path) / "m.toml")
    done = CliRunner().invoke(main, ["run", *(a.replace("{m}", manifest) for a in arguments)])
    assert done.exit_code == 2
    assert said in done.output


def test_an_unknown_task_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "ann.py").write_text("")
    done = CliRunner().invoke(main, ["run", str(tmp_path), "--store", str(tmp_path / "r.db")])
    assert done.exit_code == 2
    assert "no task named 'nothing'" in done.output
    assert open_store(str(tmp_path / "r.db")).runs() == []


@pytest.mark.full
def test_run_report_and_regrade_with_the_real_grader(tmp_path: Path) -> None:
    folder_of(tmp_path)
    url = str(tmp_path / "r.db")
    common = ["--store", url, "--device", "cpu", "--jobs", "1", "--quiet"]
    done = CliRunner().invoke(main, ["run", str(tmp_path / "m.toml"), *common])
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == ["1", "passed", "1", "incorrect"]
    again = CliRunner().invoke(main, ["regrade", "--who", "ann", "--stored-task", *common])
    assert again.exit_code == 0, again.output
    store = open_store(url)
    results = list(store.results())
    assert [(r.submitter, r.status, r.tier) for r in results] == [
        ("ann", "passed", "confined"), ("bob", "incorrect", "confined"), ("ann", "passed", "confined"),
    ]  # fmt: skip
    assert results[0].record != results[2].record
    page = Site(store, Options()).render("task/row-scale.html")
    assert "outputs are checked here and nothing is timed" in page
    store.close()


@pytest.mark.full
def test_ctrl_c_leaves_a_run_that_is_resumed(tmp_path: Path) -> None:
    folder_of(tmp_path)
    url = str(tmp_path / "r.db")
    command = [sys.executable, "-m", "taskfactory", "run", "--store", url, "--jobs", "1"]
    environment = {**os.environ, "PYTHONPATH": TOOLS}
    driver = subprocess.Popen(
        [*command, "--device", "cpu", str(tmp_path / "m.toml")], env=environment, stderr=subprocess.PIPE, text=True
    )
    with driver:
        assert driver.stderr is not None
        for line in driver.stderr:
            if "ann #1: passed" in line:
                driver.send_signal(signal.SIGINT)
                break
        rest = driver.stderr.read()
    assert driver.returncode == 130, rest
    assert "--resume" in rest
    done = subprocess.run([*command, "--resume", "last"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    store = open_store(url)
    assert sorted((r.submitter, r.status) for r in store.results()) == [("ann", "passed"), ("bob", "incorrect")]
    store.close()
