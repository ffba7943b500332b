"""Killing until nothing is left: each test is a subreaper of its own, since it kills all of its descendants."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskfactory.grader import processes
from taskfactory.grader.processes import KEPT_OUTPUT_BYTES, Child, descendants, kill_all

TOOLS = str(Path(processes.__file__).parents[2])

_PRELUDE = f"""
import ctypes, os, signal, sys
sys.path.insert(0, {TOOLS!r})
from pathlib import Path
from taskfactory.grader.processes import descendants, kill_all
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
there, here = os.pipe()


def ready(count=1):
    os.write(here, b"!" * count)


def wait(count=1):
    while count:
        count -= len(os.read(there, count))


def forever():
    while True:
        signal.pause()


def alive(pid):
    try:
        return Path(f"/proc/{{pid}}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
"""

_EPILOGUE = """
assert len(descendants(os.getpid())) >= {least}, descendants(os.getpid())
assert kill_all(set(), timeout_s=30.0)
assert not descendants(os.getpid())
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nothing left")
"""

TREES = {
    "a child": ("if not os.fork():\n    ready()\n    forever()\nwait()", 1),
    "one that ignores every signal it can": (
        "if not os.fork():\n"
        "    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "        signal.signal(number, signal.SIG_IGN)\n"
        "    ready()\n"
        "    while True: os.read(os.pipe()[0], 1)\n"
        "wait()",
        1,
    ),
    "one that is stopped": (
        "pid = os.fork()\n"
        "if not pid:\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    forever()\n"
        "os.waitpid(pid, os.WUNTRACED)",
        1,
    ),
    "a zombie": ("pid = os.fork()\nif not pid: os._exit(0)\nos.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)", 1),
    "a daemon": (
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if not os.fork():\n"
        "        ready()\n"
        "        forever()\n"
        "    os._exit(0)\n"
        "wait()",
        1,
    ),
    "one under a misleading name": (
        'if not os.fork():\n    libc.prctl(15, b"x) S 1 1 1 (", 0, 0, 0)\n    ready()\n    forever()\nwait()',
        1,
    ),
    "orphans kept by a subreaper of their own": (
        "if not os.fork():\n"
        "    libc.prctl(36, 1, 0, 0, 0)\n"
        "    for _ in range(4):\n"
        "        if not os.fork():\n"
        "            if not os.fork():\n"
        "                os.setsid()\n"
        "                ready()\n"
        "                forever()\n"
        "            os._exit(0)\n"
        "    forever()\n"
        "wait(4)",
        5,
    ),
    "a chain": (
        "for _ in range(12):\n    if os.fork():\n        break\n    ready()\nelse:\n    forever()\n"
        "if os.getpid() != libc.getpgrp() and os.getppid() != ROOT_PARENT: forever()\nwait(12)",
        12,
    ),
    "one that is always another process": (
        "if not os.fork():\n    ready()\n    while not os.fork() or os._exit(0): os.setsid()\nwait()",
        1,
    ),
    "a fork bomb": (  # it ends by itself after a few thousand forks, should the test be unable to end it
        "if not os.fork():\n"
        "    for _ in range(3): os.fork()\n"
        "    ready()\n"
        "    for _ in range(300):\n"
        "        if os.fork(): os._exit(0)\n"
        "    forever()\n"
        "wait(8)",
        8,
    ),
}


def _script(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    head = f"{_PRELUDE}\nROOT_PARENT = os.getppid()\n"
    return subprocess.run(
        [sys.executable, "-I", "-c", head + code, *arguments], capture_output=True, text=True, timeout=90, check=False
    )


@pytest.mark.parametrize("name", TREES)
def test_nothing_is_left_of(name: str) -> None:
    code, least = TREES[name]
    done = _script(f"{code}\n{_EPILOGUE.format(least=least)}")
    assert done.stdout == "nothing left\n", done.stderr


def test_what_is_spared_is_neither_killed_nor_stopped() -> None:
    done = _script(
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "spared = os.fork()\n"
        "if not spared:\n"
        "    for _ in range(2):\n"
        "        ready()\n"
        "        signal.sigwait([signal.SIGUSR1])\n"
        "    os._exit(7)\n"
        "wait()\n"
        "other = os.fork()\n"
        "if not other: forever()\n"
        "assert kill_all({spared}, timeout_s=30.0)\n"
        "assert descendants(os.getpid()) == {spared}\n"
        "assert not alive(other)\n"
        "os.kill(spared, signal.SIGUSR1)\n"
        "wait()\n"  # it still answers
        "os.kill(spared, signal.SIGUSR1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(spared, 0)[1]))"
    )
    assert done.stdout == "7\n", done.stderr


def test_a_tree_that_will_not_die_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descendants(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(processes, "_signal", lambda pid, number: None)
    assert not kill_all(before, timeout_s=0.05)
    child.communicate(b"", timeout=30)
    assert child.returncode == 0
    assert kill_all(before, timeout_s=0.05)


def test_descendants_are_found_at_any_depth_and_strangers_are_not() -> None:
    chain = "for _ in range(3):\n    if os.fork(): break\n"
    code = f"import os, sys\n{chain}os.write(1, b'%d\\n' % os.getpid())\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pids = {int(child.stdout.readline()) for _ in range(4)}
    assert pids <= descendants(os.getpid())
    assert descendants(child.pid) == pids - {child.pid}
    assert os.getppid() not in descendants(os.getpid())
    child.communicate(timeout=30)


# -- children ----------------------------------------------------------------------------------------------------------


def _child(code: str, cwd: Path, env: dict[str, str] | None = None, pass_fds: tuple[int, ...] = ()) -> Child:
    return Child([sys.executable, "-I", "-c", code], env or {}, str(cwd), pass_fds)


def _output(child: Child) -> str:
    child.process.wait(timeout=60)
    return child.finish()


def test_a_child_gets_its_environment_and_nothing_else(tmp_path: Path) -> None:
    code = (
        "import os, sys; print(sorted(set(os.environ) - {'LC_CTYPE'}), os.getcwd(), os.getsid(0) == os.getpid(),"
        " sys.stdin.read() == '', [fd for fd in range(100) if os.path.exists(f'/proc/self/fd/{fd}')])"
    )
    kept, other = (os.open(os.devnull, os.O_RDONLY) for _ in range(2))
    os.set_inheritable(other, True)
    printed = _output(_child(code, tmp_path, {"A": "1"}, (kept,)))
    os.close(kept)
    os.close(other)
    assert printed == f"['A'] {tmp_path} True True [0, 1, 2, {kept}]\n"


def test_the_end_of_a_long_output_is_kept_and_never_blocks(tmp_path: Path) -> None:
    code = "import sys\nfor k in range(60_000): print(f'line {k} ' + 'x' * 20)\nsys.stdout.flush()\nsys.exit('last')"
    printed = _output(_child(code, tmp_path))
    assert printed.endswith("last\n")
    assert len(printed.encode()) == KEPT_OUTPUT_BYTES
    assert "line 59999" in printed


def test_output_that_is_no_text_is_replaced(tmp_path: Path) -> None:
    assert _output(_child("import os; os.write(1, b'a\\xffb')", tmp_path)) == "a\ufffdb"


def test_a_child_reaped_by_kill_all_can_be_finished(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    child = _child("import signal; print('there', flush=True); signal.pause()", tmp_path)
    while b"there" not in child.kept:
        time.sleep(0)
    assert kill_all(before)
    assert child.finish() == "there\n"


def test_a_child_dies_with_its_parent() -> None:
    orphan = (
        f"import sys; sys.path.insert(0, {TOOLS!r}); from taskfactory.grader.processes import die_with_parent\n"
        "import os, signal; die_with_parent(); print(os.getpid(), flush=True); signal.pause()"
    )
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}]).wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    watch = os.pidfd_open(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    poller = select.poll()
    poller.register(watch, select.POLLIN)
    assert poller.poll(30_000)
    os.close(watch)
    parent.stdout.close()


def test_a_zombie_has_ended_and_a_sleeper_has_not() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        assert not processes.has_ended(sleeper.pid)
        descriptor = os.pidfd_open(sleeper.pid)
        sleeper.kill()
        select.select([descriptor], [], [])  # readable once it has died, which is before it is reaped
        os.close(descriptor)
        assert processes.has_ended(sleeper.pid)
    finally:
        sleeper.wait()
    assert processes.has_ended(sleeper.pid)
