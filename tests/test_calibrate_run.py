"""A calibration's child may be ended by a mutant and is then replaced; the command writes, shows and verifies."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

import specimens
from calibrating import SEED, changed, measured
from taskfactory.calibrate import certify
from taskfactory.calibrate.figures import mutant_figures
from taskfactory.calibrate.run import measure
from taskfactory.cli import main
from taskfactory.errors import SpecError
from taskfactory.load import load_spec

SHAPE = (3, 129)
ABORTING = """

def _guard(x):
    if x.dim() == 9:
        os.abort()
    return x
"""


@pytest.fixture
def toy(tmp_path):
    return load_spec(specimens.write(tmp_path, specimens.text()))


def guarded(file):
    """The toy with a reference of which some mutants end their process."""
    source = file.spec.reference_src + ABORTING
    first = next(line for line in source.split("\n") if line.startswith(f"def {file.spec.func}("))
    source = source.replace(first, f"{first}\n    _guard(x)", 1)
    imports = "import os\n" + file.spec.reference_imports
    return changed(file, reference_src=source, reference_imports=imports, alternates={}, ablations={})


@pytest.mark.skipif(sys.platform != "linux", reason="children are confined on Linux")
def test_a_mutant_that_ends_its_process_is_rejected_and_the_rest_goes_on(toy):
    found = measure(guarded(toy), seeds=[SEED], shapes=[SHAPE])
    fates = {row["change"]: row["fate"] for row in mutant_figures(found)["list"]}
    assert fates["x.dim() == 9 -> x.dim() != 9"] == "crashed"
    assert fates["9 -> 10"] == "equivalent"
    assert list(fates.values()).count("crashed") == 2
    assert list(fates.values()).count("rejected") > 10
    keys = [(row["subject"], row["sample"]) for row in found.readings]
    assert len(keys) == len(set(keys)), "what a second child repeats is not counted twice"


@pytest.mark.skipif(sys.platform != "linux", reason="children are confined on Linux")
def test_a_reference_that_fails_is_the_authors_error(toy):
    source = toy.spec.reference_src.replace("\n    return", "\n    raise ValueError('no')\n    return", 1)
    with pytest.raises(SpecError, match="ValueError: no"):
        measure(changed(toy, reference_src=source), seeds=[SEED], shapes=[SHAPE])


def test_the_command_writes_what_it_shows_and_verifies_it(toy, tmp_path, monkeypatch):
    def here(file, *, seeds, device="cpu", shapes=(), small=False, progress=None):
        assert device == "cpu"
        return measured(file, seeds=seeds, shapes=[SHAPE])

    monkeypatch.setattr(certify, "measure", here)
    path = str(toy.path)
    runner = CliRunner()
    shown = runner.invoke(main, ["calibrate", path, "--dry-run", "--svg", str(tmp_path / "pictures")])
    assert "share of a gate" in shown.output
    assert not (tmp_path / "certificates").exists()
    assert (tmp_path / "pictures" / "ragged-softmax.cpu.svg").is_file()

    missing = runner.invoke(main, ["calibrate", path, "--verify"])
    assert (missing.exit_code, "no such certificate" in missing.stderr) == (2, True)

    written = runner.invoke(main, ["calibrate", path])
    certificate = tmp_path / "certificates" / "ragged-softmax.cpu.json"
    data = json.loads(certificate.read_text("utf-8"))
    assert written.exit_code == (0 if data["verdict"]["sound"] else 2)
    agreed = runner.invoke(main, ["calibrate", path, "--verify"])
    assert (agreed.exit_code, "agrees" in agreed.stdout) == (0, True), agreed.stderr

    data["subjects"]["alternates.two_sums"]["use"] = 9.0
    certificate.write_text(json.dumps(data), "utf-8")
    edited = runner.invoke(main, ["calibrate", path, "--verify"])
    assert (edited.exit_code, "does not agree" in edited.stdout) == (2, True)

    toy.path.write_text(toy.path.read_text("utf-8").replace("tol=1e-2", "tol=2e-2"), "utf-8")
    stale = runner.invoke(main, ["calibrate", path, "--verify"])
    assert (stale.exit_code, "stale" in stale.stderr) == (2, True)


def test_verify_takes_a_seed_of_the_certificate_only(toy, monkeypatch):
    monkeypatch.setattr(certify, "measure", lambda file, *, seeds, **_: measured(file, seeds=seeds, shapes=[SHAPE]))
    runner = CliRunner()
    runner.invoke(main, ["calibrate", str(toy.path)])
    result = runner.invoke(main, ["calibrate", str(toy.path), "--verify", "--seed", "1"])
    assert (result.exit_code, "has no figures for the seed 1" in result.stderr) == (2, True)
