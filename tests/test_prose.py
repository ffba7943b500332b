"""Prose: how numbers print, and that a mistake in a template is reported where it stands."""

from pathlib import Path

import pytest

from taskfactory.errors import SpecError
from taskfactory.load import SpecFile, load_spec
from taskfactory.prose import Figure, Span, context, render_prose, scientific, significant

FIXTURE = Path(__file__).parent / "fixtures" / "specs" / "row_scale.py"


def edited(tmp_path: Path, old: str, new: str) -> SpecFile:
    """The fixture with one piece of text replaced, loaded from a file of its own."""
    text = FIXTURE.read_text("utf-8")
    assert text.count(old) == 1
    path = tmp_path / "row_scale.py"
    path.write_text(text.replace(old, new), "utf-8")
    return load_spec(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.02, "2e-2"), (0.012, "1.2e-2"), (7e-3, "7e-3"), (1e-4, "1e-4"), (0.5, "0.5"), (4.0, "4"), (0, "0")],
)
def test_scientific(value, text):
    assert scientific(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(16384, "16384"), (1.2534, "1.25"), (12.0, "12.0"), (1680.4, "1680"), (99.95, "100.0"), (0.0123, "0.0123"),
     (0.0, "0"), (3.2e-5, "3.2e-5")],
)  # fmt: skip
def test_significant(value, text):
    assert significant(value) == text


def test_span_prints_a_range_or_one_value():
    span = Span([96, 64, 128, 64])
    assert str(span) == "64–128"
    assert str(span.values) == "64, 96, 128"
    assert (span.min, span.max) == (64, 128)
    assert str(Span([5, 5])) == "5"
    assert str(Span([1.2504, 1.2511])) == "1.25"  # ends that print alike are one value


def test_figure_is_a_number():
    assert str(Figure(0.02)) == "2e-2"
    assert Figure(0.02) * 2 == 0.04


def test_rendered_numbers_come_from_the_spec():
    prose = render_prose(load_spec(FIXTURE))
    assert "`M` is 4111–16411 and `N` one of 3584, 5120, 7168" in prose["regime_md"]
    assert "up to 8192, the checks `N` from 64" in prose["regime_md"]
    assert "56.2–112.2 MiB, 29,467,648–58,817,024 elements" in prose["spec_md"]
    assert prose["correctness_md"].startswith("The relative error must not exceed 1.2e-2, nor 2.5 times")
    assert "Certified" not in prose["regime_md"]


def test_derived_values_are_evaluated_when_asked_for(tmp_path):
    file = edited(tmp_path, '{"mib": M * N * 2 / 2**20, "elements": M * N}', '{"mib": M / 0}')
    names = context(file)
    assert str(names["graded"]["M"]) == "4111–16411"
    with pytest.raises(SpecError):
        names["graded"]["mib"]


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("{{ correct.N.min }}", "{{ correct.K.min }}", "regime_md", ["'correct.K' is undefined", "M, N, mib"]),
        ("{{ measure.M.max }}", "{{ measured.M.max }}", "regime_md", ["'measured' is undefined"]),
        ("{% if certificate %}", "{% if certificate.margin.least %}", "regime_md", ["margin"]),
        ("{{ graded.mib | digits(1) }}", "{{ graded.mib | digit(1) }}", "spec_md", ["digit"]),
        ("{{ graded.mib | digits(1) }}", "{{ graded.mib | digits(1) }", "spec_md", ["not a valid template"]),
        ("{{ graded.mib | digits(1) }}", "{{ graded.mib + 1 }}", "spec_md", ["cannot be rendered"]),
    ],
)
def test_a_mistake_names_file_line_and_variable(tmp_path, old, new, field, words):
    file = edited(tmp_path, old, new)
    line = next(n for n, text in enumerate(file.path.read_text("utf-8").split("\n"), 1) if new in text)
    with pytest.raises(SpecError) as caught:
        render_prose(file)
    (finding,) = caught.value.findings
    assert (finding.path, finding.line, finding.field) == (file.path, line, field)
    for word in words:
        assert word in finding.message


def test_every_bad_field_is_reported(tmp_path):
    path = tmp_path / "row_scale.py"
    text = FIXTURE.read_text("utf-8")
    path.write_text(text.replace("{{ correct.N.min }}", "{{ nope }}").replace("{{ epsilon }}", "{{ nada }}"), "utf-8")
    with pytest.raises(SpecError) as caught:
        render_prose(load_spec(path))
    assert {finding.field for finding in caught.value.findings} == {"regime_md", "correctness_md"}


@pytest.mark.parametrize("attack", ["tol.__class__.__mro__", "graded.M.format.__globals__", "cycler.__init__"])
def test_a_template_cannot_reach_the_process(tmp_path, attack):
    file = edited(tmp_path, "{{ correct.N.min }}", "{{ " + attack + " }}")
    with pytest.raises(SpecError):
        render_prose(file)


def test_a_tag_at_the_end_of_a_line_keeps_the_line_break(tmp_path):
    file = edited(tmp_path, "{% if certificate %}Certified.{% endif %}", "{% if tol %}Below one.{% endif %}")
    assert "Below one.\nA row fits" in render_prose(file)["regime_md"]
