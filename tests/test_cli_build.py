"""`taskfactory build`: what it prints where, and its exit status."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import taskfactory
from taskfactory.cli import main
from test_prose import FIXTURE


@pytest.fixture
def repo(tmp_path, monkeypatch) -> Path:
    """An author's repository with one spec and its solution, as the working directory."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "solutions").mkdir()
    shutil.copy(FIXTURE, tmp_path / "specs")
    (tmp_path / "solutions" / "row_scale.py").write_text("def row_scale(x, weight, eps=1e-6):\n    return x\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["build", *arguments])


def change(repo: Path, old: str, new: str) -> None:
    path = repo / "specs" / "row_scale.py"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_builds_every_spec_of_the_folder(repo):
    done = run()
    assert done.exit_code == 0, done.output
    assert done.stdout == "build/row-scale  built\n"
    assert (repo / "build" / "row-scale" / "manifest.json").is_file()
    again = run()
    assert again.stdout == "build/row-scale  up to date\n"


@pytest.mark.parametrize("argument", ["row-scale", "specs", "specs/row_scale.py"])
def test_names_folders_and_files(repo, argument):
    done = run(argument, "--out", "elsewhere")
    assert done.exit_code == 0, done.output
    assert (repo / "elsewhere" / "row-scale" / "task.toml").is_file()


def test_json(repo):
    rows = json.loads(run("--json").stdout)
    assert rows == [{"task": "row-scale", "path": "build/row-scale", "written": True, "oracle": True}]
    assert json.loads(run("--json").stdout)[0]["written"] is False


def test_check(repo):
    assert run("--check").exit_code == 2
    assert not (repo / "build").exists()
    run()
    fresh = run("--check")
    assert (fresh.exit_code, fresh.stdout) == (0, "build/row-scale  up to date\n")
    change(repo, "Scale the rows", "Rescale the rows")
    old = run("--check", "--json")
    assert old.exit_code == 2
    assert "changed" in json.loads(old.stdout)[0]["stale"]


def test_an_error_leaves_the_old_bundle_and_builds_the_others(repo):
    run()
    before = (repo / "build" / "row-scale" / "environment" / "app" / "README.md").read_bytes()
    other = (repo / "specs" / "row_scale.py").read_text("utf-8").replace('name="row-scale"', 'name="row-scale-two"')
    (repo / "specs" / "row_scale_two.py").write_text(other, "utf-8")
    change(repo, "tol=1.2e-2", "tol=1.5")
    done = run()
    assert done.exit_code == 2
    assert "specs/row_scale.py:" in done.stderr
    assert "tol" in done.stderr
    assert "1 of 2 specs" in done.stderr
    assert done.stdout == "build/row-scale-two  built\n"
    assert (repo / "build" / "row-scale" / "environment" / "app" / "README.md").read_bytes() == before


def test_undefined_name_in_prose(repo):
    change(repo, "{{ correct.N.min }}", "{{ correct.K.min }}")
    done = run()
    assert done.exit_code == 2
    assert "correct.K" in done.stderr
    assert not (repo / "build").exists()


def test_two_specs_of_one_name(repo):
    shutil.copy(repo / "specs" / "row_scale.py", repo / "specs" / "twin.py")
    done = run()
    assert done.exit_code == 2
    assert "row_scale.py" in done.stderr
    assert "twin.py" in done.stderr


def test_missing_solution_is_a_warning(repo):
    (repo / "solutions" / "row_scale.py").unlink()
    done = run()
    assert done.exit_code == 0
    assert "row-scale" in done.stderr
    assert not (repo / "build" / "row-scale" / "solution").exists()


def test_image(repo):
    pinned = "example/base@sha256:" + "1" * 64
    assert "pinned" not in run("--image", pinned).stderr
    assert f"FROM {pinned}" in (repo / "build" / "row-scale" / "tests" / "Dockerfile").read_text("utf-8")
    assert "not pinned" in run("--image", "example/base:latest").stderr


def test_unknown_task(repo):
    done = run("row-scala")
    assert done.exit_code == 2
    assert "row-scale" in done.stderr


def test_unwritable_out_is_the_environments_fault(repo):
    (repo / "taken").write_text("a file")
    assert run("--out", "taken/deeper").exit_code == 3


def test_an_unchanged_build_imports_nothing_heavy(repo):
    """1,000 unchanged specs are to take three seconds, which leaves no room for importing what is not needed."""
    run()
    code = (
        "import sys; from click.testing import CliRunner; from taskfactory.cli import main\n"
        "done = CliRunner().invoke(main, ['build']); assert 'up to date' in done.output, done.output\n"
        "print(sorted({'torch', 'pydantic', 'jinja2', 'rich'} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(taskfactory.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_shows_an_example():
    text = run("--help").stdout
    assert "Example: taskfactory build" in text
