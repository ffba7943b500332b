"""Every static check fires on the damage it is there for, at the right line, and on nothing else."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import specimens
from specimens import damaged, findings_of, line_of, write
from taskfactory.checks import check_many
from taskfactory.checks.codes import CODES, render_docs
from taskfactory.checks.templates import template_problems
from taskfactory.load import load_spec

ROOT = Path(__file__).resolve().parents[1]

SIGNATURE = 'signature="ragged_softmax(x, lengths, scale=1.0)"'
REFERENCE = 'def ragged_softmax(x, lengths, scale=1.0):\n    """Mask'

# (code, what is replaced by what, text on the line where the finding must be)
DAMAGE = [
    ("TF101", [('name="ragged-softmax"', 'name="Ragged_Softmax"')], 'name="Ragged'),
    ("TF101", [('name="ragged-softmax"', f'name="a{"-b" * 40}"')], 'name="a-b'),
    ("TF102", [('module="ragged_softmax.py"', 'module="sub/ragged.py"')], "module="),
    ("TF102", [('module="ragged_softmax.py"', 'module="class.py"')], "module="),
    ("TF103", [('module="ragged_softmax.py"', 'module="reference.py"')], "module="),
    ("TF103", [('module="ragged_softmax.py"', 'module="random.py"')], "module="),
    ("TF104", [('func="ragged_softmax"', 'func="ragged softmax"')], "func="),
    ("TF105", [('shape_names=("M", "N")', 'shape_names=("M", "seed")')], "shape_names="),
    ("TF105", [('shape_names=("M", "N")', 'shape_names=("M", "M")')], "shape_names="),
    ("TF106", [('name="ragged-softmax"', 'name="other-name"')], 'name="other'),
    ("TF108", [('compare="tensor"', 'compare="tuple"')], "compare="),
    ("TF108", [('compare="tensor",', 'compare="tensor", tuple_names=("a",),')], "compare="),
    ("TF108", [('compare="tensor",', 'compare="tuple", tuple_names=("a", "a"),')], "compare="),
    ("TF109", [('keywords=["softmax", "masking", "memory-bound"]', "keywords=[]")], "keywords="),
    ("TF110", [('version="0.1.0"', 'version="one"')], "version="),
    ("TF111", [("tol=1e-2,", 'tol=1e-2, output_dtypes=(("bf16",),),')], "tol="),
    ("TF111", [("tol=1e-2,", 'tol=1e-2, output_dtypes=(("int8",), ("int8",)),')], "tol="),
    ("TF201", [("inside = columns[None, :]", "inside = = columns[None, :]")], "inside = = columns"),
    ("TF201", [("    return 2 * M * N + 4 * M, 0", "return 1")], "return 1"),
    ("TF202", [(REFERENCE, 'def other(x, lengths, scale=1.0):\n    \'Mask\'\n    """')], "reference_src='''"),
    ("TF203", [(REFERENCE, REFERENCE.replace("1.0", "2.0"))], "def ragged_softmax(x, lengths, scale=2.0)"),
    ("TF204", [(SIGNATURE, 'signature="ragged_softmax(x, *lengths)"')], "signature="),
    ("TF204", [(SIGNATURE, 'signature="other(x, lengths, scale=1.0)"')], "signature="),
    ("TF204", [(SIGNATURE, 'signature="ragged_softmax("')], "signature="),
    ("TF205", [("def _mk(M, N, seed)", "def make(M, N, seed)")], "make_inputs_src='''"),
    ("TF205", [("def canonical_work(M, N)", "def work(M, N)")], "flops_src='''"),
    ("TF205", [("def floor(M, N)", "def bound(M, N)")], "floor_src='''"),
    ("TF206", [("def _mk(M, N, seed)", "def _mk(N, M, seed)")], "def _mk(N, M"),
    ("TF205", [("def mix(M, N, seed)", "def _mixed(M, N, seed)")], "timed_src='''"),
    ("TF206", [("def mix(M, N, seed)", "def mix(M, seed)")], "def mix(M, seed)"),
    ("TF206", [("def canonical_work(M, N)", "def canonical_work(M, N, chunk)")], "def canonical_work(M, N, chunk)"),
    ("TF206", [("def derived(M, N)", "def derived(M)")], "def derived(M)"),
    ("TF206", [("def case_full_rows(M, N, seed)", "def case_full_rows(M, N)")], "def case_full_rows(M, N)"),
    ("TF207", [('reference_imports="import torch"', 'reference_imports="import torch\\nX = 1"')], "reference_imports="),
    ("TF208", [("def two_sums(", "def three_sums(")], "\"two_sums\": '''"),
    (
        "TF208",
        [("def ignore_scale(x, lengths, scale=1.0)", "def ignore_scale(x, scale=1.0)")],
        "def ignore_scale(x, scale",
    ),
    ("TF209", [("logits = (x.float() * scale)", "logits = F.relu(x.float() * scale)")], "logits = F.relu"),
    ("TF209", [("return x.masked_fill_(behind", "return x.masked_fill_(beside")], "return x.masked_fill_(beside"),
    ("TF209", [("weights = torch.exp(", "weights = numpy.exp(")], "weights = numpy"),
    ("TF210", [("def case_full_rows(", "def full_rows(")], "def full_rows("),
    ("TF210", [("def case_full_rows(", "def case_Full(")], "def case_Full("),
    ("TF210", [("def mix(", "def case_more(M, N, seed):\n    return None\n\n\ndef mix(")], "def case_more("),
    ("TF210", [("def case_full_rows(", "def case_mixed(")], "def case_mixed("),
    ("TF301", [("correct_shapes=[(7, 64)", "correct_shapes=[(7, 64, 1)")], "correct_shapes="),
    ("TF302", [("correct_shapes=[(7, 64)", "correct_shapes=[(7, -64)")], "correct_shapes="),
    ("TF303", [("(3, 129)", "(7, 64)")], "correct_shapes="),
    ("TF304", [("(131072, 3072)", "(131072, 4096)")], "measure_shapes="),
    (
        "TF305",
        [("measure_quick_shapes=[(4096, 2048), (2048, 5120)]", "measure_quick_shapes=[]")],
        "measure_quick_shapes=",
    ),
    ("TF306", [("tol=1e-2", "tol=1.5")], "tol="),
    ("TF306", [("tol=1e-2", "tol=0.0")], "tol="),
    ("TF307", [("tol=1e-2,", "tol=1e-2, tile_kappa=0.5,")], "tol="),
    ("TF307", [("tol=1e-2,", "tol=1e-2, tile_epsilon=-0.5,")], "tol="),
    ("TF401", [('title="Write a fast softmax over ragged rows"', 'title=" "')], "title="),
    ("TF402", [("once. What lies behind", "once. TODO what lies behind")], "TODO"),
    ("TF403", [("once. What lies behind", "once, as in (65536, 10240). What lies behind")], "once, as in"),
    ("TF403", [("tile size.", "tile size, at M=131072, N=4096 say.")], "M=131072"),
    ("TF403", [("tile size.", "tile size.\n\n| 131,072 | 4,096 |")], "| 131,072"),
    ("TF403", [('"""Mask, then softmax, in float32."""', '"""At 32768x20480 too."""')], "32768x20480"),
    ("TF405", [("once. What lies behind", "once; the tolerance is `2e-2`. What lies behind")], "once; the tolerance"),
    (
        "TF405",
        [("within relative Frobenius error `{{ tol }}`", "within relative Frobenius error `3e-2`")],
        "within relative",
    ),
    ("TF406", [("`M` is {{ graded.M }} rows", "`M` is 10000-90000 rows")], "`M` is 10000"),
    ("TF406", [("`M` is {{ graded.M }} rows", "`M` in {1, 2} rows")], "`M` in {1"),
    ("TF407", [("{{ graded.x_gib | digits(1) }} GiB", "3-9 GiB")], "3-9 GiB"),
    ("TF408", [("| `scale` | scalar |", "| `scale`, `eps` | scalar |")], "| `scale`, `eps`"),
    ("TF409", [("| `scale` | scalar | `float` | multiplies the scores |\n", "")], "| `x` | `(M, N)`"),
    ("TF410", [("| arg | shape |", "| thing | shape |")], 'contract_md="""'),
    ("TF411", [("    scale:   float, multiplies the scores.\n", "")], 'returns_doc="""'),
    ("TF412", [('A row always fits into shared memory."""', '{{ graded.__class__ }}"""')], "{{ graded.__class__"),
    ("TF420", [("{{ graded.x_gib | digits(1) }} GiB", "{{ graded.nothing }} GiB")], "graded.nothing"),
    ("TF420", [("{{ graded.x_gib | digits(1) }} GiB", "{{ graded.x_gib GiB")], "{{ graded.x_gib GiB"),
    ("TF501", [("    return 2 * M * N + 2 * M * N + 4 * M", "    return torch.numel(M)")], "return torch.numel"),
    ("TF501", [('return {"x_gib": 2 * M * N / 2**30}', 'return {"x_gib": 2 * M * N / (M - M)}')], 'return {"x_gib"'),
    ("TF502", [("    return 2 * M * N + 2 * M * N + 4 * M", "    return 4 * M * N / 2")], "def canonical_work"),
    ("TF503", [('return {"x_gib": 2', 'return {"M": 2')], "def derived"),
    ("TF503", [('return {"x_gib": 2 * M * N / 2**30}', "return M")], "def derived"),
    ("TF504", [("2 * N <= 227 * 1024", "2 * N <= 16 * 1024")], '"A row always fits'),
    ("TF505", [("2 * N <= 227 * 1024", "N")], "def claims"),
    ("TF506", [("return 2 * M * N + 4 * M, 0", "return 2 * M * N + 4 * M")], "def floor"),
    ("TF507", [('"""Bytes: the scores', '"""FLOPs: the scores')], "def canonical_work"),
    ("TF508", [("return 2 * M * N + 4 * M, 0", "return 20 * M * N, 0")], "def floor"),
]
WHOLE_PARTS = {  # warnings about what is left out: the field, and what it is cut down to
    "TF221": ("alternates", "{}"),
    "TF222": ("ablations", "{}"),
    "TF223": ("floor_src", "None"),
    "TF224": ("cases_src", "None"),
    "TF227": ("timed_src", "None"),
    "TF226": ("derived_src", "None"),
}
ELSEWHERE = {"TF107", "TF225", "TF404", "TF421", *(f"TF{number:03}" for number in range(1, 15))}


@pytest.mark.parametrize(("code", "changes", "where"), DAMAGE, ids=[f"{d[0]}-{i}" for i, d in enumerate(DAMAGE)])
def test_damage_is_found_at_its_line(tmp_path, code, changes, where):
    content = damaged(*changes)
    path = write(tmp_path, content)
    found = findings_of(path)
    matching = [finding for finding in found if finding.code == code]
    assert matching, f"only {[f.headline() for f in found]}"
    assert line_of(content, where) in [finding.line for finding in matching]
    for finding in matching:
        assert finding.path == path
        assert finding.severity == CODES[code].severity
        assert finding.field
        assert finding.hint
        assert "\n" not in finding.message


def test_flawless_spec_has_no_findings(tmp_path):
    assert findings_of(write(tmp_path, specimens.text())) == []


@pytest.mark.parametrize("code", WHOLE_PARTS)
def test_left_out_parts_are_warned_about(tmp_path, code):
    field, empty = WHOLE_PARTS[code]
    path = write(tmp_path, replaced_field(specimens.text(), field, empty))
    assert code in [finding.code for finding in findings_of(path)]


def replaced_field(content: str, field: str, value: str) -> str:
    start = content.index(f"    {field}=")
    stop = re.compile(r"\n    (?:[a-z_]+=|# )").search(content, start + 5)
    return content[:start] + f"    {field}={value}," + content[stop.start() :]


def test_each_code_is_tested_here_or_said_to_be_elsewhere():
    tested = {code for code, _, _ in DAMAGE} | set(WHOLE_PARTS) | ELSEWHERE
    assert tested == {code for code in CODES if not code.startswith(("TF6", "TF7"))}


def test_every_code_in_the_package_is_in_the_table():
    package = ROOT / "tools" / "taskfactory"
    used: set[str] = set()
    for path in package.rglob("*.py"):
        if path.name != "codes.py" and "grader" not in path.parts:
            used |= set(re.findall(r'"(TF\d{3})"', path.read_text("utf-8")))
    assert used <= set(CODES)
    assert {code for code in CODES if not code.startswith("TF6")} <= used


def test_docs_are_current():
    assert (ROOT / "docs" / "checks.md").read_text("utf-8") == render_docs()
    assert all(f"### {code}:" in render_docs() for code in CODES)


def test_idle_argument(tmp_path):
    content = damaged(("return x, lengths, 0.5", "return x, lengths"))
    content = replaced_field(replaced_field(content, "cases_src", "None"), "timed_src", "None")
    found = [finding for finding in findings_of(write(tmp_path, content)) if finding.code == "TF225"]
    assert [finding.line for finding in found] == [line_of(content, "def _mk")]
    assert "'scale'" in found[0].message
    # The default itself, passed explicitly, exercises nothing either.
    same = content.replace("return x, lengths\n", "return x, lengths, 1.0\n")
    assert "TF225" in [finding.code for finding in findings_of(write(tmp_path, same))]


def test_part_of_a_graded_shape(tmp_path):
    """In three dimensions a pair may give a size away; the same pair in a public shape does not."""
    names = ("M", "N", "K")
    content = specimens.text().replace("(M, N)", "(M, N, K)").replace("(M, N, seed)", "(M, N, K, seed)")
    content = content.replace('shape_names=("M", "N")', f"shape_names={names!r}")
    content = re.sub(r"grader_shapes=\[.*\]", "grader_shapes=[(64, 300, 7), (96, 200, 5)]", content)
    content = re.sub(r"measure_shapes=\[.*\]", "measure_shapes=[(64, 300, 9)]", content)
    content = re.sub(r"measure_quick_shapes=\[.*\]", "measure_quick_shapes=[(8, 8, 8)]", content)
    content = re.sub(r"correct_shapes=\[.*\]", "correct_shapes=[(3, 3, 3)]", content)

    def codes(sentence: str) -> set[str]:
        path = write(tmp_path, content.replace("tile size.", f"tile size. {sentence}"))
        return {finding.code for finding in findings_of(path)} & {"TF403", "TF404"}

    assert codes("Think of 64x300 tiles.") == set()
    assert codes("Think of 96x200 tiles.") == {"TF404"}
    assert codes("Think of 96, 200, 5.") == {"TF403"}
    assert codes("Think of `M` 96, `N` 200 and `K` 5.") == {"TF403"}
    assert codes("Think of (64, 300, 9).") == set()


def test_rendered_ranges_can_give_a_shape_away(tmp_path):
    content = damaged(
        ("grader_shapes=[(131072, 4096), (65536, 10240), (262144, 2560), (32768, 20480), (98304, 6144)]",
         "grader_shapes=[(131072, 4096)]"),
        ("GiB of scores.", "GiB of scores: {{ graded.M }} x {{ graded.N }}."),
    )  # fmt: skip
    assert "TF421" in [finding.code for finding in findings_of(write(tmp_path, content))]


def test_two_specs_of_one_name(tmp_path):
    first = write(tmp_path, specimens.text())
    (tmp_path / "other").mkdir()
    second = write(tmp_path / "other", specimens.text())
    found = check_many([load_spec(first), load_spec(second)])
    assert [(finding.code, finding.path) for finding in found] == [("TF107", second)]
    assert check_many([load_spec(first), load_spec(first)]) == []


def test_tolerance_sentences_that_are_right_are_left_alone(tmp_path):
    sentences = (
        "The tolerance is {{ tol }}. The gate of `1e-2` is 2.05x the noise. A bug scores 0.5, 50x the tolerance. "
        "An honest kernel lands at 3e-3, well inside the gate. tol = 1e-2 is the gate."
    )
    content = damaged(("once. What lies behind", f"once. {sentences} What lies behind"))
    assert findings_of(write(tmp_path, content)) == []


def test_typed_ranges_that_contain_the_real_one_are_left_alone(tmp_path):
    for typed in ("32k-262k", "32,000–263,000", "between 32000 and 270000", "32768 to 262144"):
        content = damaged(("`M` is {{ graded.M }} rows", f"`M` is {typed} rows"))
        codes = [finding.code for finding in findings_of(write(tmp_path, content))]
        assert codes == ([] if typed != "32k-262k" else ["TF406"]), typed
    other = damaged(("`M` is {{ graded.M }} rows", "`M` is 2-33 in the correctness shapes and larger"))
    assert findings_of(write(tmp_path, other)) == []


@pytest.mark.parametrize(
    "text",
    [
        "{{ graded.M._private }}",
        "{{ ''.join }}{% set x = 1 %}",
        "{% for a in range(9) %}{% endfor %}",
        "{{ 2 ** 99 }}",
        "{% include 'x' %}",
        "{{ graded['M'] }}",
        "{{ lipsum() }}",
        "{{ graded.M | attr('x') }}",
        "{% macro a() %}{% endmacro %}",
        "{{ 'a' * 100000 }}",
        "{% for a in graded.M.values %}{% for b in graded.M.values %}{% endfor %}{% endfor %}",
        "{{ _x }}",
    ],
)
def test_templates_beyond_the_list(text):
    assert template_problems(text)


@pytest.mark.parametrize(
    "text",
    [
        "{{ graded.M }}",
        "{{ graded.M.max }} and {{ tol }}",
        "{{ graded.x | digits(2) }}",
        "{% if certificate %}x{% endif %}",
        "{% for m in graded.M.values %}{{ m }}{% endfor %}",
        "{{ graded.M.max / 8 }}",
        "{# a remark #}",
        "plain",
    ],
)
def test_templates_within_the_list(text):
    assert template_problems(text) == []


@pytest.mark.parametrize(
    "piece",
    ["1", "1.", "1,", "1,000", "`M` ", "`M` (", "`M` in {", "`M` =", " ", "tolerance ", "tolerance (", "within ", "1x",
     "1-2 ", "|", "\n| `x` |", "TODO ", "correct ", "{", "{{", "`"],
)  # fmt: skip
def test_no_prose_takes_for_ever(tmp_path, piece):
    """Patterns are applied to strangers' text, so none may backtrack without bound."""
    flood = piece * (20_000 // len(piece)) + " `M` 1-2 `M` in {3} 1-2 GiB"
    content = damaged(("tile size.", flood), ('A row always fits into shared memory."""', flood + '"""'))
    start = time.monotonic()
    findings_of(write(tmp_path, content))
    assert time.monotonic() - start < 20  # on a busy machine; alone it is well under a second
