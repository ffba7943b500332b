"""bench/dram.py: what ncu writes is understood, and where there is no ncu, or no right to counters, that is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TABLE = """\
==PROF== Connected to process 4711 (python3)
==PROF== Profiling "_forward": 0%....100% - 1 pass
"ID","Process ID","Kernel Name","Grid Size","Device","dram__bytes_read.sum","dram__bytes_write.sum"
"","","","","","byte","byte"
"0","4711","_forward(float *, int)","(132, 1, 1)","0","1,024,000","512"
==PROF== Disconnected from process 4711
"1","4711","_rest","(1, 1, 1)","0","2048.0","0"
"""
FACTS = 'dram.py: {"metric": "GB/s", "counted_bytes": 2000000.0, "floor_bytes": 1000000.0}'


@pytest.fixture(autouse=True, scope="module")
def _bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "bench"))
    yield
    sys.path.remove(str(ROOT / "bench"))


def test_launches_are_read_off_a_table():
    import dram

    kernels = dram.parse(TABLE)
    assert [kernel.name for kernel in kernels] == ["_forward(float *, int)", "_rest"]
    assert [(kernel.read_bytes, kernel.write_bytes) for kernel in kernels] == [(1_024_000, 512), (2048, 0)]
    large = dram.parse(TABLE.replace('"byte","byte"', '"Mbyte","Kbyte"'))
    assert (large[1].read_bytes, large[0].write_bytes) == (2_048_000_000, 512_000)
    assert dram.parse(TABLE.partition('"0",')[0]) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"ID"', '"Id"'), "no table"),
        (("dram__bytes_write.sum", "dram__bytes.sum"), "lacks dram__bytes_write.sum"),
        (('"byte","byte"', '"byte","sector"'), "'sector'"),
        (('"2048.0"', '"n/a"'), "'n/a'"),
        ((',"2048.0","0"', ',"2048.0"'), "6 columns"),
    ],
)
def test_what_is_no_table_is_told_apart(change, said):
    import dram

    with pytest.raises(dram.Unreadable, match=said):
        dram.parse(TABLE.replace(*change))


def run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script, with a search path on which only one folder lies."""
    environment = {**os.environ, "PATH": str(path)}
    argv = [sys.executable, str(ROOT / "bench" / "dram.py"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=60)


def played(folder: Path, body: str) -> Path:
    """A folder with an ncu that is played."""
    ncu = folder / "ncu"
    ncu.write_text(f"#!{sys.executable}\nimport sys\nargs = sys.argv\n{body}\n", "utf-8")
    ncu.chmod(0o755)
    return folder


def test_a_table_and_a_file_come_out(tmp_path):
    body = f"""
if "--version" in args:
    print("NVIDIA ncu\\nVersion 1")
    sys.exit()
assert args[args.index("--profile-from-start") + 1] == "off"
assert args[-6:-2] == ["based-forward", "--drive", "--shapes", "measure"]
open(args[args.index("--log-file") + 1], "w").write({TABLE!r})
print({FACTS!r})
"""
    target = tmp_path / "dram.json"
    place = played(tmp_path, body)
    ended = run(place, "based-forward", "--shapes", "measure", "--number", "2", "--json", str(target))
    assert ended.returncode == 0, ended.stderr
    report = json.loads(target.read_text("utf-8"))
    assert report["ncu"] == "Version 1"
    row = report["rows"][0]
    assert (row["task"], row["number"], row["read_bytes"], row["write_bytes"]) == ("based-forward", 2, 1_026_048, 512)
    assert row["of_counted"] == pytest.approx(0.51328)
    assert "0.513" in ended.stdout


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("print('==ERROR== ERR_NVGPUCTRPERM - no permission')", 3, "counters are kept from this user"),
        ("print('ModuleNotFoundError: triton', file=sys.stderr); sys.exit(1)", 1, "ModuleNotFoundError: triton"),
        (f"print({FACTS!r})", 1, "no table"),
    ],
)
def test_failures_are_named(tmp_path, body, status, said):
    ended = run(played(tmp_path, body), "cache-hit-skip-gate")
    assert ended.returncode == status
    assert said in ended.stdout


def test_without_ncu_nothing_is_measured_and_that_is_said(tmp_path, monkeypatch, capsys):
    import dram

    monkeypatch.setattr(dram, "PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["dram.py"])
    assert dram.main() == 3
    assert "needs ncu" in capsys.readouterr().err


def test_an_unknown_task_is_refused(tmp_path):
    ended = run(played(tmp_path, ""), "no-such-task")
    assert (ended.returncode, "no such task" in ended.stderr) == (2, True)
