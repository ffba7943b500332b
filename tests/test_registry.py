"""The dataset of a folder of bundles."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskfactory.cli import main
from taskfactory.errors import UsageError
from taskfactory.registry import content_digest, dataset_toml, entries, registry_json


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "build" / "one"
    (folder / "tests").mkdir(parents=True)
    (folder / "environment" / "app").mkdir(parents=True)
    text = '[task]\nname = "taskfactory/one"\nversion = "1.2.0"\ndescription = "Say \\"one\\""\n'
    (folder / "task.toml").write_text(text)
    (folder / "instruction.md").write_text("do it\n")
    (folder / "tests" / "test.sh").write_text("true\n")
    (folder / "environment" / "app" / "a.py").write_text("")
    return folder


def test_the_digest_runs_over_paths_and_hashes_in_order(bundle: Path) -> None:
    names = ["environment/app/a.py", "instruction.md", "task.toml", "tests/test.sh"]
    expected = hashlib.sha256()
    for name in names:
        expected.update(f"{name}\0{hashlib.sha256((bundle / name).read_bytes()).hexdigest()}\n".encode())
    assert content_digest(bundle) == f"sha256:{expected.hexdigest()}"


@pytest.mark.parametrize(
    "name", ["manifest.json", "tests/__pycache__/x.pyc", "tests/a.pyc", "tests/.DS_Store", "tests/b~"]
)
def test_what_does_not_belong_does_not_count(bundle: Path, name: str) -> None:
    before = content_digest(bundle)
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_text("x")
    assert content_digest(bundle) == before


@pytest.mark.parametrize("name", ["README.md", "solution/solve.sh", "tests/.hidden", "tests/deep/er.py"])
def test_what_belongs_counts(bundle: Path, name: str) -> None:
    before = content_digest(bundle)
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_text("x")
    assert content_digest(bundle) != before


def test_dataset_toml(bundle: Path) -> None:
    text = dataset_toml(entries(bundle.parent), name="taskfactory/k", version="1", description='a "b"')
    read = tomllib.loads(text)
    assert read["dataset"] | {"keywords": []} == {
        "name": "taskfactory/k", "version": "1", "description": 'a "b"', "keywords": [],
    }  # fmt: skip
    assert read["tasks"] == [{"name": "taskfactory/one", "digest": content_digest(bundle)}]


@pytest.mark.parametrize("git", [{}, {"git_url": "https://example.org/r.git", "git_commit": "0" * 40}])
def test_registry_json(bundle: Path, git: dict[str, str]) -> None:
    common = {"name": "taskfactory/k", "version": "1", "description": "d"}
    (row,) = json.loads(registry_json(entries(bundle.parent), **common, root=bundle.parent.parent, **git))
    (task,) = row.pop("tasks")
    assert row == common
    assert (task["name"], task["path"]) == ("taskfactory/one", "build/one")
    assert ("git_url" in task) == bool(git)


def test_command(bundle: Path) -> None:
    done = CliRunner().invoke(main, ["registry", str(bundle.parent)])
    assert done.exit_code == 0, done.output
    assert content_digest(bundle) in done.output
    assert tomllib.loads((bundle.parent / "dataset.toml").read_text())["tasks"]
    assert json.loads((bundle.parent / "registry.json").read_text())[0]["tasks"][0]["path"] == "one"


def test_errors(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no bundles"):
        entries(tmp_path / "absent")
    assert CliRunner().invoke(main, ["registry", str(bundle.parent), "--git-url", "x"]).exit_code == 2
    (bundle / "task.toml").write_text("[task")
    with pytest.raises(UsageError, match="cannot be read as a task"):
        entries(bundle.parent)
