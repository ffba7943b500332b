"""bench/repeat.py and bench/plots.py: what is graded next, what is kept, what the spread is, and the pictures."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grader.toy import GOOD, write_task
from taskfactory.grader.result import Result, ShapeResult, Status

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True, scope="module")
def _bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "bench"))
    yield
    sys.path.remove(str(ROOT / "bench"))


def graded(task: str, score: float | None, *shape_ms: float) -> dict[str, Any]:
    import repeat

    shapes = [
        ShapeResult("graded", k + 1, [8], 1, 2, wall_ms=[ms + 0.5, ms + 0.5], delta_ms=ms / 50, score_ms=ms)
        for k, ms in enumerate(shape_ms)
    ]
    shapes.append(ShapeResult("correct", 1, [2], 1, 1))
    status = Status.INCORRECT if score is None else Status.PASSED
    result = Result(task, "1", "d", "GB/s", "s", "grade", status, timed=True, score=score, shapes=shapes)
    return repeat.kept(task, result, {"verifying": 3.0, "warming up": 2.0, "timing": 4.0}, 10.0)


def test_the_spread_of_scores_and_shapes() -> None:
    import repeat

    found = repeat.summary([graded("a", 100.0, 1.0, 2.0), graded("b", 7.0, 3.0), graded("a", 102.0, 1.0, 2.2)])
    assert found["a"]["cv"] == pytest.approx(2**0.5 / 101)
    assert found["a"]["shape_cv"]["1"] == 0.0
    assert found["a"]["shape_cv"]["2"] == pytest.approx(0.1 * 2**0.5 / 2.1)
    assert found["a"]["delta_share"] == {"1": pytest.approx(0.02), "2": pytest.approx(0.02)}
    assert found["b"]["cv"] is None  # one grading has no spread
    assert (found["a"]["wall_s"], found["a"]["compiling_s"]) == (10.0, 5.0)
    assert "without verifying and warming up, where compiling is: 10.0 s" in repeat.table(found)


def test_a_failed_grading_counts_as_failed_and_not_as_a_score() -> None:
    import repeat

    found = repeat.summary([graded("a", 100.0, 1.0), graded("a", None), graded("a", 100.0, 1.0)])["a"]
    assert (found["passed"], found["gradings"], found["cv"]) == (2, 3, 0.0)


def test_a_round_grades_every_task_once() -> None:
    import repeat

    done: list[dict[str, Any]] = []
    while (task := repeat.next_task(["a", "some/b"], done, 3)) is not None:
        done.append({"task": Path(task).name})
    assert len(done) == 6
    for start in (0, 2, 4):
        assert {grading["task"] for grading in done[start : start + 2]} == {"a", "b"}


def test_steps_are_timed_up_to_the_last() -> None:
    import repeat

    steps = repeat.Steps()
    for step in ("preparing", "timing", "timing"):
        steps(step, 0, 1)
    assert list(steps.close()) == ["starting", "preparing", "timing"]


def test_it_goes_on_where_it_stopped_and_refuses_another_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import repeat

    write_task(tmp_path / "row-scale" / "tests")
    (tmp_path / "row-scale" / "solution").mkdir()
    (tmp_path / "row-scale" / "solution" / "rows.py").write_text(GOOD)
    file = tmp_path / "found.json"
    command = ["repeat.py", "--device", "cpu", "--task", str(tmp_path / "row-scale"), "--json", str(file)]
    monkeypatch.setattr(sys, "argv", [*command, "--times", "1", "--commit", "one"])
    assert repeat.main() == 0
    first = json.loads(file.read_text("utf-8"))
    assert [grading["status"] for grading in first["gradings"]] == ["passed"]
    assert first["environment"]["torch"]
    assert repeat.main() == 0  # nothing is left to do
    assert json.loads(file.read_text("utf-8")) == first
    monkeypatch.setattr(sys, "argv", [*command, "--times", "2", "--commit", "one", "--stop-after", "0"])
    assert repeat.main() == 1  # not finished
    monkeypatch.setattr(sys, "argv", [*command, "--commit", "two"])
    with pytest.raises(SystemExit, match=r"'one'.*'two'"):
        repeat.main()
    assert "row-scale" in capsys.readouterr().out


def adversary_record() -> dict[str, Any]:
    rows = []
    for group, strategy, levels in (
        ("launch strategies", "default stream", (0.0,)),
        ("launch strategies", "tail", (0.1, 0.5)),
        ("launch strategies", "liar", (0.9, 0.1)),
        ("heat_the_device", "heat_the_device", (0.0,)),
    ):
        for level in levels:
            for passes, truth in ((4, 0.2), (20, 1.0)):
                facts = {"group": group, "strategy": strategy, "level": level, "passes": passes, "truth_ms": truth}
                times = {"t_ms": truth * 0.97, "delta_ms": 0.02, "accepted_ms": truth * 0.95, "claim_ms": truth}
                rows.append(facts | times | {"status": "incorrect" if level == 0.5 else "passed"})
    rows.append({**rows[0], "t_ms": None, "accepted_ms": None, "delta_ms": None, "status": "timeout"})
    return {"kind": "adversary", "commit": "abc", "environment": {"device": "a device"}, "rows": rows}


def test_pictures_are_the_same_for_the_same_figures(tmp_path: Path) -> None:
    import plots

    drawn = plots.draw_adversary(adversary_record(), tmp_path / "one")
    assert [path.name for path in drawn] == [
        "adversary-strategies.svg", "adversary-attacks.svg", "adversary-liar.svg",
    ]  # fmt: skip
    again = plots.draw_adversary(adversary_record(), tmp_path / "two")
    assert [path.read_bytes() for path in drawn] == [path.read_bytes() for path in again]
    for path in drawn:
        text = " ".join(ET.parse(path).getroot().itertext())
        assert "a device, commit abc" in text
        assert str(tmp_path) not in text


def test_the_picture_of_the_spread(tmp_path: Path) -> None:
    import plots
    import repeat

    gradings = [graded("first-task", score, 1.0) for score in (100.0, 101.0, 99.0)] + [graded("second-task", None)]
    record = {"kind": "repeat", "commit": "abc", "environment": {}, "tasks": repeat.summary(gradings)}
    (path,) = plots.draw_repeat(record, tmp_path)
    assert "CV 1.00%" in " ".join(ET.parse(path).getroot().itertext())
