"""What only shows when a spec's sources run: each check fires on the damage it is there for, at its line.

Most damage is examined in this process; whatever would take it along is run as `validate --run` does, in a child.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specimens import line_of
from taskfactory.checks.codes import CODES
from taskfactory.checks.dynamic import Outcome, run_all, run_dynamic
from taskfactory.checks.watch import Limits
from taskfactory.findings import Finding
from taskfactory.grader.confine import landlock
from taskfactory.load import SpecFile, load_spec

ROOT = Path(__file__).resolve().parents[1]
TOY = '''"""A toy: rows of x, scaled and shifted."""

from taskfactory import TaskSpec

SPEC = TaskSpec(
    name="toy",
    title="Scale and shift",
    blurb="b",
    keywords=("k",),
    module="toy_kernel.py",
    func="toy",
    signature="toy(x, shift, width, gain=2.0)",
    returns_doc="x, shift, width, gain",
    reference_imports="import torch",
    reference_src=\'\'\'
def toy(x, shift, width, gain=2.0):
    y = x.float() * gain + shift
    return y[:, :width].bfloat16(), x.argmax(1).to(torch.int32)
\'\'\',
    make_inputs_src=\'\'\'
def _mk(M, N, seed):
    rng = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(M, N, device="cuda", generator=rng)
    shift = torch.randn(N, device="cuda", generator=rng)
    return x, shift, N - 1
\'\'\',
    flops_src=\'\'\'
def canonical_work(M, N):
    """Bytes read and written."""
    return 4 * M * N + 2 * M * (N - 1)
\'\'\',
    cases_src=\'\'\'
def case_gain(M, N, seed):
    """Another gain."""
    return (*_mk(M, N, seed), 0.5)


def case_narrow(M, N, seed):
    """Half of the width; not for odd sizes."""
    x, shift, _ = _mk(M, N, seed)
    return None if N % 2 else (x, shift, N // 2)


def case_infinite(M, N, seed):
    """One entry is infinite."""
    x, shift, width = _mk(M, N, seed)
    x[0, 0] = float("inf")
    return x, shift, width
\'\'\',
    regions_src=\'\'\'
def regions(x, shift, width, gain=2.0):
    edge = torch.zeros(width, dtype=torch.bool, device=x.device)
    edge[0] = True
    return {"first_column": ("y", edge, 2e-2)}
\'\'\',
    alternates={
        "addcmul": \'\'\'
def addcmul(x, shift, width, gain=2.0):
    y = torch.add(shift[:width], x[:, :width], alpha=gain)
    return y, torch.sort(x, dim=1, stable=True).indices[:, -1].int()
\'\'\',
    },
    ablations={
        "no_shift": \'\'\'
def no_shift(x, shift, width, gain=2.0):
    return toy(x, torch.zeros_like(shift), width, gain)
\'\'\',
        "no_gain": \'\'\'
def no_gain(x, shift, width, gain=2.0):
    return toy(x, shift, width, 1.0)
\'\'\',
    },
    metric="GB/s",
    compare="tuple",
    tuple_names=("y", "best"),
    tol=1e-2,
    shape_names=("M", "N"),
    grader_shapes=((4096, 1001), (2048, 2003)),
    measure_shapes=((1024, 1000),),
    measure_quick_shapes=((64, 100),),
    correct_shapes=((16, 40), (5, 33)),
    spec_md="s",
    contract_md="c",
    regime_md="r",
    correctness_md="c",
    perf_md="p",
    precision_md="p",
)
'''

RETURN = "    return y[:, :width].bfloat16(), x.argmax(1).to(torch.int32)"
MADE = "    return x, shift, N - 1\n"
WORK = "    return 4 * M * N + 2 * M * (N - 1)"
RNG = 'torch.Generator(device="cuda").manual_seed(seed)\n    x ='
ALTERNATE = "    y = torch.add("

# (code, what is replaced by what, text on the line where the finding must be, words of its message)
DAMAGE = [
    ("TF601", [(RETURN, "    z = y / 0 if width > 38 else y.view(7, -1)\n" + RETURN)], "z = y / 0", "RuntimeError"),
    ("TF601", [(RETURN, "    raise SystemExit(0)")], "raise SystemExit", "SystemExit: 0"),
    ("TF601", [('reference_imports="import torch"', 'reference_imports="import torch, no_such_module"')],
     "reference_imports=", "ModuleNotFoundError"),
    ("TF601", [("    x[0, 0] = float", "    x[0, 99] = float")], "x[0, 99]", "case infinite at (5, 33)"),
    ("TF611", [("4 * M * N +", "4 * M * N * len((1, 2)) +"), ("def _mk", "def len(x):\n    return 9\n\n\ndef _mk")],
     "def canonical_work", "but evaluated"),
    ("TF611", [("4 * M * N +", "4 * M * N * len((1, 2)) +"),
               ("def _mk", "_MET = [0]\n\n\ndef len(x):\n    _MET[0] += 1\n    return _MET[0] > 6 or 2\n\n\ndef _mk")],
     "def canonical_work", "called twice"),
    ("TF611", [("4 * M * N +", "4 * M * N * len((1, 2)) +"), ("def _mk", "def len(x):\n    return 0.5\n\n\ndef _mk")],
     "def canonical_work", "not a positive int"),
    ("TF621", [(RNG, RNG.replace("x =", "x = torch.rand(1) +"))], "def _mk", "x differs for the same seed"),
    ("TF622", [("manual_seed(seed)", "manual_seed(7)")], "def _mk", "two seeds"),
    ("TF623", [(MADE, '    return x, shift, "wide"\n')],
     "def _mk", "a str in width"),
    ("TF623", [(MADE, "    return x, shift\n")], "def _mk", "no width"),
    ("TF623", [(MADE, "    return x, shift, N - 1, 2.0, 3\n")], "def _mk", "5 arguments for 4"),
    ("TF623", [(MADE, "    return x, [[shift]], N - 1\n")], "def _mk", "a list in shift"),
    ("TF624", [("return None if N % 2 else", "return None if N else")], "def case_narrow", "case_narrow"),
    ("TF625", [('    """Another gain."""\n', "")], "def case_gain", "docstring"),
    ("TF626", [("seed), 0.5)", "seed), 2.0)")], "def case_gain", "case_gain"),
    ("TF631", [(RETURN, "    return y[:, :width].bfloat16()")], "def toy", "a Tensor, not a tuple"),
    ("TF631", [(RETURN, RETURN.replace(", x.argmax", ", y, x.argmax"))], "def toy", "3 outputs"),
    ("TF631", [(RETURN, RETURN.replace("bfloat16()", "double()"))], "def toy", "float64"),
    ("TF631", [(RETURN, RETURN.replace("x.argmax(1).to(torch.int32)", "None"))], "def toy", "NoneType for best"),
    ("TF632", [(RETURN, "    y = y + 1e-3 * torch.rand(1)\n" + RETURN)], "def toy", "two calls differ"),
    ("TF633", [(RETURN, "    shift.data += 1\n" + RETURN)], "def toy", "writes into shift"),
    ("TF633", [(ALTERNATE, "    x += 0.0 * x + 1e-9\n    shift += 1e-5\n" + ALTERNATE)], "def addcmul", "writes into"),
    ("TF634", [("+ shift\n", "+ shift.log()\n")], "def toy", "of y are NaN"),
    ("TF641", [("+ shift\n", "+ 0 * shift\n")], "def toy", "'shift' never changes"),
    ("TF642", [("shift = torch.randn(N, device=\"cuda\", generator=rng)", "shift = torch.linspace(1, 2, N)")],
     "def _mk", "'shift' is the same"),
    ("TF642", [(MADE, "    return x, shift, N - 1, 3.0\n"), ("(*_mk(M, N, seed), 0.5)", "_mk(M, N, seed + 5)"),
               ("shift, _ = _mk(", "shift, _, _ = _mk("), ("shift, width = _mk(", "shift, width, _ = _mk("),
               ("shift, N // 2)", "shift, N // 2, 3.0)"),
               ("return x, shift, width\n", "return x, shift, width, 3.0\n")],
     "def _mk", "'gain' is 3.0 in every call"),
    ("TF225", [("(*_mk(M, N, seed), 0.5)", "_mk(M, N, seed + 5)")], "def _mk", "default value 2.0"),
    ("TF643", [("+ shift\n", "+ 1e-3 * shift\n"), (ALTERNATE + "shift", ALTERNATE + "1e-3 * shift")],
     "def _mk", "ignoring 'shift'"),
    ("TF651", [("* gain + shift", "* gain * 0 + shift * 0"), (", x.argmax(1)", ", 0 * x.argmax(1)")],
     "def toy", "zeros pass"),
    ("TF651", [("* gain + shift", "* gain * 0 + 3 + shift * 0"), (", x.argmax(1)", ", 4 + 0 * x.argmax(1)")],
     "def toy", "mean) pass"),
    ("TF652", [(", x.argmax(1)", ", 0 * x.argmax(1)"), ("indices[:, -1]", "indices[:, -1] * 0")],
     "def toy", "zeros pass for best"),
    ("TF653", [(ALTERNATE, ALTERNATE.replace("y = ", "y = 1.1 * "))], "def addcmul", "y: relative error 0.1"),
    ("TF653", [("indices[:, -1].int()", "indices[:, -1]")], "def addcmul", "dtype int64"),
    ("TF653", [(ALTERNATE, "    shift = shift[99]\n" + ALTERNATE)], "shift = shift[99]", "IndexError"),
    ("TF653", [("def addcmul", "import no_such_module\n\n\ndef addcmul")], "import no_such_module", "ModuleNotFound"),
    ("TF654", [("torch.zeros_like(shift), width", "shift * 1.0001, width")], "def no_shift", "(16, 40) with E = "),
    ("TF655", [("torch.zeros_like(shift), width", "shift * (x.shape[1] % 2), width")], "def no_shift", "(5, 33)"),
    ("TF656", [("toy(x, shift, width, 1.0)", "toy(x, shift, width - 1, 1.0)")], "def no_gain", "for its form"),
    ("TF656", [("toy(x, shift, width, 1.0)", "toy(x, shift)")], "return toy(x, shift)", "TypeError"),
    ("TF661", [('("y", edge, 2e-2)', '("z", edge, 2e-2)')], "def regions", "names the output 'z'"),
    ("TF661", [('("y", edge, 2e-2)', '("best", edge, 2e-2)')], "def regions", "compared exactly"),
    ("TF661", [("dtype=torch.bool", "dtype=torch.uint8")], "def regions", "not a bool tensor"),
    ("TF661", [("torch.zeros(width,", "torch.zeros(width + 1,")], "def regions", "does not broadcast"),
    ("TF661", [('("y", edge, 2e-2)', '("y", edge, 2)')], "def regions", "tolerance 2"),
    ("TF661", [('return {"first_column": ("y", edge, 2e-2)}', "return [edge]")], "def regions", "a list, not a dict"),
    ("TF661", [("edge[0] = True", "edge[999] = True")], "edge[999]", "IndexError"),
    ("TF662", [("    edge[0] = True\n", "")], "def regions", "'first_column' selects nothing"),
]  # fmt: skip

MIX = '''    timed_src=\'\'\'
def mix(M, N, seed):
    """Some rows are four times as large."""
    x, shift, width = _mk(M, N, seed)
    rng = torch.Generator(device=x.device).manual_seed(seed + 1)
    large = torch.rand(M, 1, device=x.device, generator=rng) < 0.3
    return torch.where(large, 4 * x, x), shift, width
\'\'\',
'''
MIXED = "    return torch.where(large, 4 * x, x), shift, width\n"

# The same for the source of mixed inputs.
MIX_DAMAGE = [
    ("TF601", [(MIXED, "    return x[0, 99]\n")], "return x[0, 99]", "the mixed inputs at"),
    ("TF621", [("torch.where(large, 4 * x, x)", "torch.where(large, 4 * x, x) + torch.rand(())")],
     "def mix", "the mixed inputs"),
    ("TF622", [("_mk(M, N, seed)", "_mk(M, N, 3)"), ("manual_seed(seed + 1)", "manual_seed(5)")],
     "def mix", "mix returns the same arguments"),
    ("TF623", [(MIXED, "    return None\n")], "def mix", "mix returns a NoneType"),
    ("TF623", [(MIXED, "    return x, shift\n")], "def mix", "mix returns no width"),
    ("TF625", [('    """Some rows are four times as large."""\n', "")], "def mix", "mix has no docstring"),
    ("TF626", [(MIXED, "    return x, shift, width\n")], "def mix", "mix returns the arguments of _mk"),
    ("TF627", [(MIXED, "    return 2 * x[:-1], shift, width\n")], "def mix", "makes x float32 (4, 33), and _mk"),
    ("TF627", [(MIXED, "    return 2 * x.double(), shift, width\n")], "def mix", "makes x float64 (5, 33)"),
    ("TF627", [(MIXED, "    return 2 * x.T.contiguous().T, shift, width\n")], "def mix", "with strides (1, 5)"),
    ("TF627", [(MIXED, "    return 2 * x, shift, width - 1\n")], "def mix", "makes width 31, and _mk 32"),
    ("TF627", [(MIXED, "    return 2 * x, shift, width, 2.0\n")], "def mix", "returns 4 arguments, and _mk 3"),
    ("TF634", [(MIXED, "    return x / 0.0, shift, width\n")], "def toy", "on the mixed inputs"),
    ("TF651", [("4 * x, x), shift, width", "0 * x, 0 * x), 0 * shift, width")], "def toy", "zeros pass on the mixed"),
    ("TF657", [(MIXED, "    return torch.where(large, 4 * x, x), 0 * shift, width\n")],
     "def no_shift", "passes on the mixed"),
]  # fmt: skip

IN_A_CHILD = [
    ("TF602", "    while True: pass\n", "while True", "stopped after 3 s: the reference"),
    ("TF603", "    import os\n    os._exit(0)\n", "os._exit(0)", "status 0"),
    ("TF603", "    import ctypes\n    ctypes.string_at(8)\n", "ctypes.string_at(8)", "SIGSEGV"),
    ("TF603", "    import os\n    os.write(int(__import__('sys').argv[1]), b'[1]\\\\n' * 9)\n", "", "own pipe"),
    ("TF604", "    while True: print('x' * 999)\n", "print('x' * 999)", "after printing 64 KiB"),
    ("TF601", "    import os\n    os.fork()\n", "os.fork()", "must not start processes"),
    ("TF605", "    import subprocess, time\n"
     "    [subprocess.Popen(['sleep', '99']) for _ in range(99)] and time.sleep(99)\n", "range(99)", "without end"),
    ("TF605", "    if x.shape[0] == 5:\n        import subprocess\n"
     "        subprocess.Popen(['setsid', 'sleep', '99'])\n", "", "still there at the end"),
    ("TF601", "    torch.empty(1 << 40, dtype=torch.uint8).fill_(1)\n", "torch.empty(1 << 40", "allocate memory"),
]  # fmt: skip


def write(folder: Path, *changes: tuple[str, str]) -> SpecFile:
    """The toy with strings replaced, each of which must occur."""
    text = TOY
    for old, new in changes:
        assert old in text, f"the toy does not contain {old!r}"
        text = text.replace(old, new, 1)
    path = folder / "toy.py"
    path.write_text(text, "utf-8")
    return load_spec(path)


def mixed(folder: Path, *changes: tuple[str, str]) -> SpecFile:
    """The toy with mixed inputs, in whose source strings are replaced."""
    source = MIX
    for old, new in changes:
        assert old in source, f"mix does not contain {old!r}"
        source = source.replace(old, new, 1)
    return write(folder, ("    cases_src=", source + "    cases_src="))


def examine(file: SpecFile, **options) -> tuple[list[Finding], dict]:
    """In this process; threads and the like are those of the tests."""
    from taskfactory.checks.experiments import examine as run

    return run(file, **options)


def in_child(file: SpecFile, **limits) -> Outcome:
    return run_all([file], limits=Limits(**limits), progress=lambda _: None)[0]


def shown(findings: list[Finding]) -> str:
    return "\n".join(finding.headline() for finding in findings) or "nothing"


def test_a_sound_spec_has_no_findings_and_has_figures(tmp_path):
    findings, figures = examine(write(tmp_path))
    assert findings == []
    assert 1e-4 < figures["alternates"]["addcmul"]["error"] < 5e-3
    assert 2 < figures["alternates"]["addcmul"]["margin"] < 50
    assert {name: len(rows) for name, rows in figures["ablations"].items()} == {"no_shift": 2, "no_gain": 2}
    assert all(row["rejected"] and row["times_gate"] > 3 for rows in figures["ablations"].values() for row in rows)
    assert set(figures["trivial_times_gate"]) == {"zeros", "constants (each output's mean)"}
    json.dumps(figures, allow_nan=False)


def test_memory_of_graded_shapes_without_having_it(tmp_path):
    findings, figures = examine(write(tmp_path, ("(4096, 1001)", "(4000000, 10001)")))
    (large, small) = figures["memory"]
    assert large["method"] == small["method"] == "dry run"
    assert large["parts_gb"]["inputs"] == pytest.approx(160.016, rel=1e-3)
    assert large["parts_gb"]["outputs"] == pytest.approx(80.016, rel=1e-3)
    assert large["parts_gb"]["working"] > 300  # two fp32 copies and the result
    assert [(f.code, f.field, f.line) for f in findings] == [
        ("TF671", "grader_shapes.0", line_of(TOY, "grader_shapes="))
    ]


def test_memory_is_scaled_where_a_source_looks_at_values(tmp_path):
    file = write(tmp_path, ("    y = x.float()", "    assert x.sum().item() < 1e9\n    y = x.float()"))
    _, figures = examine(file)
    straight = examine(write(tmp_path))[1]["memory"]
    for scaled, dry in zip(figures["memory"], straight, strict=True):
        assert scaled["method"] == "scaled"
        assert scaled["parts_gb"]["inputs"] == dry["parts_gb"]["inputs"]
        assert scaled["parts_gb"]["working"] == pytest.approx(dry["parts_gb"]["working"], rel=0.15)


@pytest.mark.parametrize(("code", "changes", "where", "words"), MIX_DAMAGE, ids=[f"{d[0]}-{d[3]}" for d in MIX_DAMAGE])
def test_damage_of_mixed_inputs_is_found_at_its_line(tmp_path, code, changes, where, words):
    file = mixed(tmp_path, *changes)
    found = [f for f in examine(file)[0] if f.code == code and words in f.message]
    assert found, shown(examine(file)[0])
    assert line_of(file.text, where) in [finding.line for finding in found]


def test_sound_mixed_inputs_have_no_findings(tmp_path):
    findings, figures = examine(mixed(tmp_path))
    assert shown(findings) == "nothing"
    assert all(row["rejected"] for rows in figures["ablations"].values() for row in rows)


@pytest.mark.parametrize(("code", "changes", "needle", "words"), DAMAGE, ids=[f"{row[0]}-{row[3]}" for row in DAMAGE])
def test_damage(tmp_path, code, changes, needle, words):
    file = write(tmp_path, *changes)
    findings, _ = examine(file)
    found = [finding for finding in findings if finding.code == code and words in finding.message]
    assert found, shown(findings)
    assert len(found) == 1, shown(findings)
    assert found[0].line == line_of(file.text, needle), shown(found)
    assert found[0].severity == CODES[code].severity
    assert found[0].path == file.path


@pytest.mark.parametrize(("code", "body", "needle", "words"), IN_A_CHILD, ids=[row[3] for row in IN_A_CHILD])
def test_a_child_that_goes_wrong_is_a_finding(tmp_path, code, body, needle, words):
    file = write(tmp_path, ("    y = x.float()", body + "    y = x.float()"))
    started = time.monotonic()
    before = {int(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    outcome = in_child(file, step_s=3.0 if code == "TF602" else 30.0, printed_bytes=1 << 16, memory_bytes=4 << 30)
    found = [finding for finding in outcome.findings if finding.code == code and words in finding.message]
    assert found, shown(outcome.findings)
    if needle:
        assert found[0].line == line_of(file.text, needle), shown(found)
        assert found[0].field == "reference_src"
    assert time.monotonic() - started < 60  # far less than what the source would take
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in before and _is_sleep(pid)]


def _is_sleep(pid: str) -> bool:
    try:
        return Path("/proc", pid, "cmdline").read_bytes() == b"sleep\x0099\x00"
    except OSError:
        return False


def test_the_command_reports_the_line_of_the_spec_and_shows_no_progress(tmp_path):
    file = write(tmp_path, (RETURN, "    oops = [1][x.shape[0]]\n" + RETURN))
    run = subprocess.run(
        [sys.executable, "-m", "taskfactory", "validate", "--run", "--json", str(file.path)],
        env={"PYTHONPATH": str(ROOT / "tools"), "PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stderr == ""
    found = [f for f in json.loads(run.stdout)["findings"] if f["code"].startswith("TF6")]
    assert [(f["code"], f["line"], f["field"]) for f in found] == [
        ("TF601", line_of(file.text, "oops = "), "reference_src")
    ]
    assert "IndexError: list index out of range" in found[0]["message"]


def test_nothing_of_the_callers_environment_reaches_the_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "secret")
    look = "    import os\n    assert 'SOME_TOKEN' in os.environ\n"
    file = write(tmp_path, ("    y = x.float()", look + "    y = x.float()"))
    found = run_dynamic([file], progress=lambda _: None)
    assert [finding.code for finding in found] == ["TF601"]
    assert "AssertionError" in found[0].message


def test_sources_reach_neither_files_nor_network(tmp_path):
    if sys.platform != "linux" or landlock.abi() < 1:
        pytest.skip("needs Landlock")
    tries = (
        "    import os, socket\n"
        "    said = []\n"
        f"    for what in (lambda: open({str(tmp_path / 'new')!r}, 'w'), lambda: open('/etc/passwd2', 'w'),\n"
        "                 lambda: os.listdir('/home'), lambda: os.kill(os.getppid(), 0),\n"
        "                 lambda: socket.create_connection(('127.0.0.1', 9), 1)):\n"
        "        try:\n            said.append(what())\n"
        "        except OSError as error:\n            said.append(type(error).__name__)\n"
        "    raise ValueError(said)\n"
    )
    (found,) = in_child(write(tmp_path, ("    y = x.float()", tries + "    y = x.float()"))).findings
    assert f"ValueError: {['PermissionError'] * 5}" in found.message
    assert not (tmp_path / "new").exists()


def test_an_alternate_may_decline_inputs(tmp_path):
    decline = "    if gain != 2.0:\n        raise NotImplementedError\n    y = 1.1 * torch.add("
    half = "    if gain != 2.0:\n        raise NotImplementedError\n    y = torch.add("
    assert examine(write(tmp_path, (ALTERNATE, half)))[0] == []
    assert [f.code for f in examine(write(tmp_path, (ALTERNATE, decline)))[0]] == ["TF653"]


def test_an_ablation_may_need_a_case(tmp_path):
    """A feature that the default inputs leave idle is seen by the case that uses it."""
    file = write(tmp_path, ("toy(x, shift, width, 1.0)", "toy(x, shift, width, 2.0)"))
    findings, figures = examine(file)
    assert findings == []
    assert {row["case"] for row in figures["ablations"]["no_gain"]} == {"gain"}


def test_importing_the_parent_brings_no_torch_along():
    code = "import sys; import taskfactory.checks.dynamic; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / "tools")})


def test_each_dynamic_code_is_tested_here():
    text = Path(__file__).read_text("utf-8")
    assert set(re.findall(r'"(TF6\d\d)"', text)) == {code for code in CODES if code.startswith("TF6")}
