"""Forked processes are as good as started ones, and a nursery that is gone is replaced."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grader.toy import GOOD, grade_source, strays
from taskfactory.grader import confine, nursery, supervisor
from taskfactory.grader.nursery import Nursery, NurseryGone
from taskfactory.grader.processes import has_ended, kill_all
from taskfactory.grader.result import Status

TELLS = """
def main(arguments):
    import ctypes, json, os, random, sys
    page = ctypes.create_string_buffer(1)
    print(json.dumps({
        "arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd(), "parent": os.getppid(),
        "session": os.getsid(0) == os.getpid(), "input": sys.stdin.read(),
        "threads": len(os.listdir("/proc/self/task")),
        "open": [fd for fd in range(200) if os.path.exists(f"/proc/self/fd/{fd}")],
        "name": open("/proc/self/comm").read().strip(), "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
        "read": [os.pread(int(each), 9, 0).decode() for each in arguments],
        "torch": "torch" in sys.modules, "cuda": sys.modules["torch"].cuda.is_initialized(), "random": random.random(),
    }))
"""


@pytest.fixture
def role(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Nursery]:
    """A nursery whose children run `TELLS`, put in the place of the module `worker` of a copied package."""
    package = tmp_path / "grader"
    source = Path(supervisor.__file__).parent
    subprocess.run(["cp", "-r", str(source), str(package)], check=True)
    (package / "worker.py").write_text(TELLS, "utf-8")
    monkeypatch.setattr(nursery, "package_root", lambda: (str(tmp_path), "grader"))
    confine.harden_trusted(subreaper=True, no_new_privileges=False)
    found = Nursery("worker", {"LANG": "C.UTF-8"})
    yield found
    found.close()


def test_a_forked_process_is_as_good_as_a_new_one(role: Nursery, tmp_path: Path) -> None:
    spare = strays() | {role.pid}
    kept, other = (_memory(name) for name in ("kept", "other"))
    os.set_inheritable(other, True)
    told = []
    for _ in range(2):
        child = role.fork([str(kept)], {"A": "ü"}, str(tmp_path), [kept])
        os.waitpid(child.pid, 0)
        told.append(json.loads(child.finish()))
    drawn = {each.pop("random") for each in told}
    assert told[0] == told[1] == {
        "arguments": [str(kept)], "environment": {"A": "ü"}, "cwd": str(tmp_path), "parent": os.getpid(),
        "session": True, "input": "", "threads": 1, "open": [0, 1, 2, kept], "name": "grader.worker", "dumpable": 1,
        "read": ["kept"], "torch": True, "cuda": False,
    }  # fmt: skip
    assert len(drawn) == 2  # the generator is seeded anew in each
    assert strays() <= spare
    os.close(kept)
    os.close(other)


def test_descriptors_keep_their_numbers_even_if_these_cross(role: Nursery, tmp_path: Path) -> None:
    first, second, third = (_memory(name) for name in ("first", "second", "third"))
    child = role.fork([str(first), str(second), str(third)], {}, str(tmp_path), [third, first, second])
    os.waitpid(child.pid, 0)
    assert json.loads(child.finish())["read"] == ["first", "second", "third"]
    for descriptor in (first, second, third):
        os.close(descriptor)


def _memory(content: str) -> int:
    descriptor = os.memfd_create(content)
    os.write(descriptor, content.encode())
    return descriptor


def test_a_killed_nursery_says_so() -> None:
    confine.harden_trusted(subreaper=True, no_new_privileges=False)
    found = Nursery("worker", {})
    os.kill(found.pid, signal.SIGKILL)
    with pytest.raises(NurseryGone):
        found.fork([], {}, "/", [])


def test_what_it_printed_is_told_when_it_dies() -> None:
    found = Nursery("no_such_role", {})
    with pytest.raises(NurseryGone, match="no_such_role"):
        found.fork([], {}, "/", [])


def test_one_nursery_serves_many_gradings_until_it_is_gone_or_others_are_asked_for(tmp_path: Path) -> None:
    grade_source(tmp_path, GOOD)
    before = nursery.pids()
    assert len(before) == 2
    grade_source(tmp_path, GOOD)
    assert nursery.pids() == before
    os.kill(next(iter(before)), signal.SIGKILL)
    assert grade_source(tmp_path, GOOD).status is Status.PASSED
    after = nursery.pids()
    assert len(after) == 2
    assert len(after & before) == 1
    nursery.retire()
    assert not nursery.pids()
    assert all(has_ended(pid) for pid in after)
    first = nursery.nursery("worker", {"A": "1"})
    assert nursery.nursery("worker", {"A": "1"}) is first
    assert nursery.nursery("worker", {"A": "2"}) is not first
    nursery.retire()


def test_it_goes_when_its_owner_is_killed() -> None:
    root = str(Path(supervisor.__file__).parents[2])
    code = (
        f"import os, sys; sys.path.insert(0, {root!r}); from taskfactory.grader import confine, nursery\n"
        "confine.harden_trusted(subreaper=True, no_new_privileges=False)\n"
        "n = nursery.nursery('worker', {}); c = n.fork(['x'], {}, '/', []); os.waitpid(c.pid, 0)\n"
        "print(n.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    watch = os.pidfd_open(int(owner.stdout.readline()))
    owner.kill()
    owner.communicate(timeout=30)
    assert select.select([watch], [], [], 30)[0]
    os.close(watch)


def test_what_lived_beside_an_unconfined_submission_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = confine.Observed(0, None)
    assert observed.tier == "unconfined"
    monkeypatch.setattr(supervisor, "observe", lambda device: observed)
    assert grade_source(tmp_path, GOOD, require_tier="unconfined").status is Status.PASSED
    assert not nursery.pids()


def test_a_submission_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    leaves = f"import sys, torch\nsys.left = torch.left = True\n{GOOD}"
    looks = f"import sys, torch\nassert not hasattr(sys, 'left') and not hasattr(torch, 'left')\n{GOOD}"
    assert grade_source(tmp_path, leaves).status is Status.PASSED
    assert grade_source(tmp_path, looks).status is Status.PASSED


def test_an_order_that_cannot_be_carried_out_is_an_error_and_no_end() -> None:
    confine.harden_trusted(subreaper=True, no_new_privileges=False)
    spare = strays()
    found = Nursery("worker", {})
    spare |= {found.pid}
    child = found.fork(["no numbers"], {}, "/no/such/folder", [])
    os.waitpid(child.pid, 0)
    assert "/no/such/folder" in child.finish()
    assert found.alive()
    assert kill_all(spare)
    found.close()
