"""Finding specs by path, folder and name."""

from __future__ import annotations

import pytest

import specimens
from taskfactory import paths
from taskfactory.errors import UsageError


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specs").mkdir()
    specimens.write(tmp_path / "specs", specimens.text())
    (tmp_path / "specs" / "helper.py").write_text("x = 1\n")
    return tmp_path


def test_folders_of_the_checkout():
    assert (paths.templates_dir() / "new" / "spec.py.jinja").is_file()
    assert paths.specs_dir().parent == paths.root() == paths.solutions_dir().parent


def test_data_of_an_installed_wheel(tmp_path, monkeypatch):
    """Without a checkout around it, the package looks inside itself."""
    package = tmp_path / "lib" / "site-packages" / "taskfactory"
    package.mkdir(parents=True)
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert paths.specs_dir() == package / "_data" / "specs"


def test_a_name_is_found_in_specs(here):
    assert paths.resolve_spec("ragged-softmax") == paths.resolve_spec("ragged_softmax")
    assert paths.resolve_spec("ragged-softmax").is_file()
    assert paths.resolve_spec("specs/ragged_softmax.py").is_file()


def test_a_name_is_found_among_ours(here, monkeypatch):
    ours = here / "ours"
    ours.mkdir()
    (ours / "other_task.py").write_text("SPEC = TaskSpec()\n")
    monkeypatch.setattr(paths, "specs_dir", lambda: ours)
    assert paths.resolve_spec("other-task") == ours / "other_task.py"
    assert paths.task_names() == ["helper", "other-task", "ragged-softmax"]


def test_what_does_not_exist(here):
    with pytest.raises(UsageError, match="did you mean ragged-softmax"):
        paths.resolve_spec("raged-softmax")
    with pytest.raises(UsageError, match=r"specs/no\.py: no such file"):
        paths.resolve_spec("specs/no.py")
    with pytest.raises(UsageError, match="directory"):
        paths.resolve_spec("specs/../specs")


def test_spec_files(here):
    spec = paths.Path("specs/ragged_softmax.py")
    assert paths.spec_files([]) == [spec]
    assert paths.spec_files(["specs"]) == [spec]
    assert paths.spec_files(["ragged-softmax", "specs", "./specs/ragged_softmax.py"]) == [spec]
    assert paths.spec_files(["specs/helper.py"]) == [paths.Path("specs/helper.py")]
    (here / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no spec"):
        paths.spec_files(["empty"])


def test_without_a_specs_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no \./specs folder"):
        paths.spec_files([])
    ours = tmp_path / "ours"
    ours.mkdir()
    specimens.write(ours, specimens.text())
    monkeypatch.setattr(paths, "specs_dir", lambda: ours)
    assert paths.spec_files([], ours=True) == [ours / specimens.FILE]
