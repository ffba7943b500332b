"""A Harbor environment without containers: one bubblewrap sandbox a command, over one folder an environment.

    harbor run -p build -a oracle -e taskfactory.harbor_env:BwrapEnvironment --ek python=/path/to/python

The machine's own system stands in for the image: /usr and its like are mounted read-only, and the interpreter given as
`python` (which must have torch) is the `python3` inside. The task's Dockerfile is followed as far as our own need it
(COPY, ENV, WORKDIR, and mkdir, useradd and chown under RUN); anything else is refused rather than left out.

What it is for: trying bundles out where there is no Docker. What it does not do: users are names only, so a file's
owner protects nothing; limits of CPU, memory and disk are not enforced. Hidden files stay hidden all the same, since
they are in another environment's folder, which a command of this one cannot see.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ssl", "/etc/ld.so.cache")
_FOLDERS = ("app", "tests", "solution", "logs/agent", "logs/verifier", "logs/artifacts", "tmp", "home", "etc")
_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_KEPT = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CUDA_HOME")
_HARMLESS = ("chown", "chmod")
_FIRST_UID = 1000


@dataclass
class Image:
    """What a Dockerfile says, as far as it is followed."""

    copies: list[tuple[str, str]] = field(default_factory=list)
    """(source relative to the build context, absolute target)."""
    variables: dict[str, str] = field(default_factory=dict)
    users: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    workdir: str = "/"


def parse_dockerfile(text: str) -> Image:
    """Read the instructions that can be followed without building an image.

    Raises:
        ValueError: one that cannot; the message quotes it.
    """
    image = Image()
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        instruction, rest = words[0].upper(), words[1:]
        if instruction == "COPY" and len(rest) == 2 and rest[1].startswith("/"):
            image.copies.append((rest[0], rest[1]))
        elif instruction == "ENV" and all("=" in word for word in rest):
            image.variables.update((word.partition("=")[0], word.partition("=")[2]) for word in rest)
        elif instruction == "WORKDIR" and len(rest) == 1:
            image.workdir = rest[0]
        elif instruction == "RUN" and _run(rest, image):
            continue
        elif instruction != "FROM":
            raise ValueError(f"the bubblewrap environment cannot follow this line of a Dockerfile: {line.strip()}")
    return image


def _run(words: list[str], image: Image) -> bool:
    """Whether every command of a RUN line is one that can be imitated; its effects are noted in `image`."""
    for command in _split(words, "&&"):
        if command[:2] == ["mkdir", "-p"]:
            image.folders += command[2:]
        elif command[:1] == ["useradd"]:
            image.users.append(command[-1])
        elif command[:1] and command[0] not in _HARMLESS:
            return False
    return True


def _split(words: list[str], separator: str) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, separator]:
        if word == separator:
            yield command
            command = []
        else:
            command.append(word)


def interpreter_paths(python: str) -> tuple[str, list[str]]:
    """The folder of an interpreter's executable, and every folder it needs to read.

    Raises:
        FileNotFoundError: it cannot be run.
    """
    ask = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, *(p for p in sys.path if p)]))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise FileNotFoundError(f"{python} does not run: {done.stderr.strip()}")
    prefix, base, *path = json.loads(done.stdout)
    roots: list[str] = []
    for each in (prefix, base, *path):
        covered = any(Path(each).is_relative_to(root) for root in (*roots, *_SYSTEM))
        if not covered and os.path.isdir(each):
            roots.append(each)
    return str(Path(python).absolute().parent), roots


class BwrapEnvironment(BaseEnvironment):
    """See the module. Keyword arguments beside Harbor's: `python`, the interpreter inside (default: this one)."""

    def __init__(self, *args: Any, python: str | None = None, **kwargs: Any) -> None:
        self.python = python or sys.executable
        self.root: Path | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Harbor's name of this kind of environment."""
        return "bwrap"

    @classmethod
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        """Refuse before anything is queued where bubblewrap is missing."""
        super().preflight(kwargs)
        if shutil.which("bwrap") is None:
            raise SystemExit("bubblewrap (bwrap) is not installed")

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """No limit is enforced."""
        return EnvironmentResourceCapabilities()

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """GPUs where the machine has one; no network at all, or all of it."""
        return EnvironmentCapabilities(gpus=os.path.exists("/dev/nvidiactl"), disable_internet=True)

    def _validate_definition(self) -> None:
        dockerfile = self.environment_dir / "Dockerfile"
        if not dockerfile.is_file():
            raise FileNotFoundError(f"{dockerfile}: no such file; the bubblewrap environment follows a Dockerfile")
        self.image = parse_dockerfile(dockerfile.read_text("utf-8"))

    async def start(self, force_build: bool) -> None:
        """Make the environment's folder and copy into it what the Dockerfile copies."""
        self.binaries, self.readable = interpreter_paths(self.python)
        root = Path(tempfile.mkdtemp(prefix="taskfactory-bwrap-"))
        self.root = root
        for name in (*_FOLDERS, *(folder.strip("/") for folder in self.image.folders)):
            (root / name).mkdir(parents=True, exist_ok=True)
        accounts = [("root", 0), *((name, _FIRST_UID + k) for k, name in enumerate(self.image.users))]
        self.uids = dict(accounts)
        passwd = "".join(f"{name}:x:{uid}:{uid}::/home:/bin/bash\n" for name, uid in accounts)
        (root / "etc/passwd").write_text(passwd)
        (root / "etc/group").write_text("".join(f"{name}:x:{uid}:\n" for name, uid in accounts))
        for source, target in self.image.copies:
            origin = (self.environment_dir / source).resolve()
            if not origin.is_relative_to(self.environment_dir.resolve()):
                raise ValueError(f"COPY {source}: outside of the build context")
            if origin.is_dir():
                copy_tree(origin, self._outside(target))
            else:
                copy_file(origin, self._outside(target + origin.name if target.endswith("/") else target))

    async def stop(self, delete: bool) -> None:
        """Remove the folder, or say where it is."""
        if self.root is None:
            return
        if delete:
            shutil.rmtree(self.root, ignore_errors=True)
        else:
            self.logger.info(f"the environment's files are left in {self.root}")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy one file in."""
        copy_file(Path(source_path), self._outside(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder's content in."""
        copy_tree(Path(source_dir), self._outside(target_dir))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy one regular file out.

        Raises:
            FileNotFoundError: it is not there, or something else than a regular file.
        """
        copy_file(self._outside(source_path), Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder's regular files out; links and special files stay behind."""
        copy_tree(self._outside(source_dir), Path(target_dir))

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a shell command in a sandbox of its own; whatever it started is gone when this returns."""
        words = self._words(self._uid(self._resolve_user(user)), cwd)
        variables = {
            "PATH": f"{self.binaries}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/home", "LANG": "C.UTF-8",
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            **self.image.variables, **self.task_env_config.env, **(self._merge_env(env) or {}),
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *words, "bash", "-c", command, env=variables,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        except TimeoutError:
            return ExecResult(stdout="", stderr=f"not finished within {timeout_sec} s", return_code=124)
        finally:
            if process.returncode is None:  # a time-out, or a trial that is being cancelled
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return ExecResult(
            stdout=out.decode(errors="replace"), stderr=err.decode(errors="replace"), return_code=process.returncode
        )

    def _words(self, uid: int, cwd: str | None) -> list[str]:
        assert self.root is not None, "the environment has not been started"
        words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        words += ["--uid", str(uid), "--gid", str(uid), "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"]
        for path in _SYSTEM:
            words += ["--ro-bind-try", path, path]
        if self._network_policy.network_mode == NetworkMode.PUBLIC:
            words += ["--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        for entry in sorted(self.root.iterdir()):
            if entry.name == "etc":
                for name in ("passwd", "group"):
                    words += ["--ro-bind", str(entry / name), f"/etc/{name}"]
            else:
                words += ["--bind", str(entry), f"/{entry.name}"]
        for path in self.readable:
            words += ["--ro-bind", path, path]
        if self._effective_gpus:
            for path in (*_DEVICES, *map(str, Path("/dev").glob("nvidia[0-9]*"))):
                words += ["--dev-bind-try", path, path]
        return [*words, "--chdir", cwd or self.task_env_config.workdir or self.image.workdir, "--"]

    def _uid(self, user: str | int | None) -> int:
        if user is None:
            return 0
        if isinstance(user, int) or user.isdigit():
            return int(user)
        if user not in self.uids:
            raise ValueError(f"the environment has no user {user!r}; known: {', '.join(self.uids)}")
        return self.uids[user]

    def _outside(self, path: str) -> Path:
        """The file behind a path of the environment.

        Raises:
            PermissionError: a link in it leads out of the environment's folder.
        """
        assert self.root is not None, "the environment has not been started"
        inside = PurePosixPath(os.path.normpath("/" + path.lstrip("/")))
        found = self.root / inside.relative_to("/")
        if not found.parent.resolve().is_relative_to(self.root.resolve()):
            raise PermissionError(f"{path}: leads out of the environment")
        return found


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file with its permissions; a link is never followed, since an agent may have made it.

    Raises:
        FileNotFoundError: the source is missing or not a regular file.
    """
    if not os.path.lexists(source) or not stat.S_ISREG(source.lstat().st_mode):
        raise FileNotFoundError(f"{source}: not a regular file")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def copy_tree(source: Path, target: Path) -> None:
    """Copy the regular files and folders below `source` into `target`; links and special files are left out.

    Raises:
        FileNotFoundError: the source is not a folder.
    """
    if source.is_symlink() or not source.is_dir():
        raise FileNotFoundError(f"{source}: not a folder")
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            copy_tree(Path(entry.path), target / entry.name)
        elif entry.is_file(follow_symlinks=False):
            copy_file(Path(entry.path), target / entry.name)
