"""What a run shows while it goes on."""

from __future__ import annotations

import io

import pytest

from taskfactory.fleet.orders import Order, Step
from taskfactory.fleet.progress import Lines, Pace, Table, duration
from taskfactory.store.records import Run

RUN = Run("r1", "run", "2026-01-01", "here", "0", {})
ORDER = Order(1, 1, "row-scale [ann] #1", "t", "s", "cpu")


@pytest.mark.parametrize(("seconds", "text"), [(12.4, "12 s"), (200, "3 min 20 s"), (3900, "1 h 05 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_pace_counts_what_was_done_before_but_judges_speed_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("taskfactory.fleet.progress.time.monotonic", lambda: now[0])
    pace = Pace()
    pace.begin(total=100, done=40)
    assert pace.text() == "40/100"
    pace.finished, now[0] = 10, 60.0
    assert pace.text() == "50/100, 10.0 a minute, 5 min 00 s left"


def test_lines_for_a_log() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.begin(RUN, 2, 1, 4)
    lines.finished(ORDER, "passed", "cpu-0")
    lines.note("odd")
    first, second, third = stream.getvalue().splitlines()
    assert first == "run r1: 1 of 2 to grade, 4 at a time"
    assert second.endswith("row-scale [ann] #1: passed (cpu-0)")
    assert third == "note: odd"


def test_the_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "110")
    stream = io.StringIO()
    with Table(stream) as table:
        table.begin(RUN, 3, 1, 2)
        table.step(Step(ORDER, "GPU-0", "timing", 3, 64))
        table.finished(Order(2, 1, "x", "t", "s", "cpu"), "runtime_error", "GPU-1")
        table.live.refresh()
        table.note("a [worker] [/died]")
    text = stream.getvalue()
    parts = ("run r1, 2 at a time", "row-scale [ann] #1", "timing 4/64", "1 runtime error", "2/3", "a [worker] [/died]")
    for part in parts:
        assert part in text
