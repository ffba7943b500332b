"""Loading: what a spec file may look like, and that anything else is a finding with a line, never a traceback."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specimens
from specimens import damaged, line_of, write
from taskfactory.errors import SpecError
from taskfactory.load import load_spec
from taskfactory.spec import FIELDS

TOOLS = Path(__file__).resolve().parents[1] / "tools"

# A spec in the older form: it edits sys.path, imports from elsewhere, calls .validate(), and adds sources at the end.
OLD_FORM = '''
"""Spec for `old-form`."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from spec import TaskSpec

raise SystemExit("a spec is never executed")

SPEC = TaskSpec(
    name="old-form",
    title="Double a matrix",
    blurb=("one, "
           "two, "
           "three"),
    keywords=["a", "b"],
    module="doubling.py",
    func="double",
    signature="double(x, by=None)",
    returns_doc="""x, by: the arguments""",

    reference_imports="import torch",
    reference_src=\'\'\'
def double(x, by=None):
    return x * 2
\'\'\',
    make_inputs_src=\'\'\'\\
def _mk(M, N, seed):
    return torch.zeros(M, N), 2
\'\'\',
    flops_src=\'\'\'
def _pad(n):
    return torch.tensor(n)


def canonical_work(M, N, C=64):
    """Bytes."""
    return 8 * M * N * C // 64
\'\'\',
    metric="GB/s",
    compare="tensor",
    tol=-(-1e-3),
    shape_names=("M", "N"),
    grader_shapes=[(640, 128)],
    measure_shapes=[(64, 128)],
    measure_quick_shapes=[[32, 128]],
    correct_shapes=((+3, 5),),
    spec_md="x", contract_md="x", regime_md="x", correctness_md="x", perf_md="x", precision_md="x",
).validate()

ALT_SRC = \'\'\'
def _helper(x):
    return x

def _alt(x, by=None):
    return _helper(x) + x
\'\'\'

DROP_SRC = \'\'\'
def _drop(x, by=None):
    return x
\'\'\'

DROP2_SRC: str = \'\'\'
def _drop2(x, by=None):
    return x * 3
\'\'\'
'''


def codes(error: SpecError) -> list[str]:
    return [finding.code for finding in error.findings]


def fails(tmp_path: Path, content: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load_spec(write(tmp_path, content))
    return caught.value


def test_old_form(tmp_path):
    path = write(tmp_path, OLD_FORM, "old_form.py")
    file = load_spec(path)
    spec = file.spec
    assert (spec.name, spec.blurb, spec.tol) == ("old-form", "one, two, three", 1e-3)
    assert spec.measure_quick_shapes == ((32, 128),)
    assert spec.correct_shapes == ((3, 5),)
    assert spec.flops_formula is None
    assert list(spec.alternates) == ["_alt"]
    assert list(spec.ablations) == ["_drop", "_drop2"]
    assert file.formulas().call("canonical_work", 3, 5) == 120
    assert file.lines["name"] == line_of(OLD_FORM, 'name="old')
    assert file.lines["blurb"] == line_of(OLD_FORM, "blurb=")
    assert file.lines["ablations._drop2"] == line_of(OLD_FORM, "DROP2_SRC")


def test_line_of_a_source_is_the_line_of_its_first_character(tmp_path):
    file = load_spec(write(tmp_path, OLD_FORM))
    assert file.lines["reference_src"] == line_of(OLD_FORM, "reference_src=")
    # `'''\` continues the line, so that the text begins on the next one.
    assert file.lines["make_inputs_src"] == line_of(OLD_FORM, "def _mk(M, N, seed)")
    source = file.source("flops_src")
    rows = source.text.split("\n")
    assert source.first_line + rows.index("def canonical_work(M, N, C=64):") == line_of(OLD_FORM, "def canonical_work")


def test_line_of_an_offset(tmp_path):
    content = specimens.text()
    file = load_spec(write(tmp_path, content))
    for needle, field in [
        ("`lengths` | `(M,)`", "contract_md"),
        ("once. What lies", "perf_md"),
        ("Normalising", "blurb"),
    ]:
        assert file.line(field, file.value(field).index(needle[:20])) == line_of(content, needle)


def test_digest_ignores_comments_and_layout(tmp_path):
    one = load_spec(write(tmp_path, specimens.text()))
    assert one.digest.startswith("sha256:")
    assert len(one.digest) == 71
    assert load_spec(write(tmp_path, damaged(("# kebab-case, like", "# or")))).digest == one.digest
    assert load_spec(write(tmp_path, damaged(("(7, 64)", "(7, 65)")))).digest != one.digest
    assert load_spec(write(tmp_path, damaged(("(7, 64)", "[7, 64]")))).digest == one.digest


def test_digest_does_not_depend_on_hash_seed(tmp_path):
    path = write(tmp_path, specimens.text())
    code = f"from taskfactory.load import load_spec; print(load_spec({str(path)!r}).digest)"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(TOOLS), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        ("", "TF004", 1),
        ("x = 1\n", "TF004", 1),
        ("\n\ndef f():\n    SPEC = TaskSpec(name='a')\n", "TF004", 4),
        ("SPEC = TaskSpec(\n", "TF003", 1),
        ("SPEC = 5\n", "TF006", 1),
        ("SPEC = make()\n", "TF006", 1),
        ("\nSPEC = TaskSpec('a')\n", "TF006", 2),
        ("\nSPEC = TaskSpec(**{})\n", "TF006", 2),
        ("SPEC = TaskSpec()\nSPEC = TaskSpec()\n", "TF005", 2),
        ("SPEC = TaskSpec(name='a', name='b')\n", "TF009", 1),
        ("SPEC = TaskSpec(alternates={'a': 'x', 'a': 'y'})\n", "TF009", 1),
        ("SPEC = TaskSpec(alternates={1: 'x'})\n", "TF007", 1),
        ("SPEC = TaskSpec(alternates={**x})\n", "TF007", 1),
        ("SPEC = TaskSpec(name='\\ud800')\n", "TF013", 1),
        ("SPEC = TaskSpec(tol=1j)\n", "TF007", 1),
        ("SPEC = TaskSpec(title=b'x')\n", "TF007", 1),
        ("SPEC = TaskSpec(title=...)\n", "TF007", 1),
        ("SPEC = TaskSpec(tol=1e999)\n", "TF011", 1),
        ("SPEC = TaskSpec()\n\nALT_SRC = 'x' + 'y'\n", "TF007", 3),
        ("SPEC = TaskSpec()\n\nALT_SRC = 'x = 1'\n", "TF012", 3),
        ("SPEC = TaskSpec(alternates={'f': 'x'})\nALT_SRC = 'def f(): pass'\n", "TF012", 2),
    ],
)
def test_malformed_files(tmp_path, content, code, line):
    error = fails(tmp_path, content)
    assert (code, line) in [(finding.code, finding.line) for finding in error.findings]
    assert all(finding.hint and finding.severity == "error" for finding in error.findings)


@pytest.mark.parametrize(
    "value",
    [
        "f'{x}'",
        "'a' + 'b'",
        "open('x').read()",
        "TITLE",
        "[x for x in y]",
        "os.name",
        "not True",
        "-'a'",
        "{1, 2}",
        "lambda: 0",
    ],
)
def test_a_value_that_is_not_literal_names_its_line(tmp_path, value):
    error = fails(tmp_path, damaged(('title="Write a fast softmax over ragged rows"', f"title={value}")))
    assert codes(error) == ["TF007"]
    assert error.findings[0].field == "title"
    assert error.findings[0].line == line_of(specimens.text(), "title=")


def test_everything_is_reported_at_once(tmp_path):
    content = damaged(
        ('title="Write a fast softmax over ragged rows"', "title=TITLE"),
        ('func="ragged_softmax"', "func=5"),
        ("tol=1e-2", "tolerance=1e-2"),
        ("correct_shapes=[(7, 64)", 'correct_shapes=[(7, "64")'),
        ('metric="GB/s"', 'metric="GB"'),
        ('version="0.1.0"', "version=1.0"),
    )
    error = fails(tmp_path, content)
    found = {(finding.code, finding.field): finding for finding in error.findings}
    assert set(found) == {
        ("TF007", "title"),
        ("TF008", "tolerance"),
        ("TF010", "tol"),
        ("TF011", "func"),
        ("TF011", "correct_shapes"),
        ("TF011", "metric"),
        ("TF011", "version"),
    }
    assert "correct_shapes[0][1]" in found["TF011", "correct_shapes"].message
    assert [finding.line for finding in error.findings] == sorted(finding.line for finding in error.findings)


@pytest.mark.parametrize(
    ("right", "wrong"), [("correct_shapes", "corect_shapes"), ("tol", "tolerance"), ("flops_formula", "flops")]
)
def test_unknown_field_suggests(tmp_path, right, wrong):
    error = fails(tmp_path, damaged((f"\n    {right}=", f"\n    {wrong}=")))
    unknown = next(finding for finding in error.findings if finding.code == "TF008")
    assert unknown.hint in (f"did you mean {right!r}?", "did you mean 'flops_src'?")


@pytest.mark.parametrize("value", ["True", '"1e-2"', "None", "(1e-2,)", "{}"])
def test_types_are_strict(tmp_path, value):
    error = fails(tmp_path, damaged(("tol=1e-2", f"tol={value}")))
    assert codes(error) == ["TF011"]
    assert error.findings[0].line == line_of(specimens.text(), "tol=1e-2")


def test_wrong_element_is_reported_at_its_own_line(tmp_path):
    content = damaged(("correct_shapes=[(7, 64), ", "correct_shapes=[\n        (7, 64),\n        (8, 6.5),\n        "))
    error = fails(tmp_path, content)
    assert [(finding.code, finding.line) for finding in error.findings] == [("TF011", line_of(content, "(8, 6.5)"))]


def test_missing_files_and_odd_files(tmp_path):
    def code(path: Path) -> list[str]:
        with pytest.raises(SpecError) as caught:
            load_spec(path)
        return codes(caught.value)

    assert code(tmp_path / "nothing.py") == ["TF001"]
    assert code(tmp_path) == ["TF001"]
    assert code(Path(str(tmp_path / "a") + "\0b")) == ["TF001"]
    os.mkfifo(tmp_path / "pipe.py")
    assert code(tmp_path / "pipe.py") == ["TF001"]
    (tmp_path / "nul.py").write_bytes(b"x = 1\n\n\0\n")
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "nul.py")
    assert [(f.code, f.line) for f in caught.value.findings] == [("TF002", 3)]
    (tmp_path / "latin.py").write_bytes(b"# one\n# \xe9\n")
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "latin.py")
    assert [(f.code, f.line) for f in caught.value.findings] == [("TF002", 2)]
    (tmp_path / "huge.py").write_bytes(b"#" * (5 << 20))
    assert code(tmp_path / "huge.py") == ["TF001"]
    (tmp_path / "deep.py").write_text("x = " + "-" * 100_000 + "1\n")
    assert code(tmp_path / "deep.py") == ["TF003"]
    (tmp_path / "brackets.py").write_text("SPEC = TaskSpec(tol=" + "(" * 150 + "1,".join(")" * 150) + ")\n")
    assert code(tmp_path / "brackets.py")[0] in ("TF003", "TF010", "TF007")


def test_byte_order_mark_and_carriage_returns(tmp_path):
    plain = load_spec(write(tmp_path, specimens.text()))
    path = tmp_path / "windows.py"
    path.write_bytes(b"\xef\xbb\xbf" + specimens.text().replace("\n", "\r\n").encode())
    other = load_spec(path)
    assert other.digest == plain.digest
    assert other.lines == plain.lines


def test_python_warnings_become_findings(tmp_path):
    content = damaged(("Compute in float32 and", "Compute in float32 \\d and"))
    file = load_spec(write(tmp_path, content))
    assert [(finding.code, finding.severity) for finding in file.warnings] == [("TF014", "warning")]


def test_nothing_is_executed(tmp_path):
    marker = tmp_path / "executed"
    content = f"open({str(marker)!r}, 'w')\n" + damaged(
        ("columns = torch.arange", f"open({str(marker)!r}, 'w'); columns = torch.arange"),
        ("    return 2 * M * N + 2 * M * N", f"    open({str(marker)!r}, 'w')\n    return 2 * M * N + 2 * M * N"),
    )
    assert "TF501" in [finding.code for finding in specimens.findings_of(write(tmp_path, content))]
    assert not marker.exists()


def test_loading_and_checking_do_not_import_torch(tmp_path):
    path = write(tmp_path, specimens.text())
    code = (
        "import sys; from taskfactory.load import load_spec; from taskfactory.checks import check_spec;"
        f"assert not check_spec(load_spec({str(path)!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(TOOLS)}, check=True)


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=4) | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from(FIELDS), value=LITERALS)
def test_any_literal_in_any_field_is_accepted_or_reported(tmp_path, field, value):
    """Whatever a field holds, the outcome is findings: never another exception."""
    tree = ast.parse(specimens.text())
    call = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    assert isinstance(call, ast.Call)
    (keyword,) = [k for k in call.keywords if k.arg == field] or [ast.keyword(arg=field)]
    if keyword not in call.keywords:
        call.keywords.append(keyword)
    keyword.value = ast.parse(repr(value), mode="eval").body
    path = write(tmp_path, ast.unparse(ast.fix_missing_locations(tree)))
    for finding in specimens.findings_of(path):
        assert finding.headline()
        assert finding.line >= 0


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_never_crash_the_loader(tmp_path, data):
    raw = bytearray(specimens.text().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(raw) - 1))
        length = data.draw(st.integers(0, 40))
        raw[start : start + length] = data.draw(
            st.binary(max_size=6) | st.sampled_from([b'"""', b"'''", b"(", b"\n", b"{{", b"\\"])
        )
    path = tmp_path / specimens.FILE
    path.write_bytes(bytes(raw))
    for finding in specimens.findings_of(path):
        assert finding.headline()


def test_nesting_that_ends_the_parsers_memory_is_named(tmp_path):
    (tmp_path / "signs.py").write_text("SPEC = " + "-" * 20_000 + "1\n")
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "signs.py")
    (finding,) = caught.value.findings
    assert finding.code == "TF003"
    assert finding.message.rpartition(": ")[2]
