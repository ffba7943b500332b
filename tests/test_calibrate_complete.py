"""A release needs certificates that lack nothing: sections, rows, subjects, figures of today, honest work on a GPU."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import specimens
from calibrating import ours
from taskfactory.calibrate.certificate import certificate_path, read_certificate, subject_digest, write_certificate
from taskfactory.calibrate.certify import consistent
from taskfactory.calibrate.complete import lacking
from taskfactory.calibrate.gradings import NOMINAL
from taskfactory.checks.certificates import check_certificates
from taskfactory.cli import main
from taskfactory.cli.calibrate import _longest_first
from taskfactory.load import load_spec

TASK = "conv3d-tiled-decode-blend"


@pytest.fixture(scope="module")
def file():
    return ours(TASK)


@pytest.fixture
def data(file) -> dict:
    """Our own certificate from a CPU, which is complete."""
    return copy.deepcopy(dict(read_certificate(certificate_path(file, "cpu")).data))


def on_gpu(file, data: dict) -> dict:
    """The same as if a GPU had measured it, figures of correct shapes standing in for those of large ones."""
    spec = file.spec
    large = [*spec.grader_shapes, *spec.measure_shapes]
    data |= {"device": "cuda", "machine": "X", "subject_digest": subject_digest(spec, "cuda")}
    data["shapes"] += [list(shape) for shape in large]
    for entry in data["subjects"].values():
        if entry["kind"] in ("float64", "alternate", "ablation"):
            entry["shapes"] += [{"shape": list(shape), "all": entry["shapes"][0]["all"]} for shape in large]
    data["graded_shapes"] |= {"rank_correlation": 1.0, "scores": {}, "scored_shapes": 10, "times_ms": {}}
    return data


def test_what_is_missing_is_named(file, data):
    assert lacking(data, file.spec) == []
    for section, words in (("work", "work formulas"), ("graded_shapes", "graded shapes were not")):
        assert any(words in text for text in lacking({k: v for k, v in data.items() if k != section}, file.spec))
    assert any("seed" in text for text in lacking(data | {"seeds": [1]}, file.spec))
    assert any("correct shapes" in text for text in lacking(data | {"shapes": data["shapes"][1:]}, file.spec))
    subjects = {name: entry for name, entry in data["subjects"].items() if name != "ablations.halo_exchange"}
    assert "ablations.halo_exchange was not measured" in lacking(data | {"subjects": subjects}, file.spec)


def test_missing_rows_and_figures_are_named_without_the_graded_shape(file, data):
    last = data["work"]["rows"].pop()
    data["graded_shapes"]["rows"][0]["memory_gb"] = None
    del data["work"]["rows"][0]["flops"]
    said = lacking(data, file.spec)
    assert len(said) == 3
    assert "its work was not verified at graded shape 5" in said
    assert "graded shape 1 has no memory" in said
    assert str(tuple(last["shape"])) not in " ".join(said)


def test_figures_of_an_earlier_form_are_told(file, data):
    for row in data["subjects"]["alternates.weighted_taps"]["shapes"]:
        del row["timed"]
    assert any("of an earlier form" in text for text in lacking(data, file.spec))


def test_a_gpu_has_to_show_honest_work_at_every_large_shape(file, data):
    data = on_gpu(file, data)
    assert lacking(data, file.spec) == []
    shapes = {name: entry["shapes"] for name, entry in data["subjects"].items()}
    for name in file.spec.alternates:
        shapes[f"alternates.{name}"].pop()
    shapes["ablations.halo_exchange"][:] = shapes["ablations.halo_exchange"][:4]
    data["graded_shapes"] |= {"delta_from": NOMINAL, "rank_correlation": None}
    said = lacking(data, file.spec)
    assert "no alternate was compared at measure shape 5" in said
    assert "ablations.halo_exchange was compared at no graded shape" in said
    assert any("--grading" in text for text in said)
    assert any("not correlated" in text for text in said)
    assert len(said) == 4


def kept(tmp_path, data: dict, device: str = "cpu"):
    """A copy of the spec with a certificate of its own."""
    path = tmp_path / "conv3d_tiled_decode_blend.py"
    path.write_text(ours(TASK).path.read_text("utf-8"), "utf-8")
    copied = load_spec(path)
    write_certificate(certificate_path(copied, device), data)
    return copied


def test_a_release_refuses_what_is_incomplete(tmp_path, data):
    copied = kept(tmp_path, data)
    assert [f.code for f in check_certificates(copied)] == []
    assert [(f.code, f.severity) for f in check_certificates(copied, release=True)] == [("TF708", "warning")]
    del data["work"]
    kept(tmp_path, data)
    assert [(f.code, f.severity) for f in check_certificates(copied)] == [("TF709", "warning")]
    assert ("TF709", "error") in {(f.code, f.severity) for f in check_certificates(copied, release=True)}


def test_the_devices_of_a_release_are_named_on_the_command_line(tmp_path, data):
    copied = kept(tmp_path, data)
    path = str(copied.path)
    plain = CliRunner().invoke(main, ["validate", path, "--release", "--strict"])
    assert plain.exit_code == 0
    assert "TF708" in plain.stdout
    both = CliRunner().invoke(main, ["validate", path, "--release", "--device", "cpu", "--device", "cuda"])
    assert both.exit_code == 2
    assert "TF702" in both.stdout
    assert "TF708" not in both.stdout
    kept(tmp_path, on_gpu(copied, data), "cuda")
    both = CliRunner().invoke(main, ["validate", path, "--release", "--device", "cpu", "--device", "cuda"])
    assert both.exit_code == 0, both.stdout


def test_an_old_schema_is_not_understood(tmp_path, data):
    copied = kept(tmp_path, data | {"schema": 1})
    assert [(f.code, f.severity) for f in check_certificates(copied)] == [("TF705", "error")]


def test_a_gpus_certificate_has_to_follow_from_its_own_figures(tmp_path, data):
    copied = kept(tmp_path, data)
    certificate = read_certificate(certificate_path(copied, "cpu"))
    assert consistent(copied, certificate) == []
    data["graded_shapes"]["rows"][0]["limit_ms"] *= 3
    data["graded_shapes"]["rows"][1]["working_set"] += 10**9
    data["mutants"]["counts"]["rejected"] += 1
    said = " | ".join(consistent(copied, read_certificate(certificate_path(kept(tmp_path, data), "cpu"))))
    assert "the limit of graded shape 1" in said
    assert "the working set of graded shape 2" in said
    assert "the counts of mutants" in said
    stale = replace(copied, spec=replace(copied.spec, tol=0.5))
    assert "stale" in consistent(stale, certificate)[0]


def test_the_longest_is_begun_first(tmp_path):
    paths = []
    for name, seconds in (("short", 5.0), ("long", 50.0), ("unknown", None)):
        path = specimens.write(tmp_path, specimens.text().replace("ragged-softmax", f"{name}-softmax"))
        renamed = path.with_name(f"{name}_softmax.py")
        path.rename(renamed)
        paths.append(renamed)
        if seconds is not None:
            data = read_certificate(certificate_path(ours(TASK), "cpu")).data
            target = certificate_path(load_spec(renamed), "cpu")
            write_certificate(target, dict(data) | {"seconds": {"all": seconds}})
    order = [path.stem.partition("_")[0] for path in _longest_first(paths, "cuda")]
    assert order == ["unknown", "long", "short"]


def test_certificates_are_json_with_one_subject_a_line(file):
    text = certificate_path(file, "cpu").read_text("utf-8")
    assert json.loads(text)["schema"] == 2
    assert max(map(len, text.split("\n"))) < 4000
