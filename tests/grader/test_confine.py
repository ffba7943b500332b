"""Attacks against a confined worker, run for real, and the same attacks unconfined, which shows that they work."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from taskfactory.grader import confine
from taskfactory.grader.confine import caps, landlock
from taskfactory.grader.confine.probe import Observed, Outcome

HAS_LANDLOCK = landlock.abi() >= 6
IS_ROOT = os.geteuid() == 0
# CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_TIME: root of a container often lacks them, and is refused much unconfined.
PRIVILEGED = all(caps.held().effective >> bit & 1 for bit in (19, 21, 25))

# What no machine lets an unconfined process of the same user do, or what this one may not have.
NEVER_POSSIBLE = {"go_seal", "proc_comm_write", "unix_pair_stream", "x32"}
DEPENDS_ON_MACHINE = {
    "modprobe_path", "sysrq_trigger", "dev_mem", "kcore", "disk_read", "kmsg", "tty", "ptmx", "alg", "vsock", "netlink",
    "dev_shm", "bpf", "perf_event_open", "io_uring_setup", "userfaultfd", "keyctl", "add_key", "fanotify", "inotify",
    "cgroup_escape", "unshare_user", "clone_user", "clone_user_net", "clone_user_pid", "clone3_user", "tcp6", "packet",
    "foreign_architecture", "modify_ldt", "migrate_pages", "move_pages", "ptrace_seize", "ptrace_attach", "raw",
    "posix_queue", "file_flags", "fsetxattr", "setxattr", "core_pattern", "proc_sys_write", "mount", "shadow_read",
    "system_write", "syslog", "file_handle",
}  # fmt: skip


def system_python() -> str | None:
    """A Python that every user may execute; the running one often lies in somebody's home."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        tried = subprocess.run([path, "-I", "-c", "import sys; assert sys.version_info >= (3, 11)"],
                               capture_output=True, user=65534, group=65534, extra_groups=[], check=False) \
            if os.path.exists(path) and _reachable(path) else None  # fmt: skip
        if tried is not None and tried.returncode == 0:
            return path
    return None


def _reachable(path: str) -> bool:
    """Whether all directories above the real file are open to everybody."""
    here = os.path.dirname(os.path.realpath(path))
    while here != "/":
        if not os.stat(here).st_mode & 0o001:
            return False
        here = os.path.dirname(here)
    return True


def assert_confined(observed: Observed) -> None:
    assert observed.error == ""
    assert observed.report is not None
    if not HAS_LANDLOCK:
        assert "signals" not in observed.report.scopes
        assert observed.report.landlock_abi < 6
        assert confine.tier(observed.report) in ("unconfined", "partial")
        return
    assert observed.succeeded == []
    assert observed.changed == ()
    assert observed.tier == "confined"
    assert confine.tier(observed.report) == "confined"
    assert len(observed.attacks) > 110


@pytest.fixture(scope="module")
def as_we_are() -> Observed:
    return confine.probe_worker()


def test_every_attack_is_refused(as_we_are: Observed) -> None:
    assert_confined(as_we_are)


def test_layers_are_reported(as_we_are: Observed) -> None:
    report = as_we_are.report
    assert report is not None
    assert report.landlock_abi == landlock.abi()
    assert report.files == (landlock.abi() > 0)
    assert report.no_new_privileges
    assert report.capabilities == 0
    assert report.own_session
    assert report.closed_descriptors >= 1, "the leaked descriptor was open and had to be closed"
    assert confine.Report.from_json(report.to_json()) == report


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_every_attack_is_refused_to_an_ordinary_user() -> None:
    python = system_python()
    if python is None:
        pytest.skip("no Python here that every user may execute")
    observed = confine.probe_worker(user=65534, python=python)
    assert observed.uid == pwd.getpwnam("nobody").pw_uid
    assert_confined(observed)


def test_the_same_attacks_succeed_without_confinement() -> None:
    observed = confine.probe_worker(confined=False)
    assert observed.error == ""
    assert observed.tier == "unconfined"
    assert observed.report is None
    expected = set(observed.attacks) - NEVER_POSSIBLE - DEPENDS_ON_MACHINE
    if PRIVILEGED:
        failed = {name: observed.attacks[name].errno for name in expected if not observed.attacks[name].succeeded}
        assert failed == {}
    else:
        assert len(observed.succeeded) > 40
    # The changes are seen from outside as well.
    assert {"results/result.json", "results/reward.json", "results/spare", "victim nice"} <= set(observed.changed)
    assert not PRIVILEGED or "victim secret_intact" in observed.changed


def test_namespaces_hide_what_landlock_shows(tmp_path: Path) -> None:
    reason = confine.bwrap_works(str(tmp_path))
    if reason:
        pytest.skip(f"bubblewrap: {reason}")
    observed = confine.probe_worker(namespaces=True)
    assert observed.error == ""
    assert observed.namespaces
    assert not observed.attacks["hidden_stat"].succeeded
    if HAS_LANDLOCK:
        assert observed.tier == "namespaced"


@pytest.mark.skipif(not HAS_LANDLOCK, reason="needs Landlock")
def test_what_costs_the_tier_is_seen() -> None:
    wide = confine.probe_worker(wide_proc=True)
    assert wide.tier == "partial"
    assert {"proc_cmdline", "proc_stat"} <= set(wide.succeeded)
    assert not wide.attacks["proc_environ"].succeeded
    assert confine.probe_worker(devices=["/dev/shm"]).succeeded == ["dev_shm"]


def test_without_landlock_the_report_says_so() -> None:
    """A kernel without Landlock, played by a filter that answers ENOSYS to its system calls."""
    package = os.path.dirname(os.path.dirname(confine.__file__))
    code = f"""
import json, os, sys, tempfile
sys.path.insert(0, {package!r})
from confine import caps, enter, seal, seccomp, tier
from confine.bpf import Rule, Ruleset
from confine.syscalls import machine
caps.no_new_privileges()
here = machine()
absent = {{here.numbers[name] for name in here.numbers if name.startswith("landlock")}}
every = {{number: Rule((), 38) if number in absent else Rule() for number in range(600)}}
seccomp.install(Ruleset(here, every, 38), all_threads=False)
with tempfile.TemporaryDirectory() as scratch:
    enter(scratch, [])
    report = seal()
    os.kill(os.getpid(), 0)
    try:
        os.kill(os.getppid(), 0)
        signalled = True
    except PermissionError:
        signalled = False
    print(json.dumps([report.to_json(), tier(report), signalled]))
    os.chdir("/")
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    report, tier, signalled = json.loads(done.stdout or pytest.fail(done.stderr))
    assert report["landlock_abi"] == 0
    assert not report["files"]
    assert report["seccomp"]
    assert any("Landlock is not available" in note for note in report["notes"])
    assert tier == "unconfined"
    assert not signalled, "seccomp takes over where Landlock cannot scope signals"


def observed(**outcomes: Outcome) -> Observed:
    return Observed(0, None, attacks=outcomes)


def test_tier_follows_from_what_succeeded() -> None:
    blocked = Outcome("verdict", False, "EPERM")
    assert observed(a=blocked).tier == "confined"
    assert Observed(0, None, attacks={"a": blocked}, namespaces=True).tier == "namespaced"
    assert observed(a=blocked, b=Outcome("observe", True, "")).tier == "confined"
    assert observed(a=blocked, b=Outcome("disturb", True, "")).tier == "partial"
    assert observed(a=Outcome("verdict", True, "")).tier == "unconfined"
    assert Observed(0, None, attacks={"a": blocked}, changed=("results/",)).tier == "unconfined"
    assert Observed(0, None, attacks={"a": blocked}, error="gone").tier == "unconfined"
    assert observed().tier == "unconfined", "nothing tried, nothing shown"
    assert observed(a=blocked).to_json()["attacks"]["a"]["outcome"] == "blocked"


def test_tiers_are_ordered() -> None:
    assert confine.at_least("namespaced", "confined")
    assert not confine.at_least("partial", "confined")
    with pytest.raises(ValueError, match="tuple"):
        confine.at_least("confined", "fortified")


def test_a_probe_that_cannot_start_is_unconfined() -> None:
    failed = confine.probe_worker(python="/nonexistent/python", timeout_s=5)
    assert failed.tier == "unconfined"
    assert "No such file" in failed.error
