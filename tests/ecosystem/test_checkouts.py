"""Exports read by code of the targets that no package index has: KernelBench's and GPU MODE's own.

Run by `tests/ecosystem/run checkouts`, which fetches their repositories; collected nowhere else. Their evaluators need
a GPU; here CUDA's calls are left out and tensors are on the CPU, and everything else is theirs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from taskfactory.exporters import export, write
from taskfactory.load import SpecFile, load_spec
from taskfactory.paths import resolve_spec, specs_dir

CHECKOUTS = Path(os.environ["TASKFACTORY_CHECKOUTS"])
# Their package's own __init__ imports clients of language models; what is used here does not.
sys.modules["kernelbench"] = ModuleType("kernelbench")
sys.modules["kernelbench"].__path__ = [str(CHECKOUTS / "KernelBench" / "src" / "kernelbench")]
kernelbench = importlib.import_module("kernelbench.eval")
sys.path.insert(0, str(CHECKOUTS / "kernelbot" / "src"))
kernelbot = importlib.import_module("libkernelbot.task")

TASKS = sorted(path.stem.replace("_", "-") for path in specs_dir().glob("*.py"))
SMALL = Path(__file__).resolve().parents[1] / "fixtures" / "specs" / "row_scale.py"
PROBLEM_SETS = CHECKOUTS / "reference-kernels" / "problems"
KEPT = ("reference", "submission", "task", "utils", "comparing", "eval")
"""Modules of a problem folder, which import one another by these names."""


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_, **__: None)


def on_cpu(text: str) -> str:
    return text.replace('device="cuda"', 'device="cpu"').replace("device='cuda'", "device='cpu'")


def kernelbench_files(file: SpecFile) -> list[str]:
    return [data.decode() for name, data in export(file, "kernelbench").files.items() if name.endswith(".py")]


@pytest.mark.parametrize("task", TASKS)
def test_kernelbench_loads_every_problem(task: str) -> None:
    texts = kernelbench_files(load_spec(resolve_spec(task)))
    assert texts
    for text in texts:
        loaded = kernelbench.load_original_model_and_inputs(text, {})
        assert loaded is not None
        model, get_init_inputs, get_inputs = loaded
        assert issubclass(model, torch.nn.Module)
        assert get_init_inputs() == []
        assert callable(get_inputs)
        model()


@pytest.mark.parametrize(("change", "passes"), [("", True), (" * 1.5", False)])
def test_kernelbench_tells_right_from_wrong(change: str, passes: bool) -> None:
    text = on_cpu(kernelbench_files(load_spec(SMALL))[0])
    model, get_init_inputs, get_inputs = kernelbench.load_original_model_and_inputs(text, {})

    class ModelNew(model):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any) -> Any:
            return eval(f"result{change}", {"result": super().forward(*args)})

    verdict = kernelbench.run_and_check_correctness(
        model(*get_init_inputs()), ModelNew(*get_init_inputs()), get_inputs, {}, 3, device=torch.device("cpu")
    )
    assert verdict.correctness is passes, verdict


@pytest.mark.parametrize("task", ["deepseek-v32-sparse-mla-decode", "cache-hit-skip-gate"])
def test_integers_and_flags_survive_kernelbenchs_cast(task: str) -> None:
    file = load_spec(resolve_spec(task))
    text = on_cpu(kernelbench_files(file)[0])
    public = file.spec.correct_shapes[0]
    large = file.spec.measure_shapes[0]
    text = text.replace(f"({', '.join(map(str, large))}, seed)", f"({', '.join(map(str, public))}, seed)")
    model, _, get_inputs = kernelbench.load_original_model_and_inputs(text, {})
    given = get_inputs()
    cast = [kernelbench._process_input_tensor(each, torch.device("cpu")) for each in given]
    pairs = zip(given, cast, strict=True)
    assert any(torch.is_tensor(a) and a.dtype != b.dtype and not a.is_floating_point() for a, b in pairs)
    found, expected = model()(*cast), model()(*given)
    assert torch.isfinite(found.float()).all()
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.02, atol=0.02)


@pytest.fixture(params=["pmpp_v2", "helion"])
def problem_set(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a problem set's own files, for folders to be put beside them."""
    for name in ("eval.py", "utils.py"):
        (tmp_path / name).write_text((PROBLEM_SETS / request.param / name).read_text("utf-8"), "utf-8")
    return tmp_path


@pytest.mark.parametrize("task", TASKS)
def test_gpu_modes_reader_and_evaluator_take_every_folder(task: str, problem_set: Path) -> None:
    file = load_spec(resolve_spec(task))
    write(export(file, "gpu-mode"), problem_set)
    (folder,) = (path for path in problem_set.iterdir() if path.is_dir())
    definition = kernelbot.make_task_definition(folder)
    assert file.spec.title in definition.description
    mode = kernelbot.SubmissionMode.TEST
    config = kernelbot.build_task_config(definition.task, "# answer", "0", mode)
    assert config["sources"]["submission.py"] == "# answer"
    assert set(config["sources"]) >= {"eval.py", "utils.py", "reference.py", "task.py", "comparing.py"}
    with beside(folder) as modules:
        for cases in (definition.task.tests, definition.task.benchmarks):
            lines = "\n".join("; ".join(f"{key}: {value}" for key, value in case.items()) for case in cases)
            (folder / "cases.txt").write_text(lines + "\n")
            read = modules["eval"].get_test_cases(str(folder / "cases.txt"), None)
            assert [case.args for case in read] == cases


@pytest.mark.parametrize("problem_set", ["pmpp_v2"], indirect=True)  # helion's evaluator records CUDA graphs
@pytest.mark.parametrize(("change", "passes"), [("", True), (" * 2", False)])
def test_gpu_modes_evaluator_tells_right_from_wrong(change: str, passes: bool, problem_set: Path) -> None:
    file = load_spec(SMALL)
    write(export(file, "gpu-mode"), problem_set)
    (folder,) = (path for path in problem_set.iterdir() if path.is_dir())
    for name in ("reference.py", "submission.py"):
        (folder / name).write_text(on_cpu((folder / name).read_text("utf-8")), "utf-8")
    definition = kernelbot.make_task_definition(folder)
    with beside(folder) as modules:
        answer = ModuleType("submission")
        func = getattr(modules["reference"], file.spec.func)

        def custom_kernel(data: Any) -> Any:
            first, *rest = outputs if isinstance(outputs := func(*data), tuple) else (outputs,)
            changed = eval(f"first{change}", {"first": first})
            return (changed, *rest) if rest else changed

        answer.custom_kernel = custom_kernel  # type: ignore[attr-defined]
        sys.modules["submission"] = answer
        for case in definition.task.tests:
            test = modules["eval"].TestCase(args=dict(case), spec="")
            good, message = modules["eval"]._run_single_test(test)
            assert good is passes, message


class beside:
    """The modules of a problem folder and of its set, importable by name while the block lasts."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(folder), str(folder.parent)]

    def __enter__(self) -> dict[str, ModuleType]:
        for name in KEPT:
            sys.modules.pop(name, None)
        sys.path[:0] = self.paths
        return dict(self._modules())

    def _modules(self) -> Iterator[tuple[str, ModuleType]]:
        for name in ("reference", "eval"):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            yield name, module

    def __exit__(self, *_: object) -> None:
        for name in KEPT:
            sys.modules.pop(name, None)
        for path in self.paths:
            sys.path.remove(path)
