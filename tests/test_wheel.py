"""A wheel carries specs, templates and solutions, and builds bundles outside the checkout.

The fresh environment holds the wheel alone. What it depends on is lent by this environment through one `.pth` line,
so the test needs no network; an editable install here is not seen through it, since Python does not follow the `.pth`
files of a folder added that way.
"""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.full


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """A command's stdout; what it printed goes into the failure if it fails."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))} | variables
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh virtual environment with the wheel."""
    home = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def test_everything_a_build_needs_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("specs", "templates", "solutions"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert files
        assert {f"taskfactory/_data/{path.relative_to(ROOT).as_posix()}" for path in files} <= names
    assert "taskfactory/py.typed" in names


def test_the_fresh_environment_imports_the_wheel(python: Path, tmp_path: Path) -> None:
    origin = run(python, "-c", "import taskfactory; print(taskfactory.__file__)", cwd=tmp_path).strip()
    assert Path(origin).is_relative_to(python.parents[1])


def test_bundles_are_built_outside_the_checkout(python: Path, tmp_path: Path) -> None:
    """By task name, from the wheel's own specs; the same bytes as from the checkout."""
    tasks = [row["task"] for row in json.loads(run(python, "-m", "taskfactory", "list", "--json", cwd=tmp_path))]
    assert len(tasks) >= 5
    run(python, "-m", "taskfactory", "build", *tasks, cwd=tmp_path)
    here, tools = tmp_path / "from_checkout", str(ROOT / "tools")
    run(sys.executable, "-m", "taskfactory", "build", ROOT / "specs", "--out", here, cwd=ROOT, PYTHONPATH=tools)
    for task in tasks:
        theirs, ours = (folder / task for folder in (tmp_path / "build", here))
        assert (theirs / "solution").is_dir()
        files = {path.relative_to(ours) for path in ours.rglob("*") if path.is_file()}
        assert files == {path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file()}
        for name in files - {Path("manifest.json")}:
            assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def test_a_new_spec_validates_and_builds_there(python: Path, tmp_path: Path) -> None:
    run(python, "-m", "taskfactory", "new", "row-scale", cwd=tmp_path)
    run(python, "-m", "taskfactory", "validate", "--strict", cwd=tmp_path)
    run(python, "-m", "taskfactory", "build", "row-scale", cwd=tmp_path)
    assert (tmp_path / "build" / "row-scale" / "environment" / "app" / "README.md").is_file()
