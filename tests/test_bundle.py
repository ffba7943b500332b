"""Bundles on disk: all or nothing, recognised when unchanged, and telling when they are stale."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taskfactory import bundle
from taskfactory.bundle import (
    BASE_IMAGE,
    build,
    clean_strays,
    damage,
    find_solution,
    read_manifest,
    stale,
    unchanged,
    write_bundle,
)
from taskfactory.errors import InfrastructureError, SpecError
from taskfactory.load import load_spec
from test_prose import FIXTURE

TASK, MODULE = "row-scale", "row_scale.py"


@pytest.fixture
def spec(tmp_path) -> Path:
    """The fixture in a repository of its own, with an oracle beside it."""
    path = tmp_path / "repo" / "specs" / "row_scale.py"
    path.parent.mkdir(parents=True)
    shutil.copy(FIXTURE, path)
    oracle = tmp_path / "repo" / "solutions" / MODULE
    oracle.parent.mkdir()
    oracle.write_text("def row_scale(x, weight, eps=1e-6):\n    return x\n", "utf-8")
    return path


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def built(spec: Path, out: Path) -> Path:
    return build(load_spec(spec), out, image=BASE_IMAGE).path


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def why_stale(spec: Path, out: Path, image: str = BASE_IMAGE) -> str | None:
    return stale(spec, TASK, MODULE, out, image=image)


def test_manifest_holds_every_file(spec, out):
    folder = built(spec, out)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    files = contents(folder)
    del files["manifest.json"]
    assert manifest["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in sorted(files.items())
    }
    assert manifest["spec_digest"] == load_spec(spec).digest
    assert damage(folder, manifest) is None
    assert "solution/row_scale.py" in files


def test_scripts_are_executable_and_nothing_else(spec, out):
    folder = built(spec, out)
    scripts = {p.name for p in folder.rglob("*") if p.is_file() and os.access(p, os.X_OK) and p.stat().st_mode & 0o111}
    assert scripts == {"test.sh", "solve.sh"}


def test_two_builds_are_equal_and_leave_nothing_else(spec, out, tmp_path):
    first = contents(built(spec, out))
    assert contents(built(spec, tmp_path / "other")) == first
    assert contents(built(spec, out)) == first
    assert [p.name for p in out.iterdir()] == [TASK]


def test_a_new_build_replaces_everything(spec, out):
    folder = built(spec, out)
    (folder / "left over.txt").write_text("x")
    (folder / "environment" / "app" / "README.md").unlink()
    built(spec, out)
    assert damage(folder, read_manifest(folder)) is None


def failing_write(monkeypatch, at: int, error: BaseException) -> None:
    """Let the write of the `at`-th file fail after half of it."""
    real, count = bundle._write, 0

    def write(path, data, **options):
        nonlocal count
        count += 1
        if count == at:
            real(path, data[: len(data) // 2], **options)
            raise error
        real(path, data, **options)

    monkeypatch.setattr(bundle, "_write", write)


@pytest.mark.parametrize("at", [1, 7, 20])
def test_a_full_disk_leaves_the_old_bundle(spec, out, monkeypatch, at):
    before = contents(built(spec, out))
    spec.write_text(spec.read_text("utf-8").replace("Scale the rows", "Rescale the rows"), "utf-8")
    failing_write(monkeypatch, at, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(InfrastructureError, match="No space left"):
        built(spec, out)
    assert contents(out / TASK) == before
    assert [p.name for p in out.iterdir()] == [TASK]


def test_a_full_disk_without_an_old_bundle_leaves_nothing(spec, out, monkeypatch):
    failing_write(monkeypatch, 5, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(InfrastructureError):
        built(spec, out)
    assert list(out.iterdir()) == []


def test_an_interrupt_leaves_the_old_bundle(spec, out, monkeypatch):
    before = contents(built(spec, out))
    failing_write(monkeypatch, 5, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        built(spec, out)
    assert contents(out / TASK) == before
    assert [p.name for p in out.iterdir()] == [TASK]


def test_a_failed_render_leaves_the_old_bundle(spec, out):
    before = contents(built(spec, out))
    spec.write_text(spec.read_text("utf-8").replace("{{ tol }}", "{{ tolerance }}"), "utf-8")
    with pytest.raises(SpecError):
        built(spec, out)
    assert contents(out / TASK) == before


def test_a_failed_swap_puts_the_old_bundle_back(spec, out, monkeypatch):
    before = contents(built(spec, out))
    real = Path.rename

    def rename(self, target):
        if ".new-" in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(InfrastructureError):
        built(spec, out)
    assert contents(out / TASK) == before
    assert [p.name for p in out.iterdir()] == [TASK]


KILLED = """
import os, sys
from pathlib import Path
from taskfactory import bundle
from taskfactory.load import load_spec
real, count = bundle._write, 0
def write(path, data, **options):
    global count
    count += 1
    if count == 9:
        os._exit(9)
    real(path, data, **options)
rename = Path.rename
def swap(self, target):
    if sys.argv[3] == "swap" and ".new-" in self.name:
        os._exit(9)
    return rename(self, target)
if sys.argv[3] == "write":
    bundle._write = write
Path.rename = swap
bundle.build(load_spec(sys.argv[1]), Path(sys.argv[2]), image=bundle.BASE_IMAGE)
"""


@pytest.mark.parametrize("moment", ["write", "swap"])
def test_a_killed_build_leaves_no_half_bundle(spec, out, moment):
    before = contents(built(spec, out))
    env = {**os.environ, "PYTHONPATH": str(Path(bundle.__file__).resolve().parents[1])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(spec), str(out), moment], env=env, check=False)
    assert done.returncode == 9
    strays = [p for p in out.iterdir() if p.name != TASK]
    assert strays
    assert all(p.name.startswith(".") for p in strays)
    if moment == "write":  # what is there is the old bundle, whole
        assert contents(out / TASK) == before
    clean_strays(out, TASK)
    assert [p.name for p in out.iterdir()] == [TASK]
    assert contents(out / TASK) == before


def test_builds_at_the_same_time_leave_one_whole_bundle(spec, out):
    env = {**os.environ, "PYTHONPATH": str(Path(bundle.__file__).resolve().parents[1])}
    code = (
        "import sys; from pathlib import Path; from taskfactory import bundle; from taskfactory.load import load_spec\n"
        "for _ in range(10): bundle.build(load_spec(sys.argv[1]), Path(sys.argv[2]), image=bundle.BASE_IMAGE)"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(spec), str(out)], env=env) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert [p.name for p in out.iterdir()] == [TASK]
    assert why_stale(spec, out) is None


def test_the_folder_of_a_living_build_is_left_alone(out):
    out.mkdir()
    parent = out / f".{TASK}.new-{os.getppid()}-abc"
    parent.mkdir()
    other = out / ".row-scale-two.new-1-abc"  # another task's
    other.mkdir()
    clean_strays(out, TASK)
    assert parent.exists()
    assert other.exists()


def test_unchanged_is_found_without_loading(spec, out, monkeypatch):
    built(spec, out)
    import taskfactory.load

    monkeypatch.setattr(taskfactory.load, "load_spec", None)
    found = unchanged(spec, out, image=BASE_IMAGE)
    assert found == bundle.Built(TASK, out / TASK, written=False, oracle=True)


def test_unchanged_finds_a_task_named_unlike_its_file(spec, out):
    renamed = spec.with_name("another_file.py")
    spec.rename(renamed)
    built(renamed, out)
    assert unchanged(renamed, out, image=BASE_IMAGE) is not None


def test_unchanged_is_not_fooled(spec, out):
    assert unchanged(spec, out, image=BASE_IMAGE) is None
    folder = built(spec, out)
    assert unchanged(spec, out, image="other@sha256:1") is None
    readme = folder / "environment" / "app" / "README.md"
    whole = readme.read_bytes()
    readme.write_bytes(whole[:-1])
    assert unchanged(spec, out, image=BASE_IMAGE) is None
    readme.write_bytes(whole)
    assert unchanged(spec, out, image=BASE_IMAGE) is not None
    for broken in ("{", "[]", '{"schema": 1, "files": 3}', '{"schema": 99, "files": {}}'):
        (folder / "manifest.json").write_text(broken)
        assert unchanged(spec, out, image=BASE_IMAGE) is None
    spec.write_text(spec.read_text("utf-8") + "# a comment\n", "utf-8")
    built(spec, out)
    spec.write_text(spec.read_text("utf-8") + "# another\n", "utf-8")
    assert unchanged(spec, out, image=BASE_IMAGE) is None


def test_stale_gives_the_reason(spec, out, monkeypatch):
    assert why_stale(spec, out) == "it has not been built"
    folder = built(spec, out)
    assert why_stale(spec, out) is None
    assert "image" in why_stale(spec, out, image="other")

    readme = folder / "environment" / "app" / "README.md"
    text = readme.read_text("utf-8")
    readme.write_text(text.replace("solver", "s0lver").replace("You", "Yuo"), "utf-8")
    assert why_stale(spec, out) == "environment/app/README.md was altered"
    readme.write_text(text, "utf-8")
    (folder / "tests" / "extra.txt").write_text("x")
    assert why_stale(spec, out) == "tests/extra.txt does not belong to it"
    (folder / "tests" / "extra.txt").unlink()
    (folder / "tests" / "__pycache__").mkdir()
    (folder / "tests" / "__pycache__" / "x.pyc").write_text("x")
    assert why_stale(spec, out) is None
    (folder / "task.toml").unlink()
    assert why_stale(spec, out) == "task.toml is missing"
    (folder / "manifest.json").unlink()
    assert why_stale(spec, out) == "its manifest is missing or unreadable"

    built(spec, out)
    (spec.parent.parent / "solutions" / MODULE).write_text("changed")
    assert "oracle" in why_stale(spec, out)
    built(spec, out)
    monkeypatch.setattr(bundle, "__version__", "99.0")
    bundle._tool_digest.cache_clear()
    assert "99.0" in why_stale(spec, out)
    bundle._tool_digest.cache_clear()


def test_solution_is_optional(spec, out):
    oracle = spec.parent.parent / "solutions" / MODULE
    assert find_solution(spec, TASK, MODULE) == oracle.resolve()
    oracle.unlink()
    assert find_solution(spec, TASK, MODULE) is None
    done = build(load_spec(spec), out, image=BASE_IMAGE)
    assert not done.oracle
    assert not (done.path / "solution").exists()


def test_our_solution_serves_our_task_only(spec, tmp_path, monkeypatch):
    (spec.parent.parent / "solutions" / MODULE).unlink()
    ours = tmp_path / "ours"
    (ours / "solutions").mkdir(parents=True)
    (ours / "specs").mkdir()
    (ours / "solutions" / MODULE).write_text("ours")
    monkeypatch.setattr(bundle, "solutions_dir", lambda: ours / "solutions")
    monkeypatch.setattr(bundle, "specs_dir", lambda: ours / "specs")
    assert find_solution(spec, TASK, MODULE) is None  # the module's name alone does not make it the same task
    (ours / "specs" / "row_scale.py").touch()
    assert find_solution(spec, TASK, MODULE) == ours / "solutions" / MODULE


def test_a_file_in_the_way_is_replaced(out):
    out.mkdir()
    (out / TASK).write_text("a file")
    write_bundle({"a/b.txt": "x"}, out, task=TASK, module=MODULE, spec_digest="d", key="k")
    assert (out / TASK / "a" / "b.txt").read_text() == "x"
    assert [p.name for p in out.iterdir()] == [TASK]


def test_out_that_is_a_file_is_the_environments_fault(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InfrastructureError, match="cannot write"):
        write_bundle({"a": "x"}, tmp_path / "out", task=TASK, module=MODULE, spec_digest="d", key="k")
