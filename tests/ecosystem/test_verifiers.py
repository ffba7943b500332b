"""verifiers 0.4, offline: `vf-validate` shows that gold passes and that doing nothing does not.

Run by `make test-ecosystem` in an environment with verifiers; collected nowhere else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from taskfactory_verifiers import KernelConfig, KernelTaskset

NAME = "deepseek-v32-sparse-mla-decode"


def test_the_taskset_holds_all_five() -> None:
    tasks = list(KernelTaskset(KernelConfig()))
    assert len(tasks) == 5
    assert len({task.data.name for task in tasks}) == 5
    assert all("/app" in task.data.prompt_text for task in tasks)


def test_gold_passes_and_noop_does_not(tmp_path: Path) -> None:
    words = [
        str(Path(sys.executable).parent / "vf-validate"), "taskfactory-verifiers", "--runtime.type", "subprocess",
        "--taskset.options=--rehearse", "--taskset.tasks", json.dumps([NAME]), "--rich", "false", "-o", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = tmp_path.rglob("results.jsonl")
    (row,) = (json.loads(line) for line in results.read_text().splitlines())
    assert row["gold"]["valid"] is True
    assert row["noop"]["valid"] is True
    assert row["noop"]["rewards"] == {"speed": 0.0}
