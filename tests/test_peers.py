"""Tests of bench/peers and bench/performance.py: what they do with peers, on the CPU and with a clock of our own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True, scope="module")
def _bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "bench"))
    yield
    sys.path.remove(str(ROOT / "bench"))


class Turns:
    """A clock that notes who was called; every call takes as many milliseconds as its number of calls so far."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def timed(self, call: Callable[[], Any]) -> tuple[Any, Any]:
        self.calls.append(call)
        return call(), 1.0

    def read(self, tokens: Sequence[Any]) -> list[float]:
        return list(tokens)


def problem(task: str = "cache-hit-skip-gate", shape: tuple[int, ...] = (2, 20, 8, 6)) -> Any:
    import workbench
    from peers.contest import Problem

    loaded = workbench.load_task(task, workbench.spec_paths()[task], "cpu")
    return Problem(loaded, shape, loaded.inputs(shape))


def contestant(name: str, call: Callable[..., Any], role: str = "peer") -> Any:
    from peers.contest import Contestant

    return Contestant(name, role, "a toy", lambda p: lambda: call(*p.args))


def reference(toy: Any) -> Callable[..., Any]:
    return toy.task.space[toy.task.fields["func"]]


def test_order_alternates_forwards_and_backwards() -> None:
    from peers.contest import contest

    toy, clock = problem(), Turns()
    names: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            names.append(name)
            return reference(toy)(*args)

        return call

    entries = contest(toy, [contestant(n, noted(n)) for n in "abc"], clock, rounds=8, budget_ms=1e9)
    assert "".join(names[-24:]) == "abccba" * 4
    assert [len(e.times_ms) for e in entries] == [8, 8, 8]


def test_rounds_fit_the_budget_but_are_six_at_least() -> None:
    from peers.contest import contest

    toy = problem()
    for budget_ms, expected in ((9.0, 8), (0.1, 6)):
        [entry] = contest(toy, [contestant("a", reference(toy))], Turns(), rounds=20, budget_ms=budget_ms)
        assert len(entry.times_ms) == expected


def test_a_wrong_peer_is_caught_and_stands_in_no_ratio() -> None:
    from peers.contest import contest

    toy = problem()

    def off_by_one_token(hidden: Any, fresh: Any, cache: Any, hit: Any, block: int) -> Any:
        return reference(toy)(hidden, fresh, cache, hit, block + 1)

    right, wrong = contest(toy, [contestant("right", reference(toy)), contestant("wrong", off_by_one_token)], Turns())
    assert (right.status, right.error) == ("verified", 0.0)
    assert wrong.status == "wrong"
    assert wrong.message.startswith("out: NaN")  # the unread stream of the mixed inputs
    assert wrong.times_ms
    assert not wrong.counts


def test_a_peer_that_is_wrong_only_at_the_end_is_caught() -> None:
    from peers.contest import contest

    toy, calls = problem(), []

    def tires(*args: Any) -> Any:
        calls.append(1)
        out, kept = reference(toy)(*args)
        return (out, kept) if len(calls) < 5 else (out * 2, kept)

    [entry] = contest(toy, [contestant("tires", tires)], Turns())
    assert entry.status == "wrong"


def test_a_yardstick_is_not_verified() -> None:
    from peers.contest import contest

    toy = problem()
    [entry] = contest(toy, [contestant("nothing", lambda *args: None, "yardstick")], Turns())
    assert (entry.status, entry.error) == ("not verified", None)
    assert entry.counts


def test_whoever_cannot_run_is_reported_and_the_others_run() -> None:
    from peers.contest import Contestant, Unavailable, contest

    toy = problem()

    def missing(p: Any) -> Any:
        raise Unavailable("not on the path")

    def not_installed(p: Any) -> Any:
        import no_such_package  # noqa: F401

    def raises(*args: Any) -> Any:
        raise RuntimeError("no kernel image\nmore")

    def scribbles(hidden: Any, *rest: Any) -> Any:
        result = reference(toy)(hidden, *rest)
        hidden.add_(1)
        return result

    entries = contest(
        toy,
        [
            Contestant("missing", "peer", "", missing),
            Contestant("not installed", "peer", "", not_installed),
            contestant("raises", raises),
            contestant("ours", reference(toy), "solution"),
            contestant("scribbles", scribbles),
        ],
        Turns(),
    )
    assert [e.status for e in entries] == ["unavailable", "unavailable", "failed", "verified", "failed"]
    assert entries[0].message == "not on the path"
    assert "no_such_package" in entries[1].message
    assert entries[2].message == "RuntimeError: no kernel image"
    assert "inputs" in entries[4].message
    assert [bool(e.times_ms) for e in entries] == [False, False, False, True, False]


def test_flash_mla_and_fla_are_unavailable_where_they_are_not_installed() -> None:
    from peers import based, sparse_mla
    from peers.contest import Unavailable

    toy = problem("deepseek-v32-sparse-mla-decode", (2, 64, 64, 512, 64, 128))
    with pytest.raises(Unavailable, match=r"install\.py"):
        sparse_mla.CONTESTANTS[0].prepare(toy)
    narrow = problem("deepseek-v32-sparse-mla-decode", (2, 64, 4, 128, 32, 128))
    with pytest.raises(Unavailable, match="multiples of 64"):
        sparse_mla.CONTESTANTS[0].prepare(narrow)
    with pytest.raises(Unavailable, match=r"install\.py"):
        based.CONTESTANTS[0].prepare(problem("based-forward", (1, 64, 1, 8, 16)))


def test_the_vectorised_mask_is_the_task() -> None:
    import workbench
    from peers.adaptive_mask import vectorised

    toy = problem("adaptive-sparsity-threshold", (1, 3, 3, 4, 6))
    assert workbench.judge(toy.task, toy.task.reference(toy.args), (), vectorised(*toy.args)) == ("", 0.0)


def test_tiled_convolutions_are_the_task_and_the_whole_canvas_is_not() -> None:
    import workbench
    from peers.tiledconv3d import CONTESTANTS

    toy = problem("conv3d-tiled-decode-blend", (4, 6, 2, 20, 28, 12, 8))
    expected, regions = toy.task.reference(toy.args), toy.task.regions(toy.args)
    for found in CONTESTANTS:
        failure, _ = workbench.judge(toy.task, expected, regions, found.prepare(toy)())
        assert bool(failure) == (found.role == "yardstick"), found.name


def test_every_solution_has_peers_and_the_ones_named_are_there() -> None:
    import workbench
    from peers.command import contestants

    for name, path in workbench.spec_paths().items():
        found = contestants(workbench.load_task(name, path, "cpu"))
        assert [c.role for c in found].count("solution") == 1
        assert any(c.role == "peer" for c in found), name


def test_no_device_is_said_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from peers.command import main

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 3
    assert "CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("broken", [False, True])
def test_a_whole_run_without_a_device(broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import functools

    import torch
    import workbench
    from peers import command, contest
    from peers.record import load

    def solution(toy: Any) -> Any:
        if broken:
            raise RuntimeError("no such kernel")
        return lambda: reference(toy)(*toy.args)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(contest, "_wait", lambda: None)
    monkeypatch.setattr(command, "EventClock", Turns)
    monkeypatch.setattr(command, "measure_ceilings", lambda: {"copy_gbps": 10.0, "matmul_tflops": 1.0})
    monkeypatch.setattr(command, "environment", lambda device: {"device": device, "torch": "2"})
    monkeypatch.setattr(command, "_solution", solution)
    monkeypatch.setattr(workbench, "load_task", functools.partial(workbench.load_task, device="cpu"))
    path = tmp_path / "peers.json"
    shapes = ["--shape", "4,6,2,20,28,12,8", "--shape", "1,2,3"]  # the second one is no shape of this task
    assert command.main(["conv3d-tiled-decode-blend", *shapes[:2], "--json", str(path)]) == int(broken)
    [record] = load(path).shapes
    assert [e.status for e in record.entries if e.role == "peer"] == ["verified"] * 4
    assert record.entries[0].status == ("failed" if broken else "verified")
    assert (record.ratio("peer") is None) == broken
    assert command.main(["conv3d-tiled-decode-blend", *shapes, "--json", str(path)]) == 1
    assert [bool(record.failure) for record in load(path).shapes] == [False, True]
    assert command.main(["based-forward", "--first", "1", "--deadline", "0", "--json", str(path)]) == 1
    assert "not run" in load(path).shapes[0].failure


def test_the_recorded_command_names_no_place_of_this_machine() -> None:
    from peers.command import _reproducible

    given = ["based-forward", "--json", "/a/b.json", "--site=/c", "--rounds", "8", "--commit", "abc"]
    assert _reproducible(given) == ["based-forward", "--rounds", "8"]


def test_a_record_survives_its_file_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    from peers.record import RecordError, dumps, load

    run = sample_run()
    path = tmp_path / "peers.json"
    path.write_text(dumps(run), "utf-8")
    assert load(path) == run
    whole = json.loads(path.read_text("utf-8"))
    for damage in (
        {"schema": 2},
        {"surplus": 1},
        {"shapes": [{**whole["shapes"][0], "entries": [{**whole["shapes"][0]["entries"][0], "status": "fine"}]}]},
        {"shapes": [{"task": "only this", "entries": []}]},
    ):
        path.write_text(json.dumps({**whole, **damage}), "utf-8")
        with pytest.raises(RecordError):
            load(path)


def test_the_table_tells_ratios_and_who_is_missing() -> None:
    from peers.table import shape_lines, summary

    run = sample_run()
    text = "\n".join([*map(shape_lines, run.shapes), summary(run)])
    assert "wrong: relative error" in text
    assert "fast 500.0, 2.000" in text
    assert "copy 1250.0, 0.800" in text
    assert "not compared: toy: gone: unavailable: not installed" in text
    assert "failed: OutOfMemoryError" in text


def results_with(folder: Path, *runs: Any) -> Any:
    import performance
    from peers.record import dumps

    day = folder / "2030-01-02"
    day.mkdir()
    (folder / "2031-01-01").mkdir()  # newer, but without a record
    for number, run in enumerate(runs):
        (day / f"peers-{number}.json").write_text(dumps(run), "utf-8")
    grading = {
        "task": "toy",
        "status": "passed",
        "shapes": [
            {"kind": "graded", "shape": [4, 8], "bounded": True, "metric": 987.6, "fraction_of_limit": 0.888},
            {"kind": "graded", "shape": [4, 9], "bounded": False, "metric": None, "fraction_of_limit": None},
        ],
    }
    (day / "graded-toy.json").write_text(json.dumps(grading), "utf-8")
    return performance.newest(folder)


def test_the_page_shows_rates_ratios_and_what_is_missing(tmp_path: Path) -> None:
    import performance

    text = performance.render(results_with(tmp_path, sample_run()))
    row = "| graded | 4, 8 | 1000 | 0.900 | 1.0e-03 | fast | 500 | 2 | copy | 1250 | 0.8 | 988 | 0.888 |"
    assert row in text
    assert "| graded | 4, 9 | – | – | – | – | – | – | – | – | – | – | – |" in text
    assert "not compared: cheat: wrong: relative error" in text
    assert "not compared: gone: unavailable: not installed" in text
    assert "not run: 4, 9: OutOfMemoryError: x" in text
    assert "| `toy` | – GB/s | – | 2 to 2 | not compared |" in text


def test_no_figure_of_a_grading_that_did_not_pass(tmp_path: Path) -> None:
    import performance

    results = results_with(tmp_path, sample_run())
    results.graded["toy"] |= {"status": "infrastructure_error", "message": "noisy"}
    text = performance.render(results)
    assert "988" not in text
    assert "no times by the grader: infrastructure_error: noisy" in text


@pytest.mark.parametrize(("ours_ms", "verdict"), [(0.8, "yes"), (0.86, "no")])
def test_an_aim_holds_or_does_not(tmp_path: Path, ours_ms: float, verdict: str) -> None:
    import performance

    run = sample_run()
    run.shapes.pop()
    run.shapes[0].task = "cache-hit-skip-gate"
    run.shapes[0].entries[0].times_ms = [ours_ms]
    row = performance.summary_rows(results_with(tmp_path, run))[0]
    assert row[2:] == ["≥ 0.94 × best yardstick", f"{0.8 / ours_ms:.3g} to {0.8 / ours_ms:.3g}", verdict]


def test_a_later_run_replaces_a_shape_unless_it_failed(tmp_path: Path) -> None:
    first, second = sample_run(), sample_run()
    second.started_at = "2031-01-02T03:04:05Z"
    second.shapes[0].entries[0].times_ms = [4.0]
    second.shapes[1].failure = "again"
    records = results_with(tmp_path, second, first).tasks()["toy"]
    assert [record.failure for record in records] == ["", "OutOfMemoryError: x"]
    assert records[0].solution().median_ms == 4.0


def test_the_roofline_places_ours_and_the_best_peer() -> None:
    import xml.etree.ElementTree as ElementTree

    from roofline import draw, points

    run = sample_run()
    placed = points(run.shapes)
    assert [(entry.name, round(x, 6), round(y, 6)) for _, entry, x, y in placed] == [
        ("fast", 1e-3, 5e-4),
        ("ours", 1e-3, 1e-3),
    ]
    tree = ElementTree.fromstring(draw(run.shapes, run.ceilings, "a <device>"))
    circles = [c for c in tree.iter("{http://www.w3.org/2000/svg}circle") if len(c)]
    assert [c[0].text for c in circles] == ["toy (4, 8), fast: 500 GB/s", "toy (4, 8), ours: 1000 GB/s"]
    assert float(circles[0].get("cy", "")) > float(circles[1].get("cy", ""))  # slower is lower
    assert draw([], run.ceilings, "nothing measured").count("<circle") == 0


def test_the_committed_page_is_what_the_records_say() -> None:
    import performance

    results = performance.newest(performance.RESULTS)
    page = performance.PAGE.read_text("utf-8")
    assert performance.insert(page, performance.render(results)) == page
    assert performance.PICTURE.is_file() == (results is not None)


def sample_run() -> Any:
    """Two shapes of an invented task: ours takes 1 ms, a right peer 2, a wrong one 0.1; the second shape failed."""
    from peers.record import Entry, Run, ShapeRecord

    gigabyte = 1e9
    entries = [
        Entry("ours", "solution", "solutions/toy.py", "verified", "", 1e-3, gigabyte, 3.0, [1.0, 1.0, 1.5]),
        Entry("fast", "peer", "a note", "verified", "", 2e-3, gigabyte, 1.0, [2.0, 2.0, 2.0]),
        Entry("cheat", "peer", "a note", "wrong", "relative error 1 exceeds", 1.0, gigabyte, 1.0, [0.1, 0.1, 0.1]),
        Entry("gone", "peer", "a note", "unavailable", "not installed"),
        Entry("copy", "yardstick", "a note", "not verified", "", None, gigabyte, 1.0, [0.8, 0.8, 0.8]),
    ]
    shapes = [
        ShapeRecord("toy", "graded", [4, 8], "GB/s", gigabyte, [gigabyte, 1e6], 0.9, entries),
        ShapeRecord("toy", "graded", [4, 9], "GB/s", gigabyte, [gigabyte, 1e6], 0.9, failure="OutOfMemoryError: x"),
    ]
    environment = {"device": "a device", "driver": "1.2", "torch": "2", "triton": "3"}
    ceilings = {"copy_gbps": 1111.0, "matmul_tflops": 700.0}
    return Run("2030-01-02T03:04:05Z", "abc", "python bench/peers", environment, {}, ceilings, {}, 1.0, shapes)
