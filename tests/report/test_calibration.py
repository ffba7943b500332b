"""Gates, limits and calibrations on task pages: from the spec that was graded, and without names where solvers look."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from store.invented import ROW_SCALE, fill, invented_result, sqlite_store
from taskfactory.calibrate.certificate import Certificate, certificates_of
from taskfactory.calibrate.plot import points
from taskfactory.fleet.plan import read_task
from taskfactory.load import load_spec
from taskfactory.paths import resolve_spec
from taskfactory.report.calibration import calibrations, gates, share
from taskfactory.report.site import Options, Site
from taskfactory.report.svg import gate_picture
from taskfactory.store.records import StoredTask
from taskfactory.store.store import Store

NAME = "based-forward"


@pytest.fixture(scope="module")
def task() -> StoredTask:
    return read_task(NAME)


@pytest.fixture(autouse=True)
def certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the committed certificate is current is asked elsewhere; here it only has to be drawn."""
    monkeypatch.setattr(Certificate, "stale", lambda *_: False)


@pytest.fixture
def store(tmp_path: Path, task: StoredTask):
    opened = sqlite_store(tmp_path / "r.db")
    fill(opened, [("ann", "1", invented_result(task, 0.8)), ("bob", "1", invented_result(ROW_SCALE, 0.8))],
         tasks=(task, ROW_SCALE))  # fmt: skip
    yield opened
    opened.close()


def test_the_figures_are_the_certificates(task: StoredTask) -> None:
    file = load_spec(resolve_spec(NAME))
    (certificate, *_) = certificates_of(file)
    (found, *_) = calibrations(task, names=True)
    kinds = {kind: [use for _, use in entries] for kind, entries in points(certificate.data).items() if entries}
    assert [row[1:] for row in found.rows] == [(len(uses), min(uses), max(uses)) for uses in kinds.values()]
    assert found.picture.count("<circle") == sum(len(uses) for uses in kinds.values())
    assert (found.device, found.sound) == (certificate.device, certificate.verdict(file.spec).sound)


def test_names_of_what_is_caught_are_only_for_those_who_may_know(store: Store) -> None:
    (certificate, *_) = certificates_of(load_spec(resolve_spec(NAME)))
    names = [name for name, _ in points(certificate.data)["ablation"] + points(certificate.data)["mutant"]]
    public, private = (Site(store, Options(private=p)).render(f"task/{NAME}.html") for p in (False, True))
    assert "Calibration on" in public
    assert not [name for name in names if name in public]
    assert [name for name in names if f"<title>{name}: " in private]


def test_a_stale_certificate_is_not_shown(task: StoredTask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert calibrations(task, names=True)
    monkeypatch.setattr(Certificate, "stale", lambda *_: True)
    assert calibrations(task, names=True) == []


def test_another_version_of_the_spec_or_none_shows_no_calibration(task: StoredTask, store: Store) -> None:
    assert calibrations(dataclasses.replace(task, spec_digest="sha256:0"), names=True) == []
    assert calibrations(ROW_SCALE, names=True) == []
    assert "Calibration on" not in Site(store, Options()).render("task/row-scale.html")


def test_gates_are_the_tasks_and_limits_stay_private(task: StoredTask, store: Store) -> None:
    facts = json.loads(task.files["task.json"])
    found = gates(task)
    assert (found["tol"], found["counts"]["graded"]) == (facts["tol"], len(facts["shapes"]["graded"]))
    assert gates(ROW_SCALE) == {}  # a store may hold what no longer is a task
    public, private = (Site(store, Options(private=p)).render(f"task/{NAME}.html") for p in (False, True))
    assert f"at most {facts['tol']:g} of the reference" in public
    assert "4 180 GB/s copy" in public.replace("\u202f", " ")
    assert "Limit, ms" in private
    assert "Limit, ms" not in public


def test_what_is_beyond_the_axis_is_drawn_at_its_ends_and_names_are_escaped() -> None:
    rows = [("mutants", "wrong", [("<b>", 0.0), ("exact", float("inf")), ("", 1e-9)])]
    picture = gate_picture("a < b", rows, (-3.0, 4.0), (0.7, 3.0))
    ends = [float(part.split('"')[1]) for part in picture.split("<circle ")[1:]]
    assert ends[0] == ends[2] < ends[1]
    assert "&lt;b&gt;: 0</title>" in picture
    assert picture.count("<title>") == 2
    assert 'aria-label="a &lt; b"' in picture
    assert (share(float("inf")), share(0.40694)) == ("infinity", "0.407")
