"""Figures of the two-GPU study from INVENTED gradings; the study itself needs two GPUs (`bench/fleet.py gpus`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from store.invented import fill, invented_result, sqlite_store
from taskfactory.grader.task import load_task

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def two_gpus() -> ModuleType:
    """The study's module, which lies outside the package and finds its figures beside it."""
    sys.path.insert(0, str(BENCH))
    try:
        import two_gpus as module
    finally:
        sys.path.remove(str(BENCH))
    return module


def row(phase: str, gpu: int, begin: float, busy: float, metric: float) -> dict[str, Any]:
    times = {"score_ms": 1.0, "delta_ms": 0.01, "c_ms": 0.5, "claim_ms": [1.0, 3.0]}
    shape = {"ordinal": 1, "metric": metric, **times}
    return {
        "phase": phase, "gpu": gpu, "begin_s": begin, "end_s": begin + 9.0, "neighbour_busy": busy, "score": metric,
        "duration_s": 8.0, "ceilings": {}, "shapes": [shape], "status": "passed",
    }  # fmt: skip


def test_speed_up_and_shift(two_gpus: ModuleType) -> None:
    rows = [row("alone, GPU 0", 0, 10 * k, 0.0, 100 + k % 2) for k in range(4)]
    rows += [row("both", gpu, 100 + 12 * k, 1.0, 50 + k % 2) for k in range(4) for gpu in (0, 1)]
    rows += [row("both", 0, 200, 0.4, 1.0)]  # half of it alone: neither the one nor the other
    rows += [row("alone, GPU 1", 1, 300 + 10 * k, 0.0, 100 + k % 2) for k in range(4)]
    phase = {"runs": [], "counts": {}}
    phases = {
        "alone, GPU 0": {**phase, "gpus": 1, "gradings": 4, "seconds": 40.0},
        "both": {**phase, "gpus": 2, "gradings": 8, "seconds": 50.0},
        "alone, GPU 1": {**phase, "gpus": 1, "gradings": 4, "seconds": 40.0},
    }
    figures = two_gpus.figures.summary(rows, phases)
    assert figures["speed_up"] == pytest.approx(1.6)
    assert figures["speed_up_without_start"] == pytest.approx(2 * 10 / 12)
    assert figures["shared_a_gpu"] == 0
    for gpu in (0, 1):
        found = figures["shifts"][f"GPU {gpu}, score"]
        assert found["n"] == [4, 4]
        assert found["ratio"] == pytest.approx(50.5 / 100.5)
        assert found["interval"][0] <= found["ratio"] <= found["interval"][1]
        assert figures["shifts"][f"GPU {gpu}, shape 1 claim_ms"]["alone"] == 2.0
    assert "shared a GPU: 0" in two_gpus.figures.table({**figures, "refused_as_shared": 0})


def test_a_shared_gpu_is_counted(two_gpus: ModuleType) -> None:
    assert (
        two_gpus.figures.shared_gpu([row("both", 0, 0, 1, 1), row("both", 0, 8.5, 1, 1), row("both", 1, 1, 1, 1)]) == 1
    )


def test_raw_data_are_the_stores_and_the_logs(two_gpus: ModuleType, tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "r.db")
    sources = {str(k): b"# %d" % k for k in range(3)}
    results = [invented_result(source=source, fraction=0.5 + 0.1 * k) for k, source in enumerate(sources.values())]
    fill(store, [("x", str(k), result) for k, result in enumerate(results)], sources=sources)
    spans = [("GPU-a", 100.0, 110.0), ("GPU-b", 105.0, 115.0)]  # the third left no trace: refused, or killed
    lines = [
        {"source": result.submission_sha256.removeprefix("sha256:"), "gpu": gpu, "begin": begin, "end": end}
        for result, (gpu, begin, end) in zip(results, spans, strict=False)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = two_gpus.figures.raw(store, {"both": {"runs": ["r1"]}}, ["GPU-a", "GPU-b"], log)
    assert [(row["gpu"], row["begin_s"], row["end_s"], row["neighbour_busy"]) for row in rows] == [
        (0, 0.0, 10.0, 0.5), (1, 5.0, 15.0, 0.5),
    ]  # fmt: skip
    assert rows[1]["shapes"][0]["claim_ms"] == [round(t, 5) for t in results[1].shapes[0].claim_ms]
    assert rows[1]["score"] == pytest.approx(results[1].score, rel=1e-4)
    store.close()


def test_a_second_grading_on_a_taken_gpu_is_refused(
    two_gpus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(two_gpus.LOG, str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-x")
    (tmp_path / "taken-GPU-x").touch()
    with pytest.raises(two_gpus.InfrastructureError, match="GPU-x is in use"):
        two_gpus.witnessed(tmp_path, tmp_path / "s.py")


def test_the_task_is_one_that_the_grader_reads(two_gpus: ModuleType, tmp_path: Path) -> None:
    task = load_task(two_gpus.write_product(tmp_path / "product"))
    assert task.work["graded"][0] == 2 * 8192**3
