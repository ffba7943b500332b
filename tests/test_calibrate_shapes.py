"""Graded shapes that do not serve are caught; what a GPU cannot do at one of them is a gap and costs nothing else.

There is no GPU here: the machinery for measure and graded shapes runs on the CPU, with small ones.
"""

from __future__ import annotations

import json

import pytest

import specimens
from calibrating import SEED, changed, measured, ours
from taskfactory.calibrate import sections
from taskfactory.calibrate.beyond import NO_ALTERNATE, Beyond
from taskfactory.calibrate.certificate import certificate_path, write_certificate
from taskfactory.calibrate.certify import content
from taskfactory.calibrate.gradings import Clock, clock_of
from taskfactory.calibrate.measure import Bench, positions
from taskfactory.calibrate.quality import judge_shapes, large_shapes
from taskfactory.calibrate.run import Budget, Readings, SampleKey, _Listener
from taskfactory.calibrate.screen import Screen
from taskfactory.calibrate.sections import Examined, examine, shapes_section
from taskfactory.calibrate.tables import scores_table, shapes_table, summary, terminal
from taskfactory.calibrate.verdict import judge
from taskfactory.checks.certificates import check_certificates
from taskfactory.checks.lab import Lab
from taskfactory.checks.watch import Ending
from taskfactory.errors import UsageError
from taskfactory.load import SpecFile, load_spec

SHAPE = (3, 129)
EXTRA = (5, 40)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> SpecFile:
    return load_spec(specimens.write(tmp_path_factory.mktemp("specs"), specimens.text()))


def sized(file: SpecFile) -> Examined:
    """What a child says of a sound spec, without the child."""
    rows = [{"kind": "graded", "shape": list(s), "inputs": 2 * s[0] * s[1], "outputs": 2 * s[0] * s[1], "gaps": []}
            for s in file.spec.grader_shapes]  # fmt: skip
    memory = [{"graded": n, "total_gb": 9.5, "method": "dry run"} for n in range(1, len(rows) + 1)]
    return Examined(rows=rows, memory=memory)


def clock(file: SpecFile, delta_ms: float) -> Clock:
    """The same delta at every graded shape."""
    return Clock((delta_ms,) * len(file.spec.grader_shapes), "a grading on X")


def problems(file: SpecFile, survivors=None, found: Examined | None = None, delta_ms: float | None = None) -> str:
    section = shapes_section(file, found or sized(file), clock=None if delta_ms is None else clock(file, delta_ms))
    return " | ".join(judge_shapes({"graded_shapes": section}, survivors or {})[0])


def test_the_toys_shapes_serve_and_small_ones_do_not(toy):
    # The floor of the toy is its result alone, half of what a call moves: 20 deltas of a quiet clock are its limit.
    assert problems(toy, delta_ms=0.003) == ""
    few = changed(toy, grader_shapes=((512, 512), *toy.spec.grader_shapes[1:]))
    said = problems(few, delta_ms=0.003)
    assert "deltas of 0.003 ms, under 20" in said
    assert "working set of 1 MB at graded shape 1 is under 4 L2 caches of 60 MB" in said
    assert "512" not in said, "a graded shape is told by its number"
    assert "deltas of 1 ms, under 20" in problems(toy, delta_ms=1.0)


def test_each_graded_shape_has_its_own_delta(toy):
    deltas = [0.003] * len(toy.spec.grader_shapes)
    deltas[1] = 1.0
    section = shapes_section(toy, sized(toy), clock=Clock(tuple(deltas), "a grading on X"))
    (said,) = judge_shapes({"graded_shapes": section}, {})[0]
    assert "at graded shape 2" in said
    assert "at graded shape 1" not in said
    assert section["delta_from"] == "a grading on X"


def test_each_fault_is_explained_by_its_own_name(toy):
    few = changed(toy, grader_shapes=((512, 512), *toy.spec.grader_shapes[1:]))
    reasons = {"shapes.working_set": "it is there to measure the L2"}
    said = problems(few, reasons, delta_ms=0.003)
    assert "working set" not in said
    assert "under 20" in said
    assert "shapes.regime" in said
    reasons |= {"shapes.duration": "the clock is quiet enough", "shapes.regime": "one is small on purpose"}
    assert problems(few, reasons, delta_ms=0.003) == ""


def test_memory_and_regime(toy):
    found = sized(toy)
    found.memory[1]["total_gb"] = 95.0
    assert "95 GB are needed at graded shape 2" in problems(toy, found=found, delta_ms=0.003)
    unlike = changed(toy, measure_shapes=((64, 64),))
    assert "times as long as measure shapes" in problems(unlike, delta_ms=0.003)
    bound = "def floor(M, N):\n    return (M * N, 0) if N < 3000 else (M * N, 10**12 * M)\n"
    assert "bound by FLOPs, and no measure shape is" in problems(
        changed(toy, floor_src=bound, measure_shapes=((131072, 2048),)), delta_ms=1e-6
    )


def test_our_graded_shapes_serve_on_an_h200_by_the_formulas():
    for task in ("adaptive-sparsity-threshold", "conv3d-tiled-decode-blend"):
        assert problems(ours(task), ours(task).spec.survivors, Examined()) == ""


def test_ranks_of_measured_and_graded_scores(toy):
    shapes = large_shapes(toy.spec)
    assert [kind for kind, _ in shapes[:4]] == ["graded", "measure", "graded", "measure"]
    found = sized(toy)
    found.device = {"l2_bytes": 60_000_000, "ceilings": {"copy_gbps": 4000.0, "matmul_tflops": 700.0}}
    work = toy.formulas()
    for place, (kind, shape) in enumerate(shapes):
        unit_ms = work.call("canonical_work", *shape) / 1e9
        for name, speed in (("solution", 1.0), ("reference", 5.0), ("alternates.a", 9.0)):
            turned = kind == "graded" and name != "solution"
            found.times[name, place] = unit_ms * (14.0 - speed if turned else speed)
        found.time_gaps["alternates.b", place] = "out of memory"
    section = shapes_section(toy, found)
    data = {"graded_shapes": section}
    assert section["rank_correlation"] == 0.5
    assert section["scores"]["solution"] == {"graded": 1000.0, "measure": 1000.0}
    assert "alternates.b" not in section["scores"]
    assert any("may mislead" in note for note in judge_shapes(data, {})[1])
    assert any("alternates.b was not timed at" in gap for gap in section["gaps"])
    assert len(scores_table(data)) == 4
    assert "rank correlation" in "\n".join(terminal(data))
    json.dumps(section, allow_nan=False)


def test_scores_are_means_over_shapes_that_all_have(toy):
    found = sized(toy)
    found.device = {"l2_bytes": 60_000_000, "ceilings": {"copy_gbps": 4000.0, "matmul_tflops": 700.0}}
    for place in range(len(large_shapes(toy.spec))):
        found.times["solution", place] = 1.0
        if place < 2:
            found.times["reference", place] = 2.0
    section = shapes_section(toy, found)
    assert section["scored_shapes"] == 2
    assert section["scores"]["solution"]["graded"] == pytest.approx(
        2 * section["scores"]["reference"]["graded"], rel=1e-3
    )
    assert section["rank_correlation"] is None, "two implementations have no ranks to speak of"


def test_a_stopwatch_that_crashes_costs_one_gap(toy, monkeypatch):
    """The child is played: it dies in the reference at the second shape, and its successor goes on behind that."""
    starts = []

    def play(job, limits, hear, entry):
        if entry.endswith("examine"):
            hear({"done": True})
            return Ending("finished")
        starts.append(job["known"])
        if len(starts) == 1:
            hear({"device": {"name": "X", "l2_bytes": 1, "ceilings": {"copy_gbps": 1.0, "matmul_tflops": 1.0}}})
            hear({"doing": ["reference", 0]})
            hear({"time": ["reference", 0, 1.5]})
            hear({"doing": ["reference", 1]})
            return Ending("exit", status=-11)
        hear({"done": True})
        return Ending("finished")

    monkeypatch.setattr(sections, "run_child", play)
    found = examine(toy, device="cuda")
    assert found.times == {("reference", 0): 1.5}
    assert found.time_gaps == {("reference", 1): "its process ended (exit)"}
    assert starts[1] == [("reference", 0), ("reference", 1)]


def bench(file: SpecFile, beyond: Beyond, kinds=("float64", "alternate", "mutant")):
    """Readings and gaps at one correct shape and one graded one."""
    lab = Lab(file)
    samples = positions(lab, [SEED], [EXTRA], [SHAPE])
    readings, gaps = [], {}
    beyond.gap = lambda subject, sample, reason: gaps.__setitem__((subject, sample), reason)
    Bench(lab, samples, set(), readings.append, lambda *_: None, kinds, beyond).run()
    return samples, readings, gaps


def failing(file: SpecFile, error: str) -> SpecFile:
    """The toy with an alternate that fails at the graded shape only."""
    source = file.spec.alternates["two_sums"]
    first = next(line for line in source.split("\n") if line.startswith("def two_sums("))
    body = f"{first}\n    if x.shape[0] == {EXTRA[0]}:\n        raise {error}"
    return changed(file, grader_shapes=(EXTRA,), alternates={"two_sums": source.replace(first, body, 1)})


def test_out_of_memory_at_a_graded_shape_is_a_named_gap(toy):
    file = failing(toy, 'torch.OutOfMemoryError("too large")')
    samples, readings, gaps = bench(file, Beyond())
    last = samples[-1].index
    assert gaps["alternates.two_sums", last] == "out of memory"
    assert any(r.subject == "reference.float64" and r.sample == last for r in readings), "the others are measured"
    mutants = {reason for (name, _), reason in gaps.items() if name.startswith("mutants.")}
    assert mutants <= {NO_ALTERNATE}
    found = Readings("cuda", (SEED,), [SampleKey(p.seed, p.shape, p.case, p.large) for p in samples], gaps=gaps)
    entries = found.gaps_by_subject()
    assert {"subject": "alternates.two_sums", "why": "out of memory", "shapes": [list(EXTRA)]} in entries


def test_another_failure_at_a_graded_shape_is_the_alternates(toy):
    samples, readings, gaps = bench(failing(toy, "ValueError('no')"), Beyond())
    raised = [r for r in readings if r.subject == "alternates.two_sums" and r.outcome == "raised"]
    assert [r.sample for r in raised] == [samples[-1].index]
    assert ("alternates.two_sums", samples[-1].index) not in gaps


def test_a_graded_shape_whose_inputs_fail_is_a_gap_and_the_verdict_tells(toy):
    source = toy.spec.make_inputs_src.replace(
        "def _mk(M, N, seed):", f"def _mk(M, N, seed):\n    if M == {EXTRA[0]}:\n        raise ValueError('no')", 1
    )
    file = changed(toy, grader_shapes=(EXTRA,), make_inputs_src=source)
    samples, readings, gaps = bench(file, Beyond())
    assert gaps == {("reference", samples[-1].index): "ValueError: no"}
    assert readings
    data = content(toy, measured(toy, shapes=[SHAPE]))
    data["gaps"] = [{"subject": "reference", "why": "ValueError: no", "shapes": [list(EXTRA)]}]
    assert any("reference was not measured at (5, 40): ValueError: no" in text for text in judge(data, {}).problems)
    data["gaps"][0]["why"] = "out of memory"
    assert not any("was not measured" in text for text in judge(data, {}).problems)
    assert any("was not measured" in text for text in judge(data, {}).notes)


def test_a_spent_budget_is_told_for_everything_left(toy):
    samples, readings, gaps = bench(changed(toy, grader_shapes=(EXTRA,)), Beyond(budget_s=-1.0))
    assert gaps == {("reference", samples[-1].index): "out of time"}
    assert {r.sample for r in readings} == {p.index for p in samples[:-1]}


def test_a_subject_that_has_spent_its_share_is_left_out_at_the_next_shape(toy):
    file = changed(toy, grader_shapes=(EXTRA,))
    spent = Beyond(spent_s={"reference.float64": 99.0, "alternates.two_sums": 99.0})
    samples, readings, gaps = bench(file, spent, kinds=("float64", "alternate"))
    assert gaps == {("reference.float64", samples[-1].index): "out of time"}
    assert [r.subject for r in readings if r.sample == samples[-1].index] == ["alternates.two_sums"]


def test_each_large_shape_has_its_slice_of_the_budget_and_honest_work_comes_first(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("taskfactory.calibrate.beyond.time.monotonic", lambda: now[0])
    beyond = Beyond(budget_s=40.0, samples=[7, 8, 9, 10])
    assert beyond.refuses("ablations.a", 7) == ""
    now[0] = 111.0
    assert beyond.refuses("ablations.a", 7) == "out of time"
    assert beyond.refuses("alternates.a", 7) == ""
    assert beyond.refuses("reference", 8) == ""
    assert beyond.refuses("mutants.a", 8) == ""
    now[0] = 139.0
    assert beyond.refuses("ablations.a", 10) == ""
    now[0] = 141.0
    assert beyond.refuses("alternates.a", 10) == "out of time"


def test_memory_of_a_failed_call_is_given_back_before_the_next(toy, monkeypatch):
    freed = []
    monkeypatch.setattr(Bench, "_free", lambda self: freed.append(True))
    bench(failing(toy, 'torch.OutOfMemoryError("too large")'), Beyond(), kinds=("float64", "alternate"))
    assert len(freed) == 2, "before the large shape, and behind the gap"


def test_a_process_that_ends_at_a_graded_shape_is_no_verdict(toy):
    file = changed(toy, grader_shapes=(EXTRA,))
    listener = _Listener(file, Readings("cuda", (SEED,)), set(), Budget(beyond_s=9.0), lambda _: None)
    listener.hear({"samples": [[SEED, list(SHAPE), "", False], [SEED, list(EXTRA), "", True]]})
    listener.hear({"subject": ["alternates.two_sums", "alternate", "x"]})
    listener.hear({"doing": ["alternates.two_sums", 1]})
    listener.conclude(Ending("exit", status=-9))
    resumed = listener.resume()
    assert resumed["lost"] == [("alternates.two_sums", 1)]
    assert resumed["skip"] == []
    assert 0 <= resumed["beyond_s"] < 9.0
    listener.hear({"doing": ["", 1]})
    listener.conclude(Ending("step"))
    assert ("reference", 1) in listener.resume()["lost"]
    assert set(listener.result.gaps) == {("alternates.two_sums", 1), ("reference", 1)}
    assert listener.result.readings == []


def test_mutants_that_raise_on_the_cpu_do_not_reach_the_gpu(toy):
    file = ours("cache-hit-skip-gate")
    screen = Screen(file)
    names = [name for name in screen._mutants if "argument.block" in name]
    assert names
    failures = {name: screen.failure(name) for name in screen._mutants}
    assert any("(on the CPU)" in text for text in failures.values())
    assert "" in failures.values()
    assert screen.failure("mutants.of_another_task") == ""
    seen = []
    beyond = Beyond(screened=lambda name: seen.append(name) or "IndexError: no (on the CPU)")
    _, readings, _ = bench(toy, beyond, kinds=("mutant",))
    assert {r.outcome for r in readings} == {"raised"}
    assert len(seen) == len(readings)


def test_validate_tells_of_graded_shapes(tmp_path):
    file = load_spec(specimens.write(tmp_path, specimens.text()))
    found = sized(file)
    data = content(file, measured(file, shapes=[SHAPE]), found, clock=clock(file, 1.0))
    assert "TF707" not in {f.code for f in check_certificates(file)}
    write_certificate(certificate_path(file, "cpu"), data)
    assert {f.field for f in check_certificates(file) if f.code == "TF707"} == {"grader_shapes"}
    assert any("deltas" in text for text in data["verdict"]["problems"])
    assert len(shapes_table(data)) == 1 + len(file.spec.grader_shapes) + len(file.spec.measure_shapes)
    assert summary(data)[4].endswith("δ")


def graded(file: SpecFile, delta_ms: float, **changes) -> str:
    """A result of the grader, as far as calibration reads it."""
    work = [file.formulas().call("canonical_work", *shape) for shape in file.spec.grader_shapes]
    shapes = [{"kind": "graded", "delta_ms": delta_ms, "work": count} for count in work]
    result = {"task": file.spec.name, "status": "passed", "timed": True, "started_at": "2026-01-01T00:00:00Z"}
    result |= {"environment": {"device": "X"}, "shapes": [{"kind": "correct", "delta_ms": None}, *shapes]}
    return json.dumps(result | changes)


def test_delta_comes_from_a_grading(toy, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(graded(toy, 0.03))
    assert clock_of(path, toy) == clock(toy, 0.03)
    with pytest.raises(UsageError, match="are not those of"):
        clock_of(path, changed(toy, grader_shapes=(EXTRA,)))
    path.write_text(graded(toy, 0.03, shapes=[]))
    with pytest.raises(UsageError, match="no graded shape has a delta"):
        clock_of(path, toy)
    path.write_text("[]")
    with pytest.raises(UsageError, match="not a result"):
        clock_of(path, toy)


def test_of_a_folder_the_newest_result_that_passed_counts(toy, tmp_path):
    (tmp_path / "a.json").write_text(graded(toy, 0.01, started_at="2026-01-02T00:00:00Z"))
    (tmp_path / "b.json").write_text(graded(toy, 0.02))
    (tmp_path / "refused.json").write_text(graded(toy, 0.5, status="noisy", started_at="2026-01-03T00:00:00Z"))
    (tmp_path / "other.json").write_text(graded(toy, 0.5, task="another", started_at="2026-01-03T00:00:00Z"))
    (tmp_path / "broken.json").write_text("{")
    assert clock_of(tmp_path, toy).deltas_ms[0] == 0.01
    with pytest.raises(UsageError, match="no passed and timed result of based-forward"):
        clock_of(tmp_path, ours("based-forward"))


@pytest.mark.gpu
def test_a_gpu_times_and_measures_graded_shapes(tmp_path):
    from taskfactory.calibrate.certify import certify

    small = {"grader_shapes": ((4096, 512), (2048, 1024)), "measure_shapes": ((4096, 768), (1024, 1024))}
    file = changed(load_spec(specimens.write(tmp_path, specimens.text())), **small)
    data = certify(file, device="cuda", seeds=[SEED], budget=Budget(30.0, 20.0, 0.5))
    assert data["gaps"] == []
    assert {tuple(shape) for shape in data["shapes"]} >= set(small["grader_shapes"])
    assert set(data["graded_shapes"]["scores"]) >= {"reference", "alternates.two_sums"}
    assert data["mutants"]["score_by_values"] >= 0.95
