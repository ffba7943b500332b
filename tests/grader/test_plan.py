"""Which calls a grading makes, and what it learns about them beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grader.toy import TASK, write_task
from taskfactory.grader.job import Job
from taskfactory.grader.plan import BrokenEnvironment, Plan, Workload


def plans(directory: Path, mode: str = "grade", device: str = "cpu", **options: Any) -> list[Plan]:
    return list(Workload(directory, "cpu").plans(Job(str(directory), "", "", mode, device, **options)))


def keys(made: list[Plan]) -> list[tuple[str, int, str]]:
    return [(plan.kind, plan.ordinal, plan.case) for plan in made]


CORRECT = [("correct", k, case) for k in (1, 2) for case in ("", "scaled", "wide")]


def test_a_grading_verifies_correct_shapes_and_times_graded_ones_on_a_device(tmp_path: Path) -> None:
    write_task(tmp_path)
    assert keys(plans(tmp_path)) == CORRECT
    on_device = plans(tmp_path, device="cuda")
    assert keys(on_device) == [*CORRECT, ("graded", 1, "")]
    assert [plan.timed for plan in on_device] == [False] * 6 + [True]


def test_the_kinds_of_a_measurement_do_not_change_a_grading(tmp_path: Path) -> None:
    assert keys(plans(write_task(tmp_path), kinds=("quick",))) == CORRECT


def test_a_measurement_runs_what_it_is_told(tmp_path: Path) -> None:
    write_task(tmp_path)
    made = plans(tmp_path, "measure", kinds=("quick", "measure"), shapes=((5, 7), (1, 2)))
    assert keys(made) == [("quick", 1, ""), ("measure", 1, ""), ("given", 1, ""), ("given", 2, "")]
    assert [plan.work for plan in made] == [16384, 65536, 4 * 5 * 7, 8]
    assert plans(tmp_path, "measure") == []


def test_floor_and_work_belong_to_their_shape(tmp_path: Path) -> None:
    floor = {kind: [[10 * k, k] for k in range(len(shapes))] for kind, shapes in TASK["shapes"].items()}
    made = plans(write_task(tmp_path, floor=floor))
    assert [(plan.ordinal, plan.work, plan.floor) for plan in made[::3]] == [
        (1, 512, (0.0, 0.0)),
        (2, 3200, (10.0, 1.0)),
    ]


def test_kinds_and_shapes_that_are_not_there(tmp_path: Path) -> None:
    write_task(tmp_path)
    with pytest.raises(BrokenEnvironment, match="no secret shapes"):
        plans(tmp_path, "measure", kinds=("secret",))
    with pytest.raises(BrokenEnvironment, match="a shape has 2 numbers: N, M"):
        plans(tmp_path, "measure", shapes=((5,),))


def test_a_plan_learns_layout_and_outputs(tmp_path: Path) -> None:
    workload = Workload(write_task(tmp_path), "cpu")
    plan = Plan("correct", 1, (4, 32), "scaled", 1, None)
    assert workload.learn(plan, seed=1)
    assert [("tensor" in a, a.get("value")) for a in plan.layout.arguments] == [(True, None), (False, 0.37)]
    assert plan.outputs == [
        {"shape": [4, 32], "dtype": "bfloat16", "numel": 128, "itemsize": 2},
        {"shape": [4], "dtype": "int32", "numel": 4, "itemsize": 4},
    ]
    assert plan.unavoidable == (128 * 2 + 4 * 4, 0.0)
    assert plan.snapshot_bytes == 2 * 4096  # in fp32, each aligned


def test_a_case_that_does_not_apply_is_left_out(tmp_path: Path) -> None:
    workload = Workload(write_task(tmp_path), "cpu")
    assert not workload.learn(Plan("correct", 1, (4, 32), "wide", 1, None), seed=1)
    assert workload.learn(Plan("correct", 2, (8, 100), "wide", 1, None), seed=1)


def test_a_label_never_names_the_dimensions() -> None:
    assert Plan("graded", 2, (4, 32), "", 1, None).label == "graded shape 2"
    assert Plan("correct", 1, (4, 32), "wide", 1, None).label == "correct shape 1, case wide"


def test_the_workload_compares_with_the_tasks_gates_regions_and_dtypes(tmp_path: Path) -> None:
    workload = Workload(write_task(tmp_path), "cpu")
    args = workload.make_inputs(Plan("correct", 1, (4, 32), "", 1, None), 3)
    assert args is not None
    y, n = workload.reference(args)
    fine, exact = workload.compare(args, (y, n), (y.float(), n))
    assert (fine.failure, exact.failure) == ("", "")
    assert fine.regions == {"last column": 0.0}
    off = y.clone()
    off[:, -1] *= 1.01
    assert "region last column" in workload.compare(args, (y, n), (off, n))[0].message
    assert workload.compare(args, (y, n), (y, n.long()))[1].failure == "wrong_dtype"


def test_a_reference_runs_without_gradients_and_may_return_one_tensor(tmp_path: Path) -> None:
    write_task(tmp_path)
    (tmp_path / "reference.py").write_text("def row_scale(x, scale=None):\n    return x * 2\n")
    workload = Workload(tmp_path, "cpu")
    (y,) = workload.reference((torch.ones(3, requires_grad=True),))
    assert not y.requires_grad
    (tmp_path / "reference.py").write_text("def row_scale(x, scale=None):\n    return [x, x]\n")
    assert len(Workload(tmp_path, "cpu").reference((torch.ones(3),))) == 2


MIX = '''

def mix(N, M, seed):
    """Larger in some rows."""
    return (_mk(N, M, seed)[0] + 100,)
'''


def test_timed_calls_get_mixed_inputs_which_correct_shapes_verify_as_a_case(tmp_path: Path) -> None:
    write_task(tmp_path, mixed=True)
    with (tmp_path / "make_inputs.py").open("a") as file:
        file.write(MIX)
    workload = Workload(tmp_path, "cpu")
    for plan in workload.plans(Job(str(tmp_path), "", "", "grade", "cuda")):
        args = workload.make_inputs(plan, 7)
        if args is not None:
            assert bool((args[0] > 50).all()) is (plan.timed or plan.case == "mixed"), plan.label
    made = plans(tmp_path, "measure", kinds=("correct", "quick"), shapes=((5, 7),))
    assert [plan.case for plan in made if plan.kind == "correct"] == ["", "scaled", "wide", "mixed"] * 2
    assert [plan.label for plan in made if plan.timed] == ["quick shape 1", "given shape 1"]
    given = [workload.make_inputs(plan, 7) for plan in made if plan.timed]
    assert all(bool((args[0] > 50).all()) for args in given if args is not None)


def test_a_function_called_mix_is_not_used_unless_the_task_says_so(tmp_path: Path) -> None:
    write_task(tmp_path)
    with (tmp_path / "make_inputs.py").open("a") as file:
        file.write(MIX)
    workload = Workload(tmp_path, "cpu")
    assert list(workload.makers) == ["", "scaled", "wide"]
    for plan in workload.plans(Job(str(tmp_path), "", "", "grade", "cuda")):
        args = workload.make_inputs(plan, 7)
        assert plan.case == "wide" or (args is not None and bool((args[0] < 50).all()))
