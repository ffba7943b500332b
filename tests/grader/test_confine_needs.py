"""What honest submissions do has to work inside: each test is a worker of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from taskfactory.grader import confine
from taskfactory.grader.confine import caps

PACKAGE = os.path.dirname(os.path.dirname(confine.__file__))
SITE = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]

PROLOGUE = f"""
import sys
sys.path.insert(0, {PACKAGE!r})
import confine, json, os
setup = json.loads(sys.argv[1])
report = confine.enter(setup["scratch"], [{PACKAGE!r}, *setup["readable"]], setup["devices"], log_refusals=setup["log"])
sys.path += {SITE!r}
exec(setup["start"])
report = confine.seal()
assert report.sealed, report
exec(setup["body"])
"""


def work(
    body: str,
    *,
    start: str = "",
    devices: tuple[str, ...] = (),
    log: bool = False,
    base: dict[str, str] | None = None,
    timeout_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run `start` confined, seal, then run `body`."""
    with tempfile.TemporaryDirectory() as scratch:
        confine.prepare_scratch(scratch)
        setup = {"scratch": scratch, "readable": [*confine.interpreter_readable(), *SITE], "devices": devices,
                 "start": start, "body": body, "log": log}  # fmt: skip
        return subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", PROLOGUE, json.dumps(setup)],
            env=confine.worker_environment(scratch, os.environ | {"OMP_NUM_THREADS": "1"} | (base or {})),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, start_new_session=True,
            check=False,
        )  # fmt: skip


def succeed(body: str, **options: object) -> str:
    done = work(body, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_threads_processes_pipes_and_files() -> None:
    out = succeed("""
import asyncio, concurrent.futures, multiprocessing, os, shutil, subprocess, tempfile, threading
threads = [threading.Thread(target=sum, args=(range(1000),)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    assert list(pool.map(abs, [-1, 2])) == [1, 2]
assert subprocess.run(["ls", "/usr"], capture_output=True, check=True).stdout
sleeper = subprocess.Popen(["sleep", "60"])
sleeper.terminate()
assert sleeper.wait() == -15
ours, theirs = multiprocessing.Pipe()
ours.send([1])
assert theirs.recv() == [1]
with tempfile.TemporaryDirectory() as directory:
    open(os.path.join(directory, "a"), "w").write("x" * 100_000)
    shutil.copy(os.path.join(directory, "a"), os.path.join(directory, "b"))
    os.replace(os.path.join(directory, "b"), "moved")
assert os.path.getsize("moved") == 100_000
asyncio.run(asyncio.sleep(0))
child = os.fork()
if child == 0:
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert os.sched_getaffinity(0) and "MemTotal" in open("/proc/meminfo").read()
assert "VmRSS" in open("/proc/self/status").read() and os.listdir("/proc/self/fd")
print("line\\n" * 50_000, end="")
""")
    assert out.count("line") == 50_000


def test_threads_can_be_named_as_cuda_does() -> None:
    succeed("""
import threading
with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
    file.write("named")
assert open("/proc/self/comm").read() == "named\\n"
""")


def test_a_c_extension_is_compiled_and_loaded() -> None:
    succeed("""
import ctypes, os, subprocess
open("x.c", "w").write("int next(int a) { return a + 1; }")
subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", "x.so", "x.c"], check=True)
assert ctypes.CDLL(os.path.abspath("x.so")).next(41) == 42
""")


def test_torch_and_triton_run() -> None:
    pytest.importorskip("triton")
    body = '''
open("kernel.py", "w").write("""
import triton
import triton.language as tl

@triton.jit
def add_one(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
""")
sys.path.insert(0, ".")
from kernel import add_one
x = torch.randn(64, 64)
out = torch.empty_like(x)
add_one[(4,)](x, out, 4096, 1024)
assert torch.equal(out, x + 1)
assert (x @ x).shape == (64, 64)
'''
    succeed(body, start="import torch", base={"TRITON_INTERPRET": "1"})


@pytest.mark.full
def test_torch_compile_runs() -> None:
    succeed("""
f = torch.compile(lambda x: torch.relu(x * 2 + 1).sum(0))
x = torch.randn(64, 64)
assert torch.allclose(f(x), torch.relu(x * 2 + 1).sum(0))
""", start="import torch", timeout_s=300)  # fmt: skip


CUDA_START = """
import torch
torch.cuda.init()
torch.zeros(1, device="cuda")
"""

CUDA_BODY = '''
open("kernel.py", "w").write("""
import triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": size}) for size in (512, 1024)], key=["n"])
@triton.jit
def add_one(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
""")
sys.path.insert(0, ".")
from kernel import add_one
x = torch.randn(1 << 20, device="cuda")
out = torch.empty_like(x)
add_one[lambda meta: (-(-x.numel() // meta["BLOCK"]),)](x, out, x.numel())
torch.cuda.synchronize()
assert torch.equal(out, x + 1)
graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.stream(side):
    pinned = torch.ones(1 << 16).pin_memory().to("cuda", non_blocking=True)
torch.cuda.current_stream().wait_stream(side)
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()
assert torch.equal(y, x * 2) and pinned.sum().item() == 1 << 16
assert torch.randn(64, 64, device="cuda").bfloat16().matmul(torch.eye(64, device="cuda").bfloat16()).shape == (64, 64)
'''


@pytest.mark.gpu
def test_cuda_and_triton_compile_and_run() -> None:
    """If this fails, the message lists what the driver was refused."""
    devices = tuple(confine.nvidia_devices())
    if not devices:
        pytest.skip("no NVIDIA device")
    done = work(CUDA_BODY, start=CUDA_START, devices=devices, timeout_s=240)
    if done.returncode != 0:
        logged = work(CUDA_BODY, start=CUDA_START, devices=devices, timeout_s=240, log=True)
        pytest.fail(f"{done.stderr}\n--- with refusals logged ---\n{logged.stderr}")


@pytest.mark.gpu
def test_a_worker_with_a_gpu_is_as_confined_as_without() -> None:
    devices = confine.nvidia_devices()
    if not devices:
        pytest.skip("no NVIDIA device")
    observed = confine.probe_worker(devices=devices)
    assert (observed.tier, observed.succeeded, observed.error) == ("confined", [], "")


def test_start_up_may_use_a_local_socket_and_the_submission_may_not() -> None:
    start = """
import queue, socket, threading
socket.socket(socket.AF_UNIX).close()
try:
    socket.socket(socket.AF_INET)
    raise SystemExit("an internet socket was possible")
except PermissionError:
    pass
asked, answered = queue.Queue(), queue.Queue()
def early():
    asked.get()
    try:
        socket.socket(socket.AF_UNIX)
        answered.put("open")
    except PermissionError:
        answered.put("refused")
threading.Thread(target=early, daemon=True).start()
"""
    succeed("asked.put(1)\nassert answered.get() == 'refused', 'the seal has to reach earlier threads'",
            start=start, devices=("/dev/null",))  # fmt: skip


def test_refused_calls_can_be_logged() -> None:
    done = work("""
try:
    import socket
    socket.socket()
except PermissionError:
    print("refused", report.debug, confine.tier(report))
""", log=True)  # fmt: skip
    assert done.stdout == "refused True unconfined\n", done.stderr
    assert "confine: sealed: refused socket(0x2, " in done.stderr


def test_limits_hold() -> None:
    succeed("""
import resource, signal
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
size, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
assert size == hard == 2 << 30
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("large", "wb") as file:
    try:
        os.pwrite(file.fileno(), b"x", size)
        raise SystemExit("wrote beyond the limit")
    except OSError:
        pass
""")


@pytest.mark.skipif(not caps.held().effective & 1 << 24, reason="only CAP_SYS_RESOURCE can fix the score")
def test_a_worker_of_a_privileged_grader_cannot_spare_itself_from_the_memory_killer() -> None:
    succeed("""
assert open("/proc/self/oom_score_adj").read() == "1000\\n"
try:
    with open(f"/proc/self/task/{os.getpid()}/oom_score_adj", "w") as file:
        file.write("0")
except OSError:
    pass
assert open("/proc/self/oom_score_adj").read() == "1000\\n"
""")


def test_order_is_enforced(tmp_path: Path) -> None:
    with pytest.raises(confine.ConfinementError, match="after enter"):
        confine.seal()
    body = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
for scratch in (".", "."):
    try:
        confine.enter(scratch, [])
        raise SystemExit("entered twice")
    except confine.ConfinementError:
        pass
"""
    succeed(body)
    threads = f"""
import sys, threading
sys.path.insert(0, {PACKAGE!r})
import confine
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    confine.enter({str(tmp_path)!r}, [])
except confine.ConfinementError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-I", "-c", threads], capture_output=True, text=True, check=False)
    assert "before the first thread" in done.stdout


def test_a_hardened_process_is_not_dumpable() -> None:
    code = f"""
import sys
sys.path.insert(0, {PACKAGE!r})
import confine
from confine import libc
assert confine.harden_trusted(subreaper=True) == ()
assert libc.prctl(libc.PR_GET_DUMPABLE) == 0
assert libc.prctl(libc.PR_GET_NO_NEW_PRIVS) == 1
"""
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
