"""Our five specs: what they claim holds, their alternates agree with the reference, their ablations and cases bite.

Everything runs on the CPU, at each spec's smallest correct shape; the dynamic checks of `taskfactory validate --run`
cover the other shapes. Parametrised over specs/*.py, so a new spec is tested by being there.
"""

import ast
import inspect
import math

import pytest
import torch

from taskfactory.checks import check_many
from taskfactory.grader.compare import Gates, OutputReport, as_tuple, build_regions, compare_outputs
from taskfactory.grader.plan import input_makers
from taskfactory.grader.sources import Part, load_namespace
from taskfactory.load import SpecFile, load_spec
from taskfactory.paths import specs_dir

SOURCES = (
    "reference_imports", "flops_src", "make_inputs_src", "timed_src", "cases_src", "reference_src", "regions_src",
)  # fmt: skip
SEED = 20
SPECS = [load_spec(path) for path in sorted(specs_dir().glob("*.py"))]


def named(task: str) -> SpecFile:
    return next(file for file in SPECS if file.spec.name == task)


class Bench:
    """One spec's sources executed on the CPU, used at one shape: the smallest correct one unless told."""

    def __init__(self, file: SpecFile, shape: tuple[int, ...] | None = None) -> None:
        self.file, self.spec = file, file.spec
        fields = [name for name in SOURCES if file.value(name)]
        fields += [f"alternates.{name}" for name in self.spec.alternates]
        fields += [f"ablations.{name}" for name in self.spec.ablations]
        sources = [file.source(name) for name in fields]
        self.namespace = load_namespace([Part(s.text, str(s.path), s.first_line) for s in sources], device="cpu")
        work = file.formulas()
        self.shape = shape or min(self.spec.correct_shapes, key=lambda shape: work.call("canonical_work", *shape))
        self.names = self.spec.tuple_names or ("out",)
        self.reference = self.namespace[self.spec.func]
        self.makers = input_makers(self.namespace, mixed=self.spec.timed_src is not None)
        self.cases = {name: make for name, make in self.makers.items() if name}
        self._kept: dict[str, tuple] = {}

    def inputs(self, case: str = "", seed: int = SEED):
        """Fresh arguments: defaults, or a case's, or the mixed ones; None where the case does not apply."""
        return self.makers[case](*self.shape, seed)

    def expected(self, case: str = ""):
        """The reference's outputs on `inputs(case)`, computed once."""
        if case not in self._kept:
            self._kept[case] = as_tuple(self.reference(*self.inputs(case)))
        return self._kept[case]

    def judge(self, outputs, case: str = "") -> list[OutputReport]:
        """The grader's comparison of some outputs with the reference's on the same inputs."""
        declared = self.namespace["regions"](*self.inputs(case)) if self.spec.regions_src else {}
        gates = Gates(self.spec.tol, self.spec.tile_kappa, self.spec.tile_epsilon)
        regions = build_regions(declared, self.names)
        return compare_outputs(
            self.expected(case), as_tuple(outputs), self.names, gates, self.spec.output_dtypes, regions
        )

    def passes(self, outputs, case: str = "") -> bool:
        return not any(report.failure for report in self.judge(outputs, case))


@pytest.fixture(scope="module", params=SPECS, ids=lambda file: file.path.stem)
def bench(request) -> Bench:
    return Bench(request.param)


def same(a, b) -> bool:
    """Equality of two arguments or outputs, NaN equal to NaN."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return torch.equal(a, b) or (a.is_floating_point() and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
    return type(a) is type(b) and a == b


def all_same(a, b) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def test_the_five_tasks_are_there():
    assert {file.spec.name for file in SPECS} >= {
        "adaptive-sparsity-threshold",
        "based-forward",
        "cache-hit-skip-gate",
        "conv3d-tiled-decode-blend",
        "deepseek-v32-sparse-mla-decode",
    }


def test_no_findings():
    assert [str(finding) for finding in check_many(SPECS)] == []


def test_has_all_that_a_task_of_ours_needs(bench):
    spec = bench.spec
    assert len(spec.alternates) >= 1
    assert len(spec.ablations) >= 2
    assert len(bench.cases) >= 3
    assert spec.derived_src
    assert spec.floor_src
    assert spec.authors
    assert bench.file.path.stem == spec.name.replace("-", "_")


def test_formulas_are_positive_integers_and_claims_hold(bench):
    formulas = bench.file.formulas()
    spec = bench.spec
    for shape in (*spec.grader_shapes, *spec.measure_shapes, *spec.measure_quick_shapes, *spec.correct_shapes):
        work = formulas.call("canonical_work", *shape)
        unavoidable = formulas.call("floor", *shape)
        assert type(work) is int
        assert work > 0
        assert all(type(value) is int and value > 0 for value in unavoidable)
        assert all(math.isfinite(value) for value in formulas.call("derived", *shape).values())
    for shape in spec.grader_shapes:
        assert [text for text, holds in formulas.call("claims", *shape).items() if not holds] == []


def test_interpreted_formulas_equal_executed_ones(bench):
    formulas = bench.file.formulas()
    executed = {**bench.namespace, "math": math}  # the interpreter offers math without an import
    for name in ("derived_src", "floor_src"):
        exec(bench.file.value(name), executed)
    for shape in (*bench.spec.grader_shapes, *bench.spec.correct_shapes):
        for name in ("canonical_work", "derived", "claims", "floor"):
            assert formulas.call(name, *shape) == executed[name](*shape), name


def test_inputs_follow_from_the_seed(bench):
    assert all_same(bench.inputs(), bench.inputs())
    assert not all_same(bench.inputs(), bench.inputs(seed=SEED + 1))


def test_reference_is_deterministic_finite_and_leaves_its_inputs(bench):
    args = bench.inputs()
    outputs = as_tuple(bench.reference(*args))
    assert all_same(args, bench.inputs())
    assert all_same(outputs, bench.expected())
    assert len(outputs) == len(bench.names)
    assert all(bool(torch.isfinite(value.float()).all()) for value in outputs)
    for value, dtypes in zip(outputs, bench.spec.output_dtypes or (), strict=False):
        assert str(value.dtype).removeprefix("torch.") in dtypes


def test_alternates_agree_on_default_inputs_and_all_cases(bench):
    for case in ("", *bench.cases):
        if (args := bench.inputs(case)) is None:
            continue
        for name in bench.spec.alternates:
            reports = bench.judge(bench.namespace[name](*args), case)
            assert [report.message for report in reports if report.failure] == [], (name, case or "default")
            # An alternate that barely passes says that the tolerance is too tight for honest work.
            assert all(report.error <= 0.6 * bench.spec.tol for report in reports), (name, case or "default")
        assert all_same(args, bench.inputs(case)), f"an alternate wrote into the inputs of {case or 'default'}"


def test_ablations_fail_on_default_inputs_or_a_case(bench):
    """A feature that the default inputs leave idle needs a case that does not."""
    for name in bench.spec.ablations:
        caught = (
            case
            for case in ("", *bench.cases)
            if (args := bench.inputs(case)) is not None and not bench.passes(bench.namespace[name](*args), case)
        )
        assert next(caught, None) is not None, name


def test_cases_differ_from_the_default_and_stay_finite(bench):
    applied = 0
    for case in bench.cases:
        if (args := bench.inputs(case)) is None:
            continue
        applied += 1
        assert not all_same(args, bench.inputs()), case
        assert all_same(args, bench.inputs(case)), f"{case} does not follow from its seed"
        assert all(bool(torch.isfinite(value.float()).all()) for value in bench.expected(case)), case
        assert inspect.getdoc(bench.cases[case]), f"{case} says in its docstring what it exercises"
    assert applied >= 3


def test_every_argument_changes_the_output(bench):
    """For each parameter some inputs that differ in nothing else give another result."""
    parameters = list(inspect.signature(bench.reference).parameters)
    base = bench.inputs()
    donors = [bench.inputs(seed=SEED + 1), *filter(None, map(bench.inputs, bench.cases))]
    for index, parameter in enumerate(parameters):
        assert any(_changes(bench, base, index, donor) for donor in donors), parameter


def _changes(bench: Bench, base, index: int, donor) -> bool:
    """Whether taking one argument from `donor`, whose others may differ, changes the reference's outputs."""
    if index >= len(donor) or (index < len(base) and same(base[index], donor[index])):
        return False
    args = [*base[:index], donor[index], *base[index + 1 :]]
    try:
        outputs = as_tuple(bench.reference(*args))
    except (RuntimeError, IndexError, ValueError):  # arguments that do not fit together say nothing
        return False
    return not all_same(outputs, bench.expected())


def test_trivial_answers_fail(bench):
    expected = bench.expected()
    assert bench.passes(tuple(value.clone() for value in expected))
    assert not bench.passes(tuple(torch.zeros_like(value) for value in expected))
    assert not bench.passes(tuple(torch.ones_like(value) for value in expected))
    stale = as_tuple(bench.reference(*bench.inputs(seed=SEED + 1)))
    assert not bench.passes(stale)


def test_no_source_names_another_device(bench):
    """The rewrite to the CPU replaces the literal "cuda" only; "cuda:0" or .cuda() would escape it."""
    for name in SOURCES:
        for node in ast.walk(ast.parse(bench.file.value(name) or "")):
            assert not (isinstance(node, ast.Attribute) and node.attr == "cuda"), name
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not node.value.startswith("cuda:"), name


def test_an_arithmetic_select_fails_where_the_gate_has_junk_in_unread_streams():
    gate = Bench(named("cache-hit-skip-gate"))

    def arithmetic(hidden, fresh, cache, hit, block):
        flag = hit.repeat_interleave(block, 1)[:, : hidden.shape[1], None].float()
        x, y, c = hidden.float(), fresh.float(), cache.float()
        return tuple((flag * a + (1 - flag) * b).to(hidden.dtype) for a, b in (((x + c), y), (c, (y - x))))

    assert gate.passes(arithmetic(*gate.inputs()))
    assert not gate.passes(arithmetic(*gate.inputs("junk_in_unread_streams")), "junk_in_unread_streams")


def test_rearranged_thresholds_fail_where_rounding_decides():
    mask = Bench(named("adaptive-sparsity-threshold"))
    report, dilate = mask.namespace["_report"], mask.namespace["_dilate"]

    def finish(kept, grid):
        kept.diagonal(dim1=-2, dim2=-1).fill_(True)
        return report(dilate(kept, grid))

    rules = {
        "sum": lambda s, d: s + d >= s.amax(-1, keepdim=True),
        "difference": lambda s, d: s.amax(-1, keepdim=True) - s <= d,
        "strict": lambda s, d: s > s.amax(-1, keepdim=True) - d,
    }
    for name, rule in rules.items():
        scores, delta, grid = mask.inputs("large_offset")
        assert not mask.passes(finish(rule(scores, delta[:, None, None]), grid), "large_offset"), name


def test_a_query_rescaled_in_bf16_fails_on_huge_logits():
    file = named("deepseek-v32-sparse-mla-decode")
    mla = Bench(file, file.spec.correct_shapes[0])

    def folded(q, kv_cache, indices, dv, scale=None):
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        return mla.reference((q.float() * factor).bfloat16(), kv_cache, indices, dv, 1.0)

    assert mla.passes(folded(*mla.inputs()))
    assert not mla.passes(folded(*mla.inputs("huge_logits")), "huge_logits")
