"""The Ray executor against a cluster of this machine, with the stand-ins for the grader. Long: `full`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.test_driver import TESTS, plan
from taskfactory.errors import InfrastructureError
from taskfactory.fleet.driver import drive
from taskfactory.fleet.on_ray import RayExecutor
from taskfactory.fleet.plan import spool_folder
from taskfactory.fleet.spool import Spool
from taskfactory.grader.processes import descendants
from taskfactory.store.store import open_store

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]
PATH = os.pathsep.join([TESTS, str(Path(TESTS).parent / "tools")])


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """`ray start --head` on this machine, with two CPUs to grade on; ended by process id, not by name."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="ray-")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    start = [
        sys.executable, "-u", "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}",
        "--num-cpus=2", "--num-gpus=0", f"--temp-dir={folder}", "--node-ip-address=127.0.0.1",
        "--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=100000000",
    ]  # fmt: skip
    log = Path(folder, "head.log")
    with log.open("wb") as output:
        head = subprocess.Popen(
            start, env={**os.environ, "PYTHONPATH": PATH}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        pause = threading.Event()
        for _ in range(600):
            if "runtime started" in log.read_text() or head.poll() is not None:
                break
            pause.wait(0.1)
        assert head.poll() is None, log.read_text()
        yield f"127.0.0.1:{port}"
    finally:
        everyone = [head.pid, *descendants(head.pid)]
        head.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(20)
        for pid in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.wait()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_cluster_grades_everything_once_through_losses(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FOLDER", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", PATH)
    store = open_store(str(tmp_path / "r.db"), create=True)
    run = plan(store, tmp_path, *["pass"] * 6, "kill-worker-once a", "infra-once b", "infra")
    spool = Spool(spool_folder(store, run), store)
    executor = RayExecutor(
        spool, cluster, cuda=False, grade="fleet.stand_in:obedient", forward=("PYTHONPATH", "STAND_IN_FOLDER")
    )
    assert len(executor.slots()) == 2
    counts = drive(store, run, executor)
    spool.close()
    assert counts == {"passed": 8, "infrastructure_error": 1}
    attempts = Counter(r.submitter for r in store.results())
    assert attempts == {**{f"who{k}": 1 for k in range(7)}, "who7": 2, "who8": 2}
    assert all(json.loads(r.record)["spec_digest"] == r.spec_digest for r in store.results())
    assert not list(spool.waiting())
    store.close()


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    store = open_store(str(tmp_path / "r.db"), create=True)
    spool = Spool(tmp_path / "spool", store)
    with pytest.raises(InfrastructureError, match="Ray at"):
        RayExecutor(spool, "127.0.0.1:1", cuda=False)
    spool.close()
    store.close()
