"""Environment, grants, limits and scratch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskfactory.grader import confine
from taskfactory.grader.confine import landlock, limits, policy


def test_environment_is_an_allow_list(tmp_path: Path) -> None:
    base = {
        "PATH": f"{tmp_path}:/usr/bin:relative:/usr/local/sbin",
        "PYTHONPATH": "/evil", "PYTHONSTARTUP": "/evil.py", "LD_PRELOAD": "/evil.so", "LD_AUDIT": "/evil.so",
        "TOKEN": "secret", "HOME": "/home/someone", "CC": "/evil/cc", "TRITON_PTXAS_PATH": "/evil/ptxas",
        "CUDA_VISIBLE_DEVICES": "3", "OMP_NUM_THREADS": "2", "TRITON_INTERPRET": "1",
        "LD_LIBRARY_PATH": f"/usr/lib:{tmp_path}/missing:relative",
    }  # fmt: skip
    made = confine.worker_environment(str(tmp_path), base)
    assert "secret" not in made.values()
    assert not [name for name in made if name.startswith(("PYTHON", "LD_PRELOAD", "LD_AUDIT"))]
    assert not [value for value in made.values() if "evil" in value]
    assert str(tmp_path) not in made["PATH"].split(os.pathsep)
    assert "/usr/bin" in made["PATH"].split(os.pathsep)
    assert made["LD_LIBRARY_PATH"] == "/usr/lib"
    assert made["CUDA_VISIBLE_DEVICES"] == "3"
    for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR"):
        assert Path(made[name]).is_relative_to(tmp_path)


def test_search_paths_that_others_may_write_are_left_out(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    assert policy.library_directories({"LD_LIBRARY_PATH": f"{loose}:{tmp_path}"}) == [str(tmp_path)]


def test_scratch_is_prepared_and_removed_whatever_is_in_it(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    outside = tmp_path / "kept"
    outside.write_text("kept")
    confine.prepare_scratch(str(scratch))
    for name, value in confine.worker_environment(str(scratch), {}).items():
        if name.endswith(("TMPDIR", "CACHE_DIR", "CACHE_PATH")):
            assert Path(value).is_dir()
    (scratch / "link").symlink_to(outside)
    here = scratch
    for _ in range(60):
        here = here / "d"
        here.mkdir()
    here.chmod(0)
    (scratch / "tmp").chmod(0)
    assert confine.remove_scratch(str(scratch))
    assert outside.read_text() == "kept"
    assert oct(outside.stat().st_mode & 0o777) == oct(0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("path", ["/", "/proc", "/tmp", "/etc", "/dev"])
def test_wide_grants_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="too much"):
        policy.grants(str(tmp_path), [path], [])


def test_only_the_scratch_devices_and_own_task_directory_can_be_written(tmp_path: Path) -> None:
    granted = policy.grants(str(tmp_path), ["/usr"], ["/dev/nvidia7"])
    writable = {grant.path for grant in granted if grant.rights & landlock.WRITE_FILE}
    devices = {"/dev/full", "/dev/null", "/dev/zero", "/dev/nvidia7"}
    assert writable == {f"/proc/{os.getpid()}/task", str(tmp_path), *devices}
    readable = {grant.path for grant in granted}
    assert not {"/proc", "/etc", "/dev", "/dev/shm", "/tmp", "/etc/shadow", "/sys", "/home", "/var"} & readable
    assert "/proc" in {grant.path for grant in policy.grants(str(tmp_path), [], [], wide_proc=True)}


def test_handled_rights_grow_with_the_abi() -> None:
    assert landlock.handled_rights(1) == 0x1FFF
    assert landlock.handled_rights(2) == 0x3FFF
    assert landlock.handled_rights(3) == landlock.handled_rights(4) == 0x7FFF
    assert landlock.handled_rights(7) == 0xFFFF


def test_nvidia_devices_are_those_of_the_lease() -> None:
    nodes = confine.nvidia_devices([5])
    assert "/dev/nvidia5" in nodes
    assert not [node for node in nodes if node[11:].isdigit() and node != "/dev/nvidia5"]
    assert confine.nvidia_minor("GPU-00000000-0000-0000-0000-000000000000") is None


def test_the_tier_of_a_report() -> None:
    scopes = ("abstract_sockets", "signals")
    full = confine.Report("x86_64", 0, True, True, 7, True, True, True, True, scopes, True, 0, 0)
    assert confine.tier(full) == "confined"
    for change in ({"sealed": False}, {"scopes": ()}):
        assert confine.tier(confine.Report.from_json(full.to_json() | change)) == "partial"
    for change in ({"files": False}, {"seccomp": False}, {"capabilities": 1}, {"debug": True}, {"truncate": False}):
        assert confine.tier(confine.Report.from_json(full.to_json() | change)) == "unconfined"
    with pytest.raises(TypeError):
        confine.Report.from_json({"machine": "x86_64", "uid": 0, "landlok": True})


def test_a_control_group_limits_and_kills_or_says_why_not() -> None:
    group = limits.control_group(f"confine-test-{os.getpid()}", processes=8)
    if isinstance(group, str):
        assert group, "a reason is owed"
        return
    try:
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", _BOMB], stdin=subprocess.PIPE, text=True,
                              stdout=subprocess.PIPE) as bomb:  # fmt: skip
            group.add(bomb.pid)
            assert bomb.stdin is not None
            assert bomb.stdout is not None
            bomb.stdin.write("\n")
            bomb.stdin.flush()
            assert bomb.stdout.readline() == "7\n", "eight processes with the parent"
            assert group.kill()
    finally:
        assert group.close()


_BOMB = """
import os, sys, time
sys.stdin.readline()
made = 0
try:
    while made < 100:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    print(made, flush=True)
    time.sleep(60)
"""


def test_importing_is_inert() -> None:
    package = os.path.dirname(os.path.dirname(confine.__file__))
    code = f"import sys; sys.path.insert(0, {package!r}); import confine; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
