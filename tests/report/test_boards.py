"""Who is ranked with whom, and when a rank is a tie. All results are INVENTED, see store.invented."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from store.invented import PAIR_SUM, ROW_SCALE, fill, invented_result, sqlite_store
from taskfactory.grader.result import Status
from taskfactory.report.boards import Board, boards, overall
from taskfactory.report.entries import Entry, entry_of
from taskfactory.store.store import Store


@pytest.fixture
def store(tmp_path: Path):
    opened = sqlite_store(tmp_path / "r.db")
    yield opened
    opened.close()


def judged(store: Store, task: str = "row-scale") -> list[Entry]:
    return [e for e in map(entry_of, store.results()) if e.judged and e.task == task]


def ranks(board: Board) -> list[tuple[str, int | None]]:
    return [(row.submitter, row.rank) for row in board.rows]


def test_ranks_count_only_those_better_beyond_noise(store: Store) -> None:
    fill(
        store,
        [
            ("a", "1", invented_result(fraction=0.90, noise=0.02)),
            ("b", "1", invented_result(fraction=0.88, noise=0.02)),
            ("c", "1", invented_result(fraction=0.855, noise=0.02)),
            ("d", "1", invented_result(fraction=0.5, noise=0.02)),
        ],
    )
    (board,) = boards(judged(store))
    # a and b overlap, b and c overlap, a and c do not
    assert ranks(board) == [("a", 1), ("b", 1), ("c", 2), ("d", 4)]
    assert [row.tied_with for row in board.rows] == [("b",), ("a", "c"), ("b",), ()]


def test_the_best_sample_ranks_and_failures_count_in_the_mean(store: Store) -> None:
    fill(
        store,
        [
            ("a", "1", invented_result(fraction=0.6)),
            ("a", "2", invented_result(fraction=0.8)),
            ("a", "3", invented_result(ROW_SCALE, None, status=Status.INCORRECT)),
            ("b", "1", invented_result(ROW_SCALE, None, status=Status.TIMEOUT)),
        ],
    )
    (board,) = boards(judged(store))
    a, b = board.rows
    assert a.best is not None
    assert a.best.sample == "2"
    assert (a.passed, len(a.current), b.passed, b.rank) == (2, 3, 0, None)
    assert a.mean_fraction == pytest.approx((0.6 + 0.8) / 3)


@pytest.mark.parametrize(
    ("change", "merge", "said"),
    [
        ({"device": "Other GPU"}, "device", "different devices: Imaginary GPU, Other GPU"),
        ({"ceilings": {"copy_gbps": 4000.0, "matmul_tflops": 750.0}}, "ceilings", "different ceilings"),
        ({}, "spec", "2 versions of the spec"),
    ],
)
def test_what_differs_is_ranked_apart_unless_asked(
    store: Store, change: dict[str, object], merge: str, said: str
) -> None:
    other = dataclasses.replace(ROW_SCALE, spec_digest="sha256:33", files={"task.json": "{ }"})
    second = invented_result(other, 0.6) if merge == "spec" else invented_result(ROW_SCALE, 0.6, **change)  # type: ignore[arg-type]
    fill(store, [("a", "1", invented_result(fraction=0.5)), ("b", "1", second)], tasks=(ROW_SCALE, other))
    apart = boards(judged(store))
    assert sorted(ranks(board) for board in apart) == [[("a", 1)], [("b", 1)]]
    assert not any(board.merged for board in apart)
    (together,) = boards(judged(store), frozenset({merge}))
    assert ranks(together) == [("b", 1), ("a", 2)]
    assert any(said in text for text in together.merged)


def test_small_drift_of_ceilings_is_no_difference_and_merging_equals_says_nothing(store: Store) -> None:
    near = {"copy_gbps": 4180.0 * 1.015, "matmul_tflops": 750.0 * 0.985}
    fill(
        store,
        [("a", "1", invented_result(fraction=0.5)), ("b", "1", invented_result(fraction=0.6, ceilings=near))],
    )
    for merge in ((), ("device", "ceilings", "spec")):
        (board,) = boards(judged(store), frozenset(merge))
        assert len(board.rows) == 2
        assert board.merged == ()


def test_verified_on_a_cpu_is_never_ranked(store: Store) -> None:
    fill(
        store,
        [
            ("a", "1", invented_result(fraction=0.5)),
            ("b", "1", invented_result(ROW_SCALE, None, device="x86_64")),
            ("c", "1", invented_result(ROW_SCALE, None, status=Status.INCORRECT, device="x86_64")),
        ],
    )
    timed, untimed = boards(judged(store))
    assert (timed.timed, ranks(timed)) == (True, [("a", 1)])
    assert (untimed.timed, ranks(untimed)) == (False, [("b", None), ("c", None)])


def test_a_repeated_sample_counts_once_and_infrastructure_errors_never(store: Store) -> None:
    fill(store, [("a", "1", invented_result(fraction=0.5)), ("b", "1", invented_result(fraction=0.4))])
    fill(
        store,
        [("a", "1", invented_result(fraction=0.7)), ("b", "1", invented_result(status=Status.INFRASTRUCTURE_ERROR))],
        run_id="r2",
    )
    (board,) = boards(judged(store))
    a, b = board.rows
    assert (len(a.current), a.current[0].fraction.value) == (1, pytest.approx(0.7))  # type: ignore[union-attr]
    assert (len(b.current), b.current[0].fraction.value) == (1, pytest.approx(0.4))  # type: ignore[union-attr]


def test_overall_is_the_mean_of_capped_fractions_over_all_tasks(store: Store) -> None:
    fill(
        store,
        [
            ("a", "1", invented_result(ROW_SCALE, 1.2)),
            ("a", "1", invented_result(PAIR_SUM, 0.5)),
            ("b", "1", invented_result(ROW_SCALE, 0.9)),
        ],
    )
    every = [board for task in ("row-scale", "pair-sum") for board in boards(judged(store, task))]
    (table,) = overall(every)
    assert table.tasks == ("pair-sum", "row-scale")
    assert [(s.submitter, s.rank) for s in table.standings] == [("a", 1), ("b", 2)]
    assert table.standings[0].mean.value == pytest.approx((1.0 + 0.5) / 2)
    assert table.standings[1].mean.value == pytest.approx(0.9 / 2)  # nothing at the other task counts as 0
    assert (table.left_out, table.merged) == (0, ())


def test_overall_takes_the_newest_board_of_a_task_and_says_how_many_it_left_out(store: Store) -> None:
    newer = dataclasses.replace(ROW_SCALE, spec_digest="sha256:44", files={"task.json": "{ }"})
    fill(
        store,
        [("a", "1", invented_result(ROW_SCALE, 0.9)), ("a", "1", invented_result(newer, 0.3))],
        tasks=(ROW_SCALE, newer),
    )
    (table,) = overall(boards(judged(store)))
    assert table.standings[0].mean.value == pytest.approx(0.3)
    assert table.left_out == 1


def test_circumstances_become_flags(store: Store) -> None:
    fill(
        store,
        [("a", "1", invented_result(warnings=["ceilings drifted"], confinement={"tier": "unconfined"}))],
        conditions={"slowed_by": ["heat"], "neighbours": 2},
    )
    (entry,) = judged(store)
    text = " ".join(entry.flags)
    assert all(part in text for part in ("(heat)", "2 other", "ceilings drifted", "unconfined"))
