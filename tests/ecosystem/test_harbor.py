"""Real Harbor: its own readers take what we write, and the bubblewrap environment keeps its promises.

Run by `make test-ecosystem` in a Python of 3.12 or later with harbor; collected nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import ExecResult
from harbor.models.dataset.manifest import DatasetManifest
from harbor.models.registry import Registry
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths
from harbor.publisher.packager import Packager

from taskfactory.harbor_env import BwrapEnvironment, parse_dockerfile
from taskfactory.registry import content_digest, dataset_toml, entries, registry_json

BUNDLES = Path(os.environ["TASKFACTORY_BUNDLES"])
DOCKERFILE = "FROM x\nENV A=1\nRUN useradd --create-home solver && mkdir -p /made\nCOPY app/ /app/\nWORKDIR /app\n"


def test_harbor_reads_every_bundle_and_agrees_on_the_digest() -> None:
    bundles = entries(BUNDLES)
    assert len(bundles) == 5
    for entry in bundles:
        assert Task(entry.path).name == entry.name
        assert "sha256:" + Packager.compute_content_hash(entry.path)[0] == entry.digest


def test_harbor_reads_the_dataset_and_the_registry(tmp_path: Path) -> None:
    bundles = entries(BUNDLES)
    common = {"name": "taskfactory/kernels", "version": "1", "description": "d"}
    manifest = DatasetManifest.from_toml(dataset_toml(bundles, **common))
    assert {task.digest for task in manifest.tasks} == {content_digest(entry.path) for entry in bundles}
    (tmp_path / "registry.json").write_text(registry_json(bundles, **common, root=BUNDLES))
    (dataset,) = Registry.from_path(tmp_path / "registry.json").datasets
    assert [task.name for task in dataset.tasks] == [entry.name for entry in bundles]


def run(folder: Path, *commands: str, hostile: Any = None, **options: Any) -> list[ExecResult]:
    (folder / "context" / "app").mkdir(parents=True)
    (folder / "context" / "app" / "a.txt").write_text("a\n")
    (folder / "context" / "Dockerfile").write_text(DOCKERFILE)

    async def all_of_them() -> list[ExecResult]:
        environment = BwrapEnvironment(
            environment_dir=folder / "context", environment_name="e", session_id="s",
            trial_paths=TrialPaths(trial_dir=folder / "trial"), task_env_config=EnvironmentConfig(),
            logger=logging.getLogger(), network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK),
        )  # fmt: skip
        await environment.start(force_build=False)
        try:
            results = [await environment.exec(command, **options) for command in commands]
            if hostile is not None:
                await hostile(environment)
            return results
        finally:
            root = environment.root
            await environment.stop(delete=True)
            assert root is not None
            assert not root.exists()

    return asyncio.run(all_of_them())


def test_the_dockerfile_is_followed(tmp_path: Path) -> None:
    (done,) = run(tmp_path, "pwd; cat a.txt; echo $A; ls -d /made; whoami; python3 -c 'print(6*7)'", user="solver")
    assert (done.stdout or "").split() == ["/app", "a", "1", "/made", "solver", "42"], done


def test_files_stay_from_command_to_command_and_processes_do_not(tmp_path: Path) -> None:
    look = "cat /proc/[0-9]*/comm | grep -c sleep"
    first, second = run(tmp_path, f"echo b > b.txt; sleep 600 & {look}", f"cat b.txt; {look}")
    assert (first.stdout or "").split() == ["1"]
    assert (second.stdout or "").split() == ["b", "0"]


def test_there_is_no_network_and_no_sight_of_the_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        socket.create_connection(address, 5).close()
        code = f"import socket; socket.create_connection({address}, 5)"
        done = run(tmp_path, f'python3 -c "{code}"', f"cat {secret}", "cat /etc/shadow", "touch /usr/x", "ls /tests")
    assert [bool(each.return_code) for each in done] == [True, True, True, True, False]
    assert done[-1].stdout == ""


def test_a_time_out_ends_everything(tmp_path: Path) -> None:
    (done,) = run(tmp_path, "sleep 600 & sleep 600", timeout_sec=1)
    assert done.return_code == 124


def test_links_lead_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")

    async def hostile(environment: BwrapEnvironment) -> None:
        with pytest.raises(FileNotFoundError):
            await environment.download_file("/app/link", tmp_path / "out" / "link")
        with pytest.raises(FileNotFoundError):
            await environment.download_file("/app/pipe", tmp_path / "out" / "pipe")
        with pytest.raises(PermissionError):
            await environment.download_file("/app/up/secret.txt", tmp_path / "out" / "up")
        with pytest.raises(FileNotFoundError):
            await environment.download_dir("/app/up", tmp_path / "out")
        await environment.download_dir("/app", tmp_path / "out")
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.txt"]

    command = f"ln -s {secret} link; ln -s {tmp_path} up; mkfifo pipe"
    (done,) = run(tmp_path, command, hostile=hostile)
    assert done.return_code == 0, done


def test_an_unknown_user_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no user"):
        run(tmp_path, "true", user="somebody")


@pytest.mark.parametrize("line", ["RUN pip install x", "ADD a /b", "COPY a b c", "COPY a relative", "ENTRYPOINT x"])
def test_what_cannot_be_followed_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        parse_dockerfile(f"FROM x\n{line}\n")


def test_our_dockerfiles_can_be_followed() -> None:
    for path in BUNDLES.glob("*/*/Dockerfile"):
        assert parse_dockerfile(path.read_text()).copies
