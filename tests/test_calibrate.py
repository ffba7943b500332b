"""Calibration end to end: gates that are too loose or too tight are caught, certificates hold what was measured."""

from __future__ import annotations

import json
import math
import re
from functools import partial

import pytest

import specimens
from calibrating import SEED, changed, figures, measured, ours, smallest
from taskfactory.calibrate import measure as measuring
from taskfactory.calibrate.certificate import (
    certificate_path,
    certificates_of,
    prose_figures,
    read_certificate,
    write_certificate,
)
from taskfactory.calibrate.certify import agree, verify
from taskfactory.calibrate.figures import mutant_figures, plain
from taskfactory.calibrate.plot import draw_svg, show
from taskfactory.calibrate.verdict import judge
from taskfactory.checks.certificates import check_certificates
from taskfactory.errors import UsageError
from taskfactory.load import SpecFile, load_spec

SHAPE = (3, 129)
TASKS = {
    "based-forward": (2, 128, 4, 16, 128),
    "deepseek-v32-sparse-mla-decode": (2, 64, 32, 128, 32, 1024),
}
WITHOUT_MUTANTS = ("float64", "alternate", "ablation", "trivial")


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> SpecFile:
    """The spec that `taskfactory new` writes, in a folder of its own."""
    return load_spec(specimens.write(tmp_path_factory.mktemp("specs"), specimens.text()))


@pytest.fixture(scope="module")
def data(toy) -> dict:
    """Its figures at the smallest shape."""
    return figures(toy, shapes=[SHAPE])


def problems(content: dict, survivors=None) -> str:
    return " | ".join(judge(content, survivors or {}).problems)


@pytest.mark.parametrize("task", TASKS)
def test_a_loosened_and_a_tightened_tolerance_are_caught(task):
    file = ours(task)
    options = {"kinds": WITHOUT_MUTANTS, "shapes": [TASKS[task]]}

    def said(factor: float) -> list[str]:
        """The problems if the tolerance and those of the regions are multiplied by a factor."""
        scaled = partial(re.sub, r"\b\d[\d.]*e-\d+\b", lambda number: repr(min(0.9, factor * float(number[0]))))
        regions = file.spec.regions_src and scaled(file.spec.regions_src)
        tol = min(0.9, factor * file.spec.tol)
        content = figures(changed(file, tol=tol, regions_src=regions), **options)
        found = content["verdict"]["problems"]
        # Mutants are not measured here, and one shape does not show all there is to fp8.
        return [text for text in found if "mutant" not in text and "mutation" not in text and "fp8" not in text]

    assert said(1) == []
    assert any("is beyond a gate by a factor" in text or "passes" in text for text in said(50))
    assert any("honest work needs a margin" in text for text in said(1 / 5))


def test_honest_work_passes_and_wrong_work_fails(data):
    subjects = data["subjects"]
    assert subjects["reference.float64"]["use"] < 0.5
    assert subjects["alternates.two_sums"]["use"] < 0.5
    wrong = [entry["use"] for entry in subjects.values() if entry["kind"] in ("ablation", "trivial")]
    assert len(wrong) >= 6
    assert all(use is None or use > 3 for use in wrong)
    assert data["mutants"]["score_by_values"] == 1.0


def test_loose_gates_let_mutants_survive_until_they_are_explained(toy):
    content = figures(changed(toy, tol=0.3), shapes=[SHAPE])
    survivors = [row["name"] for row in content["mutants"]["list"] if row["fate"] == "survived"]
    assert survivors
    assert all(name in problems(content) for name in survivors)
    explained = dict.fromkeys(survivors, "it is known and accepted")
    assert not any(f"{name} survives" in problems(content, explained) for name in survivors)
    assert "mutation score" in problems(content, explained), "an explanation does not raise the score"


def test_equivalent_mutants_and_those_below_resolution_do_not_count():
    file = ours("based-forward")
    found = measured(file, kinds=("alternate", "mutant"), shapes=[smallest(file)])
    fates = {row["name"]: row["fate"] for row in mutant_figures(found)["list"]}
    changes = {row["change"]: row["fate"] for row in mutant_figures(found)["list"]}
    assert changes["1e-06 -> 2e-06"] == "below"
    assert fates["mutants._per_head.swapped.2"] == "equivalent"
    assert list(fates.values()).count("rejected") > 60


def test_a_mutant_that_hangs_is_rejected_for_it(toy, monkeypatch):
    monkeypatch.setattr(measuring, "MUTANT_S", 0.3)
    source = toy.spec.reference_src + "\n\ndef _steps(n):\n    while n > 3:\n        n -= 1\n    return n\n"
    function = toy.spec.func
    first = next(line for line in source.split("\n") if line.startswith(f"def {function}("))
    source = source.replace(first, f"{first}\n    _steps(9)", 1)
    found = measured(changed(toy, reference_src=source), kinds=("mutant",), shapes=[SHAPE])
    fates = {row["change"]: row["fate"] for row in mutant_figures(found)["list"]}
    assert fates["n -= 1 -> nothing"] == "hung"


def test_figures_are_the_same_every_time(toy, data):
    assert figures(toy, shapes=[SHAPE]) == data
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_a_certificate_is_read_back_and_goes_stale(toy, data):
    path = certificate_path(toy, "cpu")
    write_certificate(path, data)
    certificate = read_certificate(path)
    assert certificate.data == data
    assert not certificate.stale(toy.spec)
    assert not certificate.stale(changed(toy, title="Another title").spec), "prose does not matter"
    assert certificate.stale(changed(toy, tol=0.02).spec)
    assert [c.device for c in certificates_of(toy)] == ["cpu"]
    assert certificates_of(changed(toy, tol=0.02)) == []
    quoted = prose_figures(toy)
    assert quoted is not None
    assert quoted["mutants"] == data["mutants"]["by_values"]
    assert "shapes" not in certificate.summary()
    assert prose_figures(changed(toy, tol=0.02)) is None


def test_what_validate_says_of_certificates(toy, data, tmp_path):
    fresh = load_spec(specimens.write(tmp_path, specimens.text()))
    assert check_certificates(fresh) == []
    missing = [("TF702", "error"), ("TF708", "warning")]
    assert [(f.code, f.severity) for f in check_certificates(fresh, release=True)] == missing
    (tmp_path / "certificates").mkdir()
    assert [(f.code, f.severity) for f in check_certificates(fresh)] == [("TF702", "warning")]
    path = certificate_path(fresh, "cpu")
    write_certificate(path, data)
    unsound = check_certificates(fresh)
    # Measured in this process: at one shape, with one seed, and without the sections on work and graded shapes.
    assert {f.code for f in unsound} == {"TF709"} | ({"TF704"} if data["verdict"]["problems"] else set())
    assert sum(f.code == "TF704" for f in unsound) == len(data["verdict"]["problems"])
    assert [f.code for f in check_certificates(changed(fresh, tol=0.5))] == ["TF703"]
    path.write_text('{"schema": 1}')
    assert [f.code for f in check_certificates(fresh)] == ["TF705"]
    with pytest.raises(UsageError, match="not a certificate"):
        read_certificate(path)


def test_survivors_must_be_named_and_explained(tmp_path):
    def codes(survivors: str) -> list[str]:
        content = specimens.damaged(("    metric=", f"    survivors={survivors},\n    metric="))
        return [finding.code for finding in specimens.findings_of(specimens.write(tmp_path, content))]

    assert codes('{"mutants.f.constant.1": "it is below what bf16 can show"}') == []
    assert codes('{"mutants.f.constant.1": "fine"}') == ["TF701"]
    assert codes('{"ablations.no_such": "it is below what bf16 can show"}') == ["TF701"]
    assert codes('{"something": "it is below what bf16 can show"}') == ["TF701"]


def test_pictures_show_every_subject(data):
    svg = draw_svg(data)
    assert svg.startswith("<svg")
    ends = sum(data["recommended"]["gap"][end] is not None for end in ("honest", "wrong"))
    subjects = sum("use" in e for e in data["subjects"].values())
    assert svg.count("<circle") == subjects + data["mutants"]["by_values"] + ends
    assert "recommended (dashed): tol" in svg
    text = show(data)
    axis = next(line for line in text.split("\n") if line.split()[:1] == ["E"])
    assert set(axis.replace("E", "", 1)) <= set(" ·htrw#")
    assert {"h", "t"} <= set(axis)
    assert "mutation" in problems({**data, "mutants": {**data["mutants"], "score_by_values": 0.5}})
    for word in ("alternates", "ablations", "share of a gate", "recommended"):
        assert word in text


def test_agreement():
    assert agree(1.0, 1.29)
    assert not agree(1.0, 1.31)
    assert agree(0.0, 1e-12)
    assert not agree(0.0, 1e-3)
    assert agree(math.inf, math.inf)
    assert not agree(1.0, math.inf)
    assert plain(math.inf) is None


def test_an_edited_certificate_is_caught(toy, data, tmp_path):
    path = tmp_path / "certificates" / "x.cpu.json"
    small = figures(toy, shapes=[])  # all shapes, as `verify` measures
    write_certificate(path, small)
    assert verify(toy, read_certificate(path), SEED) == []
    small["subjects"]["ablations.ignore_scale"]["seeds"][str(SEED)]["use"] = 1000.0
    small["subjects"]["ablations.ignore_scale"]["use"] = 1000.0
    write_certificate(path, small)
    assert any("ablations.ignore_scale: use" in sentence for sentence in verify(toy, read_certificate(path), SEED))
