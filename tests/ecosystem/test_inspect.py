"""Inspect AI, offline: the oracle's reward, a mock model that writes a file and one that only talks.

Run by `make test-ecosystem` in an environment with inspect-ai; collected nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from inspect_ai import eval
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from taskfactory.errors import UsageError
from taskfactory.inspect_tasks import TASKS, compose_file
from taskfactory.verifying import bundle_of

NAME = "deepseek-v32-sparse-mla-decode"


def run(tmp_path: Path, outputs: Iterator[ModelOutput], **options: Any) -> EvalLog:
    (log,) = eval(
        TASKS[NAME](sandbox="local", options="--rehearse", **options),
        model=get_model("mockllm/model", custom_outputs=outputs), display="none", log_dir=str(tmp_path),
    )  # fmt: skip
    return log


def said(output: ModelOutput) -> ModelOutput:
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else a tokenizer is looked for
    return output


def submit() -> ModelOutput:
    return said(ModelOutput.for_tool_call("mockllm", "submit", {"answer": "done"}))


def score(log: EvalLog) -> Any:
    assert log.status == "success", log.error
    assert log.samples is not None
    scores = log.samples[0].scores
    assert scores is not None
    return scores["speed"]


def test_all_five_are_registered_under_our_name() -> None:
    from inspect_ai._util.registry import registry_info

    assert len(TASKS) == 5
    for name, function in TASKS.items():
        assert registry_info(function).name == f"taskfactory/{name}"


def test_the_oracle_earns_a_reward_without_a_model(tmp_path: Path) -> None:
    found = score(run(tmp_path, iter(()), oracle=True))
    assert 0.0 < found.value < 1.0
    assert found.metadata["details"]["status"] == "passed"
    assert "def " in found.answer


def test_a_model_that_does_nothing_earns_nothing(tmp_path: Path) -> None:
    found = score(run(tmp_path, iter([submit()])))
    assert found.value == 0.0
    assert found.metadata["details"]["status"] == "runtime_error"


def test_a_model_that_removes_its_file_earns_nothing(tmp_path: Path) -> None:
    remove = said(ModelOutput.for_tool_call("mockllm", "bash", {"command": "rm sparse_mla.py"}))
    found = score(run(tmp_path, iter([remove, submit()])))
    assert found.value == 0.0
    assert "no such submission file" in found.explanation


def test_the_containers_are_made_from_the_bundle(tmp_path: Path) -> None:
    for gpu in (True, False):
        services = yaml.safe_load(compose_file(bundle_of(NAME), gpu=gpu).read_text())["services"]
        assert {name: Path(each["build"]).name for name, each in services.items()} == {
            "default": "environment", "verifier": "tests",
        }  # fmt: skip
        assert all(each["network_mode"] == "none" and ("deploy" in each) == gpu for each in services.values())
        assert services["default"]["user"] == "solver"


def test_another_sandbox_is_refused() -> None:
    with pytest.raises(UsageError, match="local or docker"):
        TASKS[NAME](sandbox="k8s")


def test_hidden_files_are_not_given_to_the_solver() -> None:
    sample = TASKS[NAME](sandbox="local").dataset[0]
    hidden = Path(os.environ["TASKFACTORY_BUNDLES"], NAME, "tests", "task.json").read_bytes()
    assert sample.files
    assert all(Path(path).read_bytes() != hidden for path in sample.files.values())
