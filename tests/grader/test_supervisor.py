"""Broker, worker and supervisor together, on the CPU: every status a submission can earn, and what never happens."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeGuard

import pytest

from grader.toy import GOOD, grade_source, strays, write_task
from taskfactory.grader import confine, supervisor
from taskfactory.grader.result import Result, Status
from taskfactory.grader.task import TaskError

_PARTS = "(x.float() * (2.0 if scale is None else scale)).to(torch.bfloat16), (x > 0).sum(-1, dtype=torch.int32)"


def _submission(body: str, before: str = "") -> str:
    return f"import torch\n{before}\n\ndef row_scale(x, scale=None):\n    y, n = {_PARTS}\n    {body}\n"


FAILURES = {
    "import raises": ("raise RuntimeError('boom')", Status.IMPORT_ERROR, "boom"),
    "syntax error": ("def row_scale(x:", Status.IMPORT_ERROR, "SyntaxError"),
    "no function": ("import torch", Status.IMPORT_ERROR, "defines no function"),
    "exits at import": ("import os; os._exit(0)", Status.WORKER_DIED, ""),
    "exits politely": (_submission("raise SystemExit(0)"), Status.RUNTIME_ERROR, "SystemExit"),
    "raises": (_submission("raise ValueError('no such kernel')"), Status.RUNTIME_ERROR, "no such kernel"),
    "crashes": (_submission("import ctypes; ctypes.string_at(0)"), Status.WORKER_DIED, ""),
    "memory": (_submission("raise MemoryError"), Status.OUT_OF_MEMORY, ""),
    "hangs": (_submission("import threading; threading.Event().wait()"), Status.TIMEOUT, "no answer"),
    "returns one": (_submission("return y"), Status.WRONG_TYPE, "expected a tuple"),
    "returns three": (_submission("return y, n, n"), Status.WRONG_COUNT, "3 tensors"),
    "returns None inside": (_submission("return y, None"), Status.WRONG_TYPE, "NoneType"),
    "subclass": (_submission("return torch.nn.Parameter(y, False), n"), Status.WRONG_TYPE, "Parameter"),
    "wrong shape": (_submission("return y[:-1], n"), Status.WRONG_SHAPE, "shape"),
    "wrong dtype": (_submission("return y, n.long()"), Status.WRONG_DTYPE, "int64"),
    "complex dtype": (_submission("return y.to(torch.complex128), n"), Status.WRONG_DTYPE, "complex128"),
    "low precision dtype": (_submission("return y.half(), n"), Status.WRONG_DTYPE, "float16"),
    "NaN": (_submission("y[0, 0] = float('nan'); return y, n"), Status.NOT_FINITE, "NaN"),
    "off": (_submission("return y * 1.02, n"), Status.INCORRECT, "exceeds the tolerance"),
    "one count": (_submission("n[1] += 1; return y, n"), Status.INCORRECT, "compared exactly"),
    "region": (_submission("y[:, -1] *= 1.008; return y, n"), Status.INCORRECT, "last column"),
    "ignores scale": (_submission("return (x.float() * 2).bfloat16(), n"), Status.INCORRECT, "case scaled"),
    "writes inputs": (_submission("x[0, 0] = 5; return y, n"), Status.INPUTS_MODIFIED, "inputs"),
    "aliases input": (_submission("return x, n"), Status.WRONG_TYPE, "shares memory"),
    "stale": (
        _submission("KEPT.setdefault(x.shape, (y, n)); return KEPT[x.shape]", "KEPT = {}"),
        Status.INCORRECT,
        "exceeds",
    ),
}


@pytest.fixture(scope="module")
def graded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The gradings of all failures that are selected, one a core: each starts two processes that import torch.

    They are over when this returns, since a grading kills whatever its process has started meanwhile.
    """
    names = [item.callspec.params["name"] for item in request.session.items if _wants_failure(item)]
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(min(cores, len(names)), multiprocessing.get_context("spawn")) as pool:
        directories = [tmp_path_factory.mktemp("failure") for _ in names]
        # From a module that a process can import by name; tests themselves are imported by path.
        grade = functools.partial(grade_source, first_call_s=3.0)
        graded = pool.map(grade, directories, [FAILURES[name][0] for name in names])
        return dict(zip(names, graded, strict=True))


def _wants_failure(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return isinstance(item, pytest.Function) and item.originalname == test_every_failure_has_its_status.__name__


@pytest.mark.parametrize("name", FAILURES)
def test_every_failure_has_its_status(graded: dict[str, Result], name: str) -> None:
    _, status, text = FAILURES[name]
    result = graded[name]
    assert result.status is status, result.message
    assert result.score is None
    assert result.reward is None
    report = result.message + (result.failure.traceback if result.failure else "")
    assert text in report


def test_an_honest_submission_passes_and_is_not_timed_on_the_cpu(tmp_path: Path) -> None:
    result = grade_source(tmp_path, GOOD)
    assert result.status is Status.PASSED, result.message
    assert not result.timed
    assert result.score is None
    # two shapes with two cases each, but the wide case does not apply to the narrow shape
    assert result.calls_verified == 5
    assert [shape.kind for shape in result.shapes] == ["correct", "correct"]
    assert all(shape.errors == {"scaled": 0.0, "positive": 0.0} for shape in result.shapes)
    assert all(shape.regions == {"last column": 0.0} for shape in result.shapes)
    assert any("TF227" in warning for warning in result.warnings)  # the toy task does not mix its timed inputs


@pytest.mark.parametrize(
    "variant",
    {
        "a list": "return [y, n]",
        "fp32": "return y.float(), n",
        "a view": "return torch.stack([y, y])[1], n",
        "not contiguous": "return y.t().contiguous().t(), n",
        "one entry apart": "return y, torch.stack([n, n], 1)[:, 0]",
        "prints much": "print('x' * 300_000); return y, n",
        "a thread that ends": "import threading; t = threading.Thread(target=print); t.start(); t.join(); return y, n",
    }.items(),
    ids=lambda item: item[0],
)
def test_honest_variants_pass(tmp_path: Path, variant: tuple[str, str]) -> None:
    result = grade_source(tmp_path, _submission(variant[1]))
    assert result.status is Status.PASSED, result.message


def test_a_failure_names_seed_shape_and_coordinates_only_privately(tmp_path: Path) -> None:
    result = grade_source(tmp_path, _submission("y[0, 3] += 1; return y, n"))
    assert result.failure is not None
    assert result.failure.shape == [4, 32]
    assert result.failure.seed is not None
    assert result.failure.outputs[0]["differences"][0]["index"] == [0, 3]
    public = result.public_json()["failure"]
    assert "seed" not in public
    assert "differences" not in public["outputs"][0]


def test_the_traceback_is_the_submissions_own(tmp_path: Path) -> None:
    result = grade_source(tmp_path, _submission("raise ValueError('mine')"))
    assert result.failure is not None
    assert "rows.py" in result.failure.traceback
    assert "worker.py" not in result.failure.traceback


def test_measure_goes_on_after_a_failure_and_repeats_with_a_seed(tmp_path: Path) -> None:
    source = _submission("n += int(x.shape[0] == 4); return y, n")
    result = grade_source(tmp_path, source, "measure", kinds=("correct",), keep_going=True, seed=7)
    assert result.status is Status.INCORRECT
    assert result.failure is not None
    assert result.failure.seed == 7
    assert result.shapes[1].calls == 3  # the second shape was verified all the same
    assert result.shapes[1].seeds == [9, 10, 11]


def test_measure_times_given_shapes(tmp_path: Path) -> None:
    result = grade_source(tmp_path, GOOD, "measure", kinds=("quick",), shapes=((5, 7),), calls=2)
    assert result.status is Status.PASSED
    assert [(shape.kind, shape.shape, len(shape.claim_ms)) for shape in result.shapes] == [
        ("quick", [64, 64], 2),
        ("given", [5, 7], 2),
    ]


def test_a_solvers_copy_cannot_be_graded(tmp_path: Path) -> None:
    shapes = {"correct": [[4, 32]], "quick": [[64, 64]], "measure": [[128, 128]]}
    work = {"correct": [512], "quick": [1], "measure": [1]}
    task = write_task(tmp_path / "app", shapes=shapes, work=work)
    submission = tmp_path / "rows.py"
    submission.write_text(GOOD)
    result, _ = supervisor.grade(task, submission, "measure", "cpu", kinds=("graded",))
    assert result.status is Status.INFRASTRUCTURE_ERROR
    assert "no graded shapes" in result.message


def test_daemons_are_dead_before_the_result_exists(tmp_path: Path) -> None:
    body = (
        "import os\n"
        "    there, here = os.pipe()\n"
        "    if not os.fork():\n"
        "        os.setsid()\n"
        "        if not os.fork():\n"
        "            print('daemon', os.getpid(), flush=True)\n"
        "            os.write(here, b'!')\n"
        "            while True: os.read(os.pipe()[0], 1)\n"
        "        os._exit(0)\n"
        "    os.read(there, 1)\n"
        "    return y, n"
    )
    submission = tmp_path / "rows.py"
    submission.write_text(_submission(body))
    before = strays()
    result, printed = supervisor.grade(write_task(tmp_path / "task"), submission, "grade", "cpu")
    assert result.status is Status.PASSED, result.message
    assert strays() <= before
    daemons = [line.split()[1] for line in printed.splitlines() if line.startswith("daemon")]
    assert daemons
    assert not any(Path(f"/proc/{pid}").exists() for pid in daemons)


def test_a_confinement_that_is_too_weak_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = confine.Observed(0, None, error="no Landlock here")
    monkeypatch.setattr(supervisor, "observe", lambda device: nothing)
    refused = grade_source(tmp_path, GOOD)
    assert refused.status is Status.INFRASTRUCTURE_ERROR
    assert "no Landlock here" in refused.message
    allowed = grade_source(tmp_path, GOOD, require_tier="unconfined")
    assert allowed.status is Status.PASSED, allowed.message
    assert allowed.confinement["tier"] == "unconfined"


def test_the_clock_study_needs_no_submission(tmp_path: Path) -> None:
    result = supervisor.study_clock(write_task(tmp_path / "task"), "cpu", launches=2)
    assert result.status is Status.PASSED, result.message
    assert len(result.clock["launches"]) == 2
    assert [kind["reference"] for kind in result.clock["around"]] == ["full", "small", "none"]


def test_a_broken_task_is_not_the_submissions_fault(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (task / "reference.py").write_text("def row_scale(x, scale=None):\n    raise OSError('disk on fire')\n")
    submission = tmp_path / "rows.py"
    submission.write_text(GOOD)
    result, _ = supervisor.grade(task, submission, "grade", "cpu")
    assert result.status is Status.INFRASTRUCTURE_ERROR
    assert "disk on fire" in result.message


def test_a_killed_broker_is_an_infrastructure_error_and_leaves_nothing(tmp_path: Path) -> None:
    started = threading.Event()
    before = strays()

    def progress(step: str, done: int, total: int) -> None:
        if step == "verifying" and not started.is_set():
            started.set()
            broker = next(
                pid for pid in strays() - before
                if Path(f"/proc/{pid}/comm").read_text() == "grader.broker\n"
            )  # fmt: skip
            os.kill(broker, signal.SIGKILL)

    result = grade_source(tmp_path, GOOD, progress=progress)
    assert started.is_set()
    assert result.status is Status.INFRASTRUCTURE_ERROR
    assert "broker process died" in result.message
    assert strays() <= before


def test_the_deadline_holds(tmp_path: Path) -> None:
    started = time.monotonic()
    result = grade_source(tmp_path, FAILURES["hangs"][0], first_call_s=60.0, deadline_s=6.0)
    assert result.status is Status.INFRASTRUCTURE_ERROR
    assert "6 s" in result.message
    assert time.monotonic() - started < 40


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "no such"), (b"\xff\xfe", "UTF-8"), (b"x = 1\0", "NUL"), (b"#" * (2 << 20), "1 MiB")],
)
def test_a_file_that_is_no_submission(tmp_path: Path, content: bytes | None, text: str) -> None:
    submission = tmp_path / "rows.py"
    if content is not None:
        submission.write_bytes(content)
    with pytest.raises(TaskError, match=text):
        supervisor.grade(write_task(tmp_path / "task"), submission, "grade", "cpu")


def test_the_supervisor_never_imports_torch() -> None:
    code = "import sys, taskfactory.grader.cli; sys.exit('torch' in sys.modules)"
    root = str(Path(supervisor.__file__).parents[2])
    assert subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {code}"]).returncode == 0
