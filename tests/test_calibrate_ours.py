"""Our five tasks hold certificates that are fresh, sound and shown in the documentation."""

from __future__ import annotations

import pytest

from calibrating import ours
from taskfactory.calibrate.certificate import certificates_of
from taskfactory.calibrate.page import render
from taskfactory.calibrate.plot import draw_svg
from taskfactory.checks.certificates import check_certificates
from taskfactory.load import load_spec
from taskfactory.paths import root, specs_dir, specs_in
from taskfactory.render import render as render_bundle

TASKS = (
    "adaptive-sparsity-threshold", "based-forward", "cache-hit-skip-gate", "conv3d-tiled-decode-blend",
    "deepseek-v32-sparse-mla-decode",
)  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_is_certified(task):
    file = ours(task)
    found = check_certificates(file, release=True)
    # A certificate from a GPU is judged like the other once it is there, and asked for by `--device cuda`.
    assert [f for f in found if f.code != "TF708"] == []
    held = certificates_of(file)
    assert [certificate.device for certificate in held][:1] == ["cpu"]
    assert len(held) + len(found) == 2
    for certificate in held:
        data = certificate.data
        assert data["mutants"]["by_values"] >= 30
        assert data["mutants"]["score_by_values"] >= 0.95
        assert data["graded_shapes"]["delta_from"] == "a grading on NVIDIA H200"
        assert {tuple(shape) for shape in data["shapes"]} >= set(file.spec.correct_shapes)


def test_the_page_and_its_pictures_are_those_of_the_certificates():
    docs = root() / "docs"
    files = [load_spec(path) for path in specs_in(specs_dir())]
    assert (docs / "calibration.md").read_text("utf-8") == render(files)
    for file in files:
        for certificate in certificates_of(file):
            picture = docs / "calibration" / f"{file.spec.name}.{certificate.device}.svg"
            assert picture.read_text("utf-8") == draw_svg(certificate.data)


def test_a_bundle_holds_a_summary_without_shapes():
    file = ours("based-forward")
    text = render_bundle(file, image="image")["certificate.json"]
    assert '"mutation_score"' in text
    for shape in file.spec.grader_shapes:
        assert ", ".join(map(str, shape)) not in text
