"""GPU MODE: a problem folder with task.yml, reference.py, task.py and a starter, for a folder of their problem sets.

Their own `eval.py` and `utils.py` are named as `../eval.py` and `../utils.py`, where their repository has them. The
comparison is ours, so tolerance and gates are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from taskfactory.describe import case_list
from taskfactory.exporters import Export
from taskfactory.exporters.carry import ALWAYS_LOST, metadata, module_text
from taskfactory.load import SpecFile
from taskfactory.prose import environment, render_prose
from taskfactory.render import vendored_grader

_LOST = (
    "Canonical work and the metric have no place: the leaderboard ranks by time, here the geometric mean.",
    "A check of the form `outputs in a list or tuple` is all that is said about what is returned.",
)
_TEST_SEED, _BENCHMARK_SEED = 1000, 2000


def export(file: SpecFile) -> Export:
    """See the module."""
    spec = file.spec
    makers = ["_mk", *(f"case_{case.name}" for case in case_list(spec.cases_src))]
    makers += ["mix"] if spec.timed_src else []
    losses = [*ALWAYS_LOST, *_LOST]
    odd = [name for name in spec.shape_names if not re.fullmatch("[a-zA-Z]+", name)]
    if odd:
        losses.append(f"The eval.py of most problem sets reads names of letters only, so not {', '.join(odd)}.")
    view = {
        "func": spec.func, "signature": spec.signature, "names": spec.shape_names, "makers": makers,
        "outputs": spec.tuple_names or ("out",), "tol": spec.tol, "kappa": spec.tile_kappa,
        "epsilon": spec.tile_epsilon, "dtypes": spec.output_dtypes, "has_regions": bool(spec.regions_src),
    }  # fmt: skip

    def text(name: str) -> str:
        return environment().get_template(f"gpu-mode/{name}.jinja").render(view)

    tests = [
        dict(zip(spec.shape_names, shape, strict=True)) | {"case": case, "seed": _TEST_SEED + k}
        for k, shape in enumerate(spec.correct_shapes)
        for case in range(len(makers))
    ]
    timed = makers.index("mix") if spec.timed_src else 0
    benchmarks = [
        dict(zip(spec.shape_names, shape, strict=True)) | {"case": timed, "seed": _BENCHMARK_SEED + k}
        for k, shape in enumerate(spec.measure_shapes)
    ]
    description = f"{spec.title}\n\n{render_prose(file)['blurb']}\n"
    folder = spec.name.replace("-", "_") + "_py"
    files = {
        "task.yml": _task_yml(description, tests, benchmarks),
        "reference.py": module_text(file, metadata(file, losses), text("reference.py")),
        "task.py": text("task.py"),
        "submission.py": text("submission.py"),
        "comparing.py": vendored_grader()["compare.py"],
    }
    return Export({f"{folder}/{name}": content.encode("utf-8") for name, content in files.items()}, tuple(losses))


def _task_yml(description: str, tests: Iterable[Mapping[str, int]], benchmarks: Iterable[Mapping[str, int]]) -> str:
    """task.yml; every value is written as JSON, which is YAML too."""
    own = ("task.py", "reference.py", "comparing.py")
    files = [
        {"name": "submission.py", "source": "@SUBMISSION@"},
        *({"name": name, "source": name} for name in own),
        *({"name": name, "source": f"../{name}"} for name in ("utils.py", "eval.py")),
    ]
    lines = ["files:", *_items(files), 'lang: "py"', f"description: {json.dumps(description, ensure_ascii=True)}"]
    lines += ['config: {"main": "eval.py"}', 'templates: {"Python": "submission.py"}', 'ranking_by: "geom"']
    lines += ["test_timeout: 600", "benchmark_timeout: 600", "ranked_timeout: 900"]
    return "\n".join([*lines, "tests:", *_items(tests), "benchmarks:", *_items(benchmarks)]) + "\n"


def _items(values: Iterable[Any]) -> list[str]:
    return [f"  - {json.dumps(value)}" for value in values]
