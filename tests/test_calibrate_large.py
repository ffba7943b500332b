"""What runs at measure and graded shapes on a GPU, played on the CPU with small ones: the child and the stopwatch."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
import torch

import specimens
from calibrating import SEED, changed
from taskfactory.calibrate import child, timing
from taskfactory.calibrate.quality import large_shapes
from taskfactory.checks.lab import Lab
from taskfactory.load import SpecFile, load_spec

SMALL = {"grader_shapes": ((5, 40), (6, 40)), "measure_shapes": ((4, 40), (7, 40), (8, 40))}


class Channel:
    """Keeps what a child says."""

    def __init__(self) -> None:
        self.said: list[dict] = []

    def send(self, **message) -> None:
        self.said.append(message)

    def of(self, kind: str) -> list:
        return [message[kind] for message in self.said if kind in message]


class Event:
    """A CUDA event by the wall clock."""

    def __init__(self, **_) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def toy(tmp_path) -> SpecFile:
    return changed(load_spec(specimens.write(tmp_path, specimens.text())), **SMALL)


@pytest.fixture
def played(monkeypatch):
    """torch.cuda as far as the stopwatch uses it."""
    for name, fake in {"Event": Event, "synchronize": lambda: None, "empty_cache": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, fake)


def test_graded_and_measure_shapes_come_in_turn(toy):
    assert [kind for kind, _ in large_shapes(toy.spec)] == ["graded", "measure", "graded", "measure", "measure"]


def test_a_child_measures_large_shapes_last_and_each_subject_there(toy, monkeypatch):
    monkeypatch.setattr(child, "forbid_forks", lambda _: None)
    channel = Channel()
    extra = [list(shape) for _, shape in large_shapes(toy.spec)]
    job = {"path": str(toy.path), "spec": toy.spec.as_dict(), "lines": dict(toy.lines), "text": toy.text}
    job |= {"device": "cpu", "seeds": [SEED], "shapes": [[3, 129]], "small": False, "memory_share": 1.0}
    job |= {"extra": extra, "beyond_s": 60.0, "skip": [], "start": 0, "lost": []}
    child._measure(channel, job, None)
    assert "failed" not in {kind for message in channel.said for kind in message}
    assert channel.said[-1] == {"done": True}
    (samples,) = channel.of("samples")
    assert [shape for _, shape, _, _ in samples[-5:]] == extra
    assert channel.of("gap") == []
    last = len(samples) - 1
    measured = {reading["subject"] for reading in channel.of("reading") if reading["sample"] == last}
    assert {"reference.float64", *(f"alternates.{name}" for name in toy.spec.alternates)} <= measured
    assert {f"ablations.{name}" for name in toy.spec.ablations} <= measured


def test_the_stopwatch_times_all_at_all_shapes(toy, played):
    channel = Channel()
    job = {"shapes": [list(shape) for _, shape in large_shapes(toy.spec)], "solution": "", "budget_s": 5.0, "known": []}
    timing._time_all(channel, job, Lab(toy), torch.empty(8))
    assert channel.of("gap") == []
    names = ["reference", *(f"alternates.{name}" for name in toy.spec.alternates)]
    assert [tuple(entry[:2]) for entry in channel.of("time")] == [(name, place) for place in range(5) for name in names]
    assert all(ms > 0 for *_, ms in channel.of("time"))


def test_compiling_is_not_charged_to_the_budget(toy, played, monkeypatch, tmp_path):
    """A solution whose first call takes far longer than the budget leaves the others their time."""
    solution = tmp_path / "solution.py"
    solution.write_text(f"from reference_of_test import slow as {toy.spec.func}\n", "utf-8")
    lab, calls, now = Lab(toy), [], [0.0]

    def slow(*args):
        calls.append(len(calls))
        now[0] += 20.0 if len(calls) == 1 else 0.0
        return lab.reference(*args)

    monkeypatch.setitem(sys.modules, "reference_of_test", SimpleNamespace(slow=slow))
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    channel = Channel()
    job = {"shapes": [[5, 40], [4, 40]], "solution": str(solution), "budget_s": 4.0, "known": []}
    timing._time_all(channel, job, lab, torch.empty(8))
    assert channel.of("gap") == []
    assert {name for name, *_ in channel.of("time")} == {"solution", "reference", "alternates.two_sums"}


def test_without_time_everything_is_a_named_gap(toy, played):
    channel = Channel()
    job = {"shapes": [[5, 40]], "solution": "", "budget_s": -1.0, "known": []}
    timing._time_all(channel, job, Lab(toy), torch.empty(8))
    assert [entry[2] for entry in channel.of("gap")] == ["out of time"] * 2
    assert channel.of("time") == []
