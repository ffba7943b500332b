"""Work formulas are held against what a call takes: a wrong count is caught, and so is a wrong explanation."""

from __future__ import annotations

import json

import pytest

import specimens
from calibrating import SEED, changed, measured, ours
from taskfactory.calibrate.certificate import certificate_path, read_certificate, write_certificate
from taskfactory.calibrate.certify import _work, content
from taskfactory.calibrate.quality import judge_work, spearman
from taskfactory.calibrate.sections import Examined, examine, work_section
from taskfactory.calibrate.tables import work_table
from taskfactory.calibrate.work import rows
from taskfactory.checks.certificates import check_certificates
from taskfactory.checks.lab import Lab
from taskfactory.load import SpecFile, load_spec

SHAPE = (3, 129)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> SpecFile:
    return load_spec(specimens.write(tmp_path_factory.mktemp("specs"), specimens.text()))


def section(file: SpecFile, *, graded: int = 1) -> dict:
    """The certificate's section, examined in this process at the correct and the first graded shapes."""
    few = changed(file, grader_shapes=file.spec.grader_shapes[:graded])
    return work_section(file, Examined(rows=list(rows(Lab(few)))))


def problems(file: SpecFile, survivors=None, **options) -> str:
    return " | ".join(judge_work({"work": section(file, **options)}, survivors or {})[0])


def with_work(file: SpecFile, body: str, name: str = "canonical_work") -> SpecFile:
    """The toy with another formula."""
    field = {"canonical_work": "flops_src", "floor": "floor_src"}.get(name, "derived_src")
    source = f'\n\ndef {name}(M, N):\n    """Bytes."""\n    return {body}\n'
    return changed(file, **{field: (file.spec.derived_src or "") + source if field == "derived_src" else source})


def test_the_toy_is_counted_right(toy):
    assert problems(toy) == ""
    found = {tuple(row["shape"]): row for row in section(toy)["rows"]}
    row = found[SHAPE]
    assert row["inputs"] == 2 * 3 * 129 + 4 * 3
    assert row["outputs"] == 2 * 3 * 129
    # What lies behind a row's length has no influence, so it is not touched.
    assert 2 * 3 * 129 < row["touched"] < row["inputs"] + row["outputs"]
    graded = found[tuple(toy.spec.grader_shapes[0])]
    assert graded["outputs"] == 2 * graded["shape"][0] * graded["shape"][1]


def test_bytes_below_the_floor_or_above_the_call_are_caught(toy):
    assert "below the floor's" in problems(with_work(toy, "M * N"))
    assert "more than inputs and outputs have" in problems(with_work(toy, "6 * M * N"))
    assert "the floor counts" in problems(with_work(with_work(toy, "9 * M * N"), "(8 * M * N, 0)", "floor"))


def test_touched_bytes_explain_and_have_to_be_true(toy):
    loose = with_work(toy, "6 * M * N")
    shape = SHAPE
    few = changed(loose, correct_shapes=(shape,), grader_shapes=())
    touched = next(rows(Lab(few)))["touched"]
    assert problems(with_work(few, str(touched), "touched_bytes"), graded=0) == ""
    assert "where touched_bytes has" in problems(with_work(few, str(2 * touched), "touched_bytes"), graded=0)
    assert "gives no number" in problems(with_work(few, "1 / 0", "touched_bytes"), graded=0)


@pytest.mark.parametrize(
    ("task", "ratio"), [("based-forward", 1.118), ("conv3d-tiled-decode-blend", 1.0)], ids=["based", "conv3d"]
)
def test_flops_of_our_references_are_those_the_specs_say(task, ratio):
    file = ours(task)
    few = changed(file, correct_shapes=file.spec.correct_shapes[:1], grader_shapes=file.spec.grader_shapes[:1])
    assert problems(few) == ""
    graded = next(row for row in section(few)["rows"] if row["kind"] == "graded")
    assert graded["flops"] / graded["canonical"] == pytest.approx(ratio, abs=1e-3)
    wrong = file.spec.flops_src.replace("return B * T * H", "return 2 * B * T * H").replace("* 27 *", "* 9 *")
    text = problems(changed(few, flops_src=wrong, derived_src=None, floor_src=None))
    assert "torch counts" in text


def test_rows_that_requests_share_are_what_the_spec_says():
    file = ours("deepseek-v32-sparse-mla-decode")
    few = changed(file, correct_shapes=file.spec.correct_shapes[:1], grader_shapes=file.spec.grader_shapes[:1])
    assert problems(few) == ""
    row = section(few)["rows"][0]
    assert row["touched"] == pytest.approx(row["touched_bytes"], rel=0.05)
    assert row["touched"] < 0.95 * row["canonical"]
    unexplained = file.spec.derived_src.replace("def touched_bytes", "def _touched_bytes")
    assert "more than inputs and outputs have" in problems(changed(few, derived_src=unexplained))


def test_the_cache_gate_touches_four_streams_of_five():
    file = ours("cache-hit-skip-gate")
    row = next(rows(Lab(changed(file, correct_shapes=file.spec.correct_shapes[:1], grader_shapes=()))))
    assert row["touched"] == pytest.approx(0.8 * (row["inputs"] + row["outputs"]), rel=0.01)


def test_an_accepted_deviation_is_a_note(toy):
    data = {"work": section(with_work(toy, "6 * M * N"))}
    reason = {"work.bytes": "rows are read three times on purpose"}
    found, notes = judge_work(data, reason)
    assert found == []
    assert any("accepted: canonical work" in note for note in notes)
    # The floor cannot be explained away.
    below = {"work": section(with_work(toy, "M * N"))}
    assert judge_work(below, reason)[0]


def test_what_has_no_derivative_is_a_gap():
    found = section(ours("adaptive-sparsity-threshold"))
    assert any("no derivative" in gap for gap in found["gaps"])
    assert not any("touched" in row for row in found["rows"])


def test_a_child_examines_and_validate_tells(toy, tmp_path):
    wrong = with_work(toy, "6 * M * N")
    examined = examine(wrong, memory=False)
    assert examined.gaps == []
    assert len(examined.rows) == len(toy.spec.correct_shapes) + len(toy.spec.grader_shapes)
    assert examined.memory == []
    file = changed(load_spec(specimens.write(tmp_path, specimens.text())), flops_src=wrong.spec.flops_src)
    data = content(file, measured(file, shapes=[SHAPE], seeds=(SEED,)), examined)
    write_certificate(certificate_path(file, "cpu"), data)
    found = [finding for finding in check_certificates(file) if finding.code == "TF706"]
    assert [finding.field for finding in found] == ["flops_src"]
    assert work_table(data)[0][:3] == ["", "shape", "canonical"]
    certificate = read_certificate(certificate_path(file, "cpu"))
    assert not certificate.stale(file.spec)
    assert certificate.stale(changed(file, floor_src=None).spec), "the floor was part of what was verified"


def test_a_source_that_fails_costs_a_gap(toy):
    broken = changed(toy, make_inputs_src="def _mk(M, N, seed):\n    raise ValueError('no')\n")
    examined = examine(broken, memory=False)
    assert any("ValueError: no" in gap for gap in examined.gaps)
    assert judge_work({"work": work_section(broken, examined)}, {})[1][-1] == "the work formulas were not verified"


def test_an_edited_section_does_not_verify(toy):
    then = section(toy)
    assert _work(then, then) == []
    edited = json.loads(json.dumps(then))
    edited["rows"][0]["flops"] += 2
    assert len(_work(edited, then)) == 1
    edited["rows"].pop()
    assert any("other shapes" in sentence for sentence in _work(edited, then))


def test_rank_correlation():
    assert spearman([(1, 10), (2, 20), (3, 30)]) == 1.0
    assert spearman([(1, 30), (2, 20), (3, 10)]) == -1.0
    assert spearman([(1, 1), (1, 2), (2, 3)]) == pytest.approx(0.866, abs=1e-3)
    assert spearman([(1, 1), (2, 2)]) is None
    assert spearman([(1, 1), (1, 2), (1, 3)]) is None
