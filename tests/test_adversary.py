"""bench/adversary.py: what it runs, what its raw figures mean, and all of it on the CPU, where time means nothing."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskfactory.grader.result import Status

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True, scope="module")
def _bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "bench"))
    yield
    sys.path.remove(str(ROOT / "bench"))


def launch(c_ms: float, works: dict[int, float]) -> dict[str, Any]:
    """A trusted launch without noise: each work takes exactly its time."""
    found = []
    for kind in ("passes", "copy"):
        for passes, ms in works.items():
            times = {"walls_ms": [c_ms + ms] * 16, "claims_ms": [ms] * 16}
            found.append({"kind": kind, "amount": 1, "repeat": passes if kind == "passes" else 1, **times})
    return {"works": found}


def cell(passes: int, wall_ms: float, claim_ms: float, strategy: str = "liar", level: int = 0, **more: Any) -> Any:
    import adversary

    shape = [1, passes, adversary.strategies().index(strategy), level]
    cell = {"shape": shape, "status": "passed", "failed": [], "walls_ms": [wall_ms] * 16, "claims_ms": [claim_ms] * 16}
    return cell | more


def clock(cells: list[Any], after_ms: float = 0.5) -> dict[str, Any]:
    works = {4: 0.2, 20: 1.0}
    group = {"name": "launch strategies", "before": 0, "after": 1, "cells": cells}
    return {"launches": [launch(0.5, works), launch(after_ms, works)], "groups": [group]}


def test_every_strategy_has_levels_and_a_way_to_launch_it() -> None:
    import adversary

    names = adversary.strategies()
    assert set(names) == set(adversary.LEVELS)
    tree = ast.parse((ROOT / "bench" / "launch_strategies.py").read_text("utf-8"))
    tables = {
        n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    assert len(tables["LAUNCH"].elts) == len(names)  # type: ignore[attr-defined]


def test_the_cells_are_the_ones_that_can_be() -> None:
    import adversary

    cells = list(adversary.shapes("cuda"))
    assert len(set(cells)) == len(cells)
    durations = [adversary.passes_of(ms) for ms in adversary.DURATIONS_MS]
    assert [cell[1] for cell in cells if cell[2] == 0] == durations
    early = {(passes, level) for _, passes, k, level in cells if adversary.strategies()[k] == "early"}
    assert (durations[0], 200) in early
    assert (durations[0], 500) not in early  # nobody is earlier than the beginning
    assert (durations[-1], 4000) in early


def test_an_honest_cell_is_the_truth_and_a_short_one_is_noticed() -> None:
    import adversary

    honest, short, wrong = adversary.rows_of(
        clock(
            [
                cell(20, 1.5, 1.0, "default stream"),
                cell(20, 1.4, 0.01, "polling"),
                cell(20, 1.4, 0.01, "tail", 100, status="incorrect", failed=[3]),
            ]
        ),
        "cuda",
    )
    assert honest.truth_ms == pytest.approx(1.0)
    assert honest.t_ms == pytest.approx(1.0)
    assert honest.held
    assert short.t_ms == pytest.approx(0.9)
    assert not short.held
    assert (wrong.level, wrong.wrong, wrong.held) == (0.1, 1, True)  # not scored, so nothing is gained


def test_drift_between_the_launches_is_in_delta_and_allowed() -> None:
    import adversary

    (row,) = adversary.rows_of(clock([cell(20, 1.45, 0.01, "polling")], after_ms=0.6), "cuda")
    assert row.delta_ms == pytest.approx(0.1)
    assert row.t_ms == pytest.approx(0.95)
    assert row.held


def test_a_worker_that_did_not_live_to_be_timed_is_a_row_without_times() -> None:
    import adversary

    (row,) = adversary.rows_of(clock([cell(20, 1.5, 1.0, status="timeout", walls_ms=[], claims_ms=[])]), "cuda")
    assert (row.status, row.t_ms, row.held) == ("timeout", None, True)


def test_a_reason_is_named_once_for_each_kind_of_launch() -> None:
    import adversary

    failed = {"status": "incorrect", "message": "measure shape 1: y: 3 of 8 entries differ"}
    cells = [
        cell(4, 0.7, 0.2, "tail", 10, **failed),
        cell(20, 1.5, 1.0, "tail", 10, **failed),
        cell(4, 0.7, 0.2, message=""),
    ]
    assert adversary.messages(clock(cells)) == ["tail: incorrect: y: 3 of 8 entries differ"]


def test_the_plateau_of_the_liars() -> None:
    import adversary

    shares = (990, 900, 500, 100)
    (level,) = adversary.plateaus(adversary.rows_of(clock([cell(20, 1.5, s / 1000, level=s) for s in shares]), "cuda"))
    assert level["claims_overruled"] == 4
    assert level["lowest_ms"] == pytest.approx(level["highest_ms"])
    assert level["gain"] == pytest.approx(0.0, abs=1e-9)
    (believed,) = adversary.plateaus(adversary.rows_of(clock([cell(4, 0.6, 0.19, level=950)]), "cuda"))
    assert believed["claims_overruled"] == 0
    assert believed["gain"] == pytest.approx(0.2 / 0.19 - 1)


def test_all_of_it_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import adversary

    monkeypatch.setattr(adversary, "DURATIONS_MS", (0.2, 0.5))
    command = ["adversary.py", "--device", "cpu", "--calls", "2", "--attack", "claim_understated"]
    monkeypatch.setattr(sys, "argv", [*command, "--json", str(tmp_path / "found.json")])
    assert adversary.main() in (0, 1)  # whether a time was short means nothing here
    record = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert record["status"] == Status.PASSED.value, record["message"]
    assert {row["status"] for row in record["rows"]} == {"passed"}
    assert {row["calls"] for row in record["rows"]} == {2}
    liar = next(row for row in record["rows"] if row["strategy"] == "liar" and row["level"] == 0.1)
    assert liar["claim_ms"] < 0.5 * liar["truth_ms"]
    assert [group["after"] for group in record["raw"]["groups"]] == [1, 2]
    assert "claim_understated" in capsys.readouterr().out


@pytest.mark.full
def test_a_cell_that_breaks_its_worker_is_left_out_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import adversary

    monkeypatch.setattr(adversary, "DURATIONS_MS", (0.2, 0.5, 1.0))
    monkeypatch.setattr(adversary, "LEVELS", dict.fromkeys(adversary.strategies(), (0,)))
    text = (ROOT / "bench" / "launch_strategies.py").read_text("utf-8")
    raising = "(passes, strategy) == (4, 2) or strategy == 3"
    broken = text.replace(
        "    launch = LAUNCH", "    if " + raising + ":\n        raise SystemExit\n    launch = LAUNCH"
    )
    assert broken != text
    wrong = broken.replace("    return launch(", "    if strategy == 4:\n        return x.clone()\n    return launch(")
    write = adversary.write_sweep

    def tampered(*arguments: Any) -> Path:
        folder: Path = write(*arguments)
        (folder / "work.py").write_text(wrong)
        return folder

    monkeypatch.setattr(adversary, "write_sweep", tampered)
    result = adversary.measure("cpu", 2, {"claim_understated": True})
    assert result.status is Status.PASSED, result.message
    statuses = {tuple(c["shape"][1:3]): c["status"] for c in result.clock["groups"][0]["cells"]}
    assert statuses.pop((4, 2)) == "runtime_error"
    assert {statuses.pop((passes, 3)) for passes in (4, 10, 20)} == {"runtime_error"}
    assert {statuses.pop((passes, 4)) for passes in (4, 10, 20)} == {"incorrect"}
    assert [c["broke"] for c in result.clock["groups"][0]["cells"] if c["shape"][2] == 3].count(True) == 2
    assert set(statuses.values()) == {"passed"}
    assert all(len(c["walls_ms"]) == 2 for c in result.clock["groups"][0]["cells"] if c["status"] != "runtime_error")
