"""Run one solution in Triton's CPU interpreter on its task's correct shapes and cases: a child of test_solutions.py.

    TRITON_INTERPRET=1 python tests/interpret_solution.py SPEC SOLUTION [--every-case]

Default and mixed inputs run on every correct shape. Cases run on the two correct shapes of least canonical work, or on
all of them with --every-case. Prints one JSON object a call and exits 1 if any call failed; a call is judged by the
grader's own comparison, except that the inputs are also compared with what they were before.
"""

import argparse
import importlib.util
import json
import sys
import time
import traceback
from pathlib import Path

import torch

from taskfactory.checks.lab import SHARED_SOURCES
from taskfactory.grader.compare import Gates, as_tuple, build_regions, compare_outputs
from taskfactory.grader.plan import input_makers
from taskfactory.grader.sources import Part, load_namespace
from taskfactory.grader.task import MIXED
from taskfactory.load import SpecFile, load_spec

SEED = 20


def namespace(file: SpecFile) -> dict:
    """The spec's embedded sources, executed for the CPU."""
    sources = [file.source(field) for field in SHARED_SOURCES if file.value(field)]
    return load_namespace([Part(s.text, str(s.path), s.first_line) for s in sources], device="cpu")


def load_function(path: Path, name: str):
    """The function `name` of the Python file `path`."""
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return getattr(module, name)


def clones(args: tuple) -> tuple:
    """The arguments with tensors copied."""
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)


def judge(file: SpecFile, space: dict, function, args: tuple) -> tuple[str, float]:
    """(first failure or "", worst relative error) of one call."""
    spec = file.spec
    private = clones(args)
    actual = as_tuple(function(*args))
    for before, after in zip(private, args, strict=True):
        if isinstance(before, torch.Tensor) and not torch.equal(before.view(torch.uint8), after.view(torch.uint8)):
            return "an input was modified", 0.0
    expected = as_tuple(space[spec.func](*private))
    if len(actual) != len(expected):
        return f"{len(actual)} outputs, expected {len(expected)}", 0.0
    names = spec.tuple_names or ("out",)
    regions = build_regions(space["regions"](*private), names) if "regions" in space else ()
    gates = Gates(spec.tol, spec.tile_kappa, spec.tile_epsilon)
    reports = compare_outputs(expected, actual, names, gates, spec.output_dtypes, regions)
    return next((r.message for r in reports if r.failure), ""), max(r.error for r in reports)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("solution", type=Path)
    parser.add_argument("--every-case", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = load_spec(options.spec)
    space = namespace(file)
    function = load_function(options.solution, file.spec.func)
    shapes = file.spec.correct_shapes
    smallest = sorted(shapes, key=lambda shape: space["canonical_work"](*shape))
    case_shapes = shapes if options.every_case else smallest[:2]
    makers = input_makers(space, mixed=file.spec.timed_src is not None)
    calls = [(name or "default", makers[name], shape) for name in makers if name in ("", MIXED) for shape in shapes]
    calls += [(name, make, shape) for name, make in makers.items() if name not in ("", MIXED) for shape in case_shapes]
    failed = 0
    for name, make, shape in calls:
        args = make(*shape, SEED)
        if args is None:
            continue
        began = time.perf_counter()
        error, trace = 0.0, ""
        try:
            failure, error = judge(file, space, function, tuple(args))
        except Exception as exception:  # one broken call must not hide the others
            failure, trace = f"{type(exception).__name__}: {exception}", traceback.format_exc()
        if trace and not failed:
            print(trace, file=sys.stderr)  # of the first failure only
        failed += bool(failure)
        seconds = round(time.perf_counter() - began, 2)
        line = {"case": name, "shape": shape, "failure": failure, "error": error, "seconds": seconds}
        print(json.dumps(line), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
