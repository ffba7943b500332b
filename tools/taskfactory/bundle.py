"""Write a bundle to disk: all of it or nothing, and nothing at all if it is there already.

A bundle is built in a hidden sibling folder and swapped in by renaming, so a failed or killed build leaves the old one.
Its manifest holds a hash of every file and a build key: the hash of everything the bundle was made from. An unchanged
spec is recognised by that key without being loaded.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskfactory import __version__
from taskfactory.errors import InfrastructureError
from taskfactory.paths import solutions_dir, spec_filename, specs_dir, templates_dir

if TYPE_CHECKING:
    from taskfactory.load import SpecFile

BASE_IMAGE = (
    "pytorch/pytorch:2.11.0-cuda13.0-cudnn9-devel"
    "@sha256:6e8a7a6dedf900096f90190f66f988e7e658cda4f1e6cbc7c17e3a38980a4f89"
)
"""The image that both machines of a bundle start from: CUDA with nvcc, torch, triton and numpy.

The versions are those of the gradings in bench/results/h200. Triton is 3.6, which our solution of based-forward needs:
Gluon in 3.5 lacks what it imports. CUDA 13 needs a driver of at least 580.
"""
MANIFEST = "manifest.json"
MANIFEST_SCHEMA = 1
_MAKERS = (
    "spec", "load", "formulas", "describe", "prose", "render", "bundle", "calibrate/certificate", "calibrate/verdict",
)  # fmt: skip
"""Modules whose change may change a bundle."""
_STRAY_SECONDS = 3600
"""Age from which another process's unfinished folder is taken to be abandoned where processes cannot be looked up."""


@dataclass(frozen=True)
class Built:
    """What became of one spec: its bundle's folder, and whether it had to be written."""

    task: str
    path: Path
    written: bool
    oracle: bool
    """Whether the bundle holds a solution."""


def build_key(spec_path: Path, *, image: str, solution: Path | None) -> str:
    """The hash of everything a bundle is made from: spec file, certificates, oracle, image, templates, this package."""
    digest = hashlib.sha256(_tool_digest())
    digest.update(image.encode() + b"\0")
    folder = spec_path.resolve().parent / "certificates"
    certificates = (path for task in _guesses(spec_path) for path in sorted(folder.glob(f"{task}.*.json")))
    for path in (spec_path, solution, *certificates):
        content = path.read_bytes() if path else b""
        digest.update(str(len(content) if path else -1).encode() + b"\0" + content)
    return "sha256:" + digest.hexdigest()


def find_solution(spec_path: Path, task: str, module: str) -> Path | None:
    """The oracle of a task: `solutions/<module>` beside the folder of its spec, or ours if the task is one of ours."""
    beside = spec_path.resolve().parent.parent / "solutions" / module
    if beside.is_file():
        return beside
    ours = solutions_dir() / module
    return ours if ours.is_file() and (specs_dir() / spec_filename(task)).is_file() else None


def unchanged(spec_path: Path, out: Path, *, image: str) -> Built | None:
    """The bundle under `out` that was made from exactly this spec file, found without loading the spec; else None.

    The build key proves the match, so guessing the task's name from the file is safe. File sizes are compared with
    the manifest; contents are only verified by `stale`.
    """
    for task in _guesses(spec_path):
        folder = out / task
        manifest = read_manifest(folder)
        if manifest is None or manifest.get("task") != task:
            continue
        solution = find_solution(spec_path, task, str(manifest.get("module")))
        if manifest.get("build_key") != build_key(spec_path, image=image, solution=solution):
            continue
        if all(_size(folder / name) == entry["bytes"] for name, entry in manifest["files"].items()):
            return Built(task, folder, written=False, oracle=solution is not None)
    return None


def stale(spec_path: Path, task: str, module: str, out: Path, *, image: str) -> str | None:
    """Why the bundle of a task under `out` is not what a build would leave there, or None if it is.

    Every file is hashed, so edits are found as well.
    """
    folder = out / task
    manifest = read_manifest(folder)
    if manifest is None:
        return "it has not been built" if not folder.exists() else "its manifest is missing or unreadable"
    solution = find_solution(spec_path, task, module)
    if manifest.get("build_key") != build_key(spec_path, image=image, solution=solution):
        if manifest.get("taskfactory_version") != __version__:
            return f"it was built by taskfactory {manifest.get('taskfactory_version')}, this is {__version__}"
        return "the spec, the oracle, the image, the templates or the grader changed"
    return damage(folder, manifest)


def damage(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    """How the files of a bundle differ from its manifest: the first that is missing, altered or extra; else None."""
    expected = manifest["files"]
    present = {
        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    for name in sorted(expected):
        if name not in present:
            return f"{name} is missing"
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected[name]["sha256"]:
            return f"{name} was altered"
    extra = sorted(present - set(expected) - {MANIFEST})
    return f"{extra[0]} does not belong to it" if extra else None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """A bundle's manifest, or None if there is none that can be understood."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        entries = manifest["files"].values()
        sound = manifest["schema"] == MANIFEST_SCHEMA and all("sha256" in e and "bytes" in e for e in entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if sound else None


def build(file: SpecFile, out: Path, *, image: str) -> Built:
    """Render the bundle of a checked spec and write it as `out/<task>`.

    Raises:
        SpecError: it cannot be rendered.
        InfrastructureError: it cannot be written. In both cases an older bundle is left as it was.
    """
    from taskfactory.render import render

    task, module = file.spec.name, file.spec.module
    solution = find_solution(file.path, task, module)
    key = build_key(file.path, image=image, solution=solution)
    oracle = solution.read_bytes().decode("utf-8") if solution else None
    files = render(file, image=image, solution=oracle)
    folder = write_bundle(files, out, task=task, module=module, spec_digest=file.digest, key=key)
    return Built(task, folder, written=True, oracle=solution is not None)


def write_bundle(files: Mapping[str, str], out: Path, *, task: str, module: str, spec_digest: str, key: str) -> Path:
    """Write `files` and their manifest as the bundle `out/<task>`, replacing an older one in a single step.

    Raises:
        InfrastructureError: the disk would not take it; an older bundle is still there, untouched.
    """
    content = {name: text.encode("utf-8") for name, text in files.items()}
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "task": task,
        "module": module,
        "spec_digest": spec_digest,
        "taskfactory_version": __version__,
        "build_key": key,
        "files": {n: {"bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for n, b in sorted(content.items())},
    }
    content[MANIFEST] = (json.dumps(manifest, indent=1) + "\n").encode("utf-8")
    staging: Path | None = None
    try:
        out.mkdir(parents=True, exist_ok=True)
        clean_strays(out, task)
        staging = Path(tempfile.mkdtemp(prefix=f".{task}.new-{os.getpid()}-", dir=out))
        staging.chmod(0o755)
        made: set[Path] = {staging}
        for name, data in content.items():
            path = staging / name
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            _write(path, data, mode=0o755 if name.endswith(".sh") else 0o644, durable=name == MANIFEST)
        _swap(staging, out / task)
    except OSError as error:
        raise InfrastructureError(f"cannot write {out / task}: {error.strerror or error}") from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
    return out / task


def clean_strays(out: Path, task: str) -> None:
    """Remove what killed builds of `task` left under `out`, and put back an old bundle that they only moved aside."""
    for path in out.glob(f".{task}.*-*-*"):
        match = re.fullmatch(rf"\.{re.escape(task)}\.(new|old)-(\d+)-.*", path.name)
        if match is None or _alive(int(match[2]), path):
            continue
        if match[1] == "old" and not (out / task).exists() and read_manifest(path) is not None:
            path.rename(out / task)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _swap(new: Path, target: Path) -> None:
    """Rename `new` to `target`, moving what is there aside first and back again should the rename fail."""
    old = target.with_name(new.name.replace(".new-", ".old-", 1))
    while True:
        try:
            target.rename(old)
            moved = True
        except FileNotFoundError:
            moved = False
        try:
            new.rename(target)
            break
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another build was quicker; ours replaces it
                _remove(old)
                continue
            if moved:
                old.rename(target)
            raise
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, data: bytes, *, mode: int, durable: bool) -> None:
    with open(path, "wb") as stream:
        stream.write(data)
        if durable:  # once per bundle; the sizes in it betray any other file that a crash has cut short
            stream.flush()
            os.fsync(stream.fileno())
    path.chmod(mode)


def _alive(pid: int, path: Path) -> bool:
    """Whether the process that owns a temporary folder may still be at work."""
    if pid == os.getpid():
        return False  # one process builds one task at a time
    if os.name == "nt":  # signal 0 would end the process there
        return time.time() - path.stat().st_mtime < _STRAY_SECONDS
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _guesses(spec_path: Path) -> Iterator[str]:
    """Likely task names of a spec file: from its own name, then from the first thing in it that looks like `name=`."""
    first = spec_path.stem.replace("_", "-")
    yield first
    try:
        found = re.search(rb"""\bname\s*=\s*["']([a-z0-9][a-z0-9-]*)["']""", spec_path.read_bytes())
    except OSError:
        return
    if found and found[1].decode() != first:
        yield found[1].decode()


@lru_cache(maxsize=1)
def _tool_digest() -> bytes:
    """The hash of the templates, the vendored grader and the modules that make bundles, read once a process."""
    package = Path(__file__).resolve().parent
    digest = hashlib.sha256(__version__.encode())
    makers = [package / f"{name}.py" for name in _MAKERS]
    for folder, paths in (
        (templates_dir(), templates_dir().rglob("*.jinja")),
        (package, [*makers, *(package / "grader").rglob("*.py")]),
    ):
        for path in sorted(paths):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.digest()
