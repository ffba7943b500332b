"""The Dockerfiles of every bundle, read as Docker would: what they copy is there, and what is used later is made.

There is no Docker where these tests run, so a Dockerfile is followed here step by step over a set of paths. What the
base image brings is taken on trust; it is named by digest.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

from taskfactory.bundle import BASE_IMAGE, build
from taskfactory.load import load_spec
from taskfactory.paths import specs_dir

SPECS = sorted(specs_dir().glob("*.py"))


@dataclass
class Image:
    """What a Dockerfile makes: paths, users, the folder one starts in."""

    base: str = ""
    paths: set[str] = field(default_factory=lambda: {"/", "/tmp", "/bin/bash", "/bin/sh"})
    owners: dict[str, str] = field(default_factory=dict)
    users: set[str] = field(default_factory=lambda: {"root"})
    workdir: str = "/"

    def add(self, path: str) -> None:
        """A path and the folders above it."""
        self.paths |= {path, *map(str, PurePosixPath(path).parents)}


def follow(context: Path, text: str) -> Image:
    """Follow a Dockerfile; an instruction or command that is not understood here is an error."""
    image = Image()
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        match words[:1]:
            case []:
                continue
            case ["FROM"]:
                assert not image.base, "one stage"
                (image.base,) = words[1:]
            case ["ENV"]:
                assert all(re.fullmatch(r"[A-Z_]+=\S+", word) for word in words[1:])
            case ["WORKDIR"]:
                image.workdir = words[1]
                image.add(words[1])
            case ["COPY"]:
                copy(image, context, *words[1:])
            case ["RUN"]:
                for command in shlex.join(words[1:]).replace("'&&'", "&&").split("&&"):
                    execute(image, shlex.split(command))
            case other:
                raise AssertionError(f"{other} in {line!r}")
    return image


def copy(image: Image, context: Path, source: str, target: str) -> None:
    """COPY, whose sources lie in the context and whose target is absolute; a folder's content is copied."""
    origin = (context / source).resolve()
    assert origin.is_relative_to(context.resolve()), source
    assert origin.exists(), f"COPY {source}: not in {context}"
    assert target.startswith("/"), target
    for path in sorted(origin.rglob("*")) if origin.is_dir() else [origin]:
        inner = path.relative_to(origin).as_posix() if origin.is_dir() else path.name if target.endswith("/") else ""
        image.add(str(PurePosixPath(target, inner)))


def execute(image: Image, command: list[str]) -> None:
    """One command under RUN."""
    match command:
        case ["mkdir", "-p", *folders]:
            for folder in folders:
                image.add(folder)
        case ["useradd", *options, name]:
            assert {"--create-home", "--shell", "/bin/bash"} >= set(options)
            image.users.add(name)
            image.add(f"/home/{name}")
        case ["chown", owner, *paths]:
            for path in paths:
                assert path in image.paths, f"chown of {path}, which is not there yet"
                assert set(owner.split(":")) <= image.users, owner
                image.owners[path] = owner.partition(":")[0]
        case _:
            raise AssertionError(f"RUN {command}")


@pytest.fixture(scope="module", params=SPECS, ids=lambda path: path.stem)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(load_spec(request.param), tmp_path_factory.mktemp("build"), image=BASE_IMAGE).path


def images(bundle: Path) -> tuple[Image, Image]:
    """The solver's and the verifier's."""
    found = [
        follow(bundle / part, (bundle / part / "Dockerfile").read_text("utf-8")) for part in ("environment", "tests")
    ]
    return found[0], found[1]


def test_the_base_is_named_by_digest_and_is_one(bundle: Path) -> None:
    solver, verifier = images(bundle)
    assert solver.base == verifier.base == BASE_IMAGE
    assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", BASE_IMAGE)


def test_the_solver_finds_what_it_is_told_of_and_may_write_its_file(bundle: Path) -> None:
    solver, _ = images(bundle)
    task = tomllib.loads((bundle / "task.toml").read_text("utf-8"))
    (artifact,) = task["artifacts"]
    user = task["agent"]["user"]
    assert user in solver.users - {"root"}
    assert task["environment"]["workdir"] == solver.workdir == "/app"
    assert solver.owners == {"/app": user, artifact: user}
    told = (bundle / "instruction.md").read_text("utf-8")
    for path in set(re.findall(r"/app/[\w.]+", told)) | {"/app/measure.py"}:
        assert path in solver.paths, path


def test_nothing_hidden_is_in_the_solvers_context(bundle: Path) -> None:
    solver, _ = images(bundle)
    assert all(path.startswith("/app/") for path in solver.paths - Image().paths - {"/app", "/home", "/home/solver"})
    hidden = {
        path.read_bytes() for part in ("tests", "solution") for path in (bundle / part).glob("*") if path.is_file()
    }
    shared = {(bundle / "tests" / name).read_bytes() for name in ("reference.py", "make_inputs.py")}
    seen = {path.read_bytes() for path in (bundle / "environment").rglob("*") if path.is_file()}
    assert seen & hidden <= shared


def test_the_verifiers_script_finds_every_path_it_uses(bundle: Path) -> None:
    _, verifier = images(bundle)
    task = tomllib.loads((bundle / "task.toml").read_text("utf-8"))
    assert task["verifier"]["environment"]["workdir"] == verifier.workdir == "/tests"
    script = bundle / "tests" / "test.sh"
    text = script.read_text("utf-8")
    assert text.startswith("#!/bin/sh\n")  # Harbor executes the file itself
    assert os.access(script, os.X_OK)
    subprocess.run(["sh", "-n", script], check=True)
    defaults = dict(re.findall(r"\$\{(TASKFACTORY_\w+):-(\S*?)\}", text))
    assert defaults["TASKFACTORY_OUT"] in verifier.paths
    assert defaults["TASKFACTORY_SUBMISSION"] == task["artifacts"][0]
    assert str(PurePosixPath(defaults["TASKFACTORY_SUBMISSION"]).parent) in verifier.paths
    assert defaults["TASKFACTORY_GRADE_OPTIONS"] == ""
    assert "python3 -m grader grade --task ." in text
    for name in ("test.sh", "grader/__main__.py", "task.json", "reference.py", "make_inputs.py"):
        assert f"/tests/{name}" in verifier.paths, name


def test_the_oracle_copies_what_the_bundle_holds(bundle: Path) -> None:
    script = bundle / "solution" / "solve.sh"
    assert os.access(script, os.X_OK)
    target = bundle / "submission.py"
    subprocess.run([script], check=True, env={"PATH": os.environ["PATH"], "TASKFACTORY_SUBMISSION": str(target)})
    (solution,) = (bundle / "solution").glob("*.py")
    assert target.read_bytes() == solution.read_bytes()
    target.unlink()


@pytest.mark.parametrize(
    "text",
    [
        "FROM x\nCOPY missing /app/", "FROM x\nCOPY ../tests /app/", "FROM x\nCOPY app app", "FROM x\nFROM y",
        "FROM x\nRUN chown solver /app", "FROM x\nRUN useradd a && chown b /tmp", "FROM x\nRUN pip install y", "USER x",
    ],
)  # fmt: skip
def test_what_would_fail_in_docker_fails_here(text: str, bundle: Path) -> None:
    with pytest.raises(AssertionError):
        follow(bundle / "environment", text)
