"""`new`: the spec it writes is flawless and explains every field."""

from __future__ import annotations

import re

import pytest

import specimens
from taskfactory.errors import InfrastructureError, UsageError
from taskfactory.load import load_spec
from taskfactory.scaffold import new_spec
from taskfactory.spec import FIELDS


@pytest.mark.parametrize("name", ["a", "ragged-softmax", "x2-y3", "fused-rms-norm"])
def test_new_specs_are_flawless(tmp_path, name):
    path = new_spec(name, tmp_path / "deep" / "specs")
    assert path.name == name.replace("-", "_") + ".py"
    assert specimens.findings_of(path) == []
    spec = load_spec(path).spec
    assert (spec.name, spec.module) == (name, path.name)


def test_it_shows_what_trust_needs():
    text = specimens.text()
    for field in ("derived_src", "floor_src", "timed_src", "cases_src", "alternates", "ablations"):
        assert f"\n    {field}=" in text
    given = set(re.findall(r"\n    ([a-z_]+)=", text))
    assert given <= set(FIELDS)
    rare = {"tuple_names", "tile_kappa", "tile_epsilon", "output_dtypes", "regions_src", "survivors"}
    assert set(FIELDS) - given == rare
    assert "<<" not in text


def test_sources_do_what_they_claim(tmp_path):
    """On the CPU: the alternate agrees at every case, and each ablation fails at one."""
    torch = pytest.importorskip("torch")
    spec = load_spec(specimens.write(tmp_path, specimens.text())).spec
    sources = [spec.reference_imports, spec.reference_src, spec.make_inputs_src, spec.timed_src, spec.cases_src]
    assert all(sources)
    names: dict = {}
    exec("\n".join([*sources, *spec.alternates.values(), *spec.ablations.values()]).replace('"cuda"', '"cpu"'), names)
    makers = [names["_mk"], names["mix"], *(value for key, value in names.items() if key.startswith("case_"))]
    worst = dict.fromkeys([*spec.alternates, *spec.ablations], 0.0)
    for shape in [(7, 64), (3, 129)]:
        for maker in makers:
            inputs = maker(*shape, 1)
            expected = names[spec.func](*inputs).double()
            assert torch.isfinite(expected).all()
            for name in worst:
                error = float((names[name](*inputs).double() - expected).norm() / expected.norm())
                worst[name] = max(worst[name], error) if error == error else 1.0
    assert all(worst[name] <= spec.tol for name in spec.alternates)
    assert all(worst[name] > 10 * spec.tol for name in spec.ablations)


@pytest.mark.parametrize("name", ["Upper", "under_score", "two--hyphens", "-x", "1st", "", "a/b", "a" * 65, "é"])
def test_names_that_are_refused(tmp_path, name):
    with pytest.raises(UsageError, match="kebab-case"):
        new_spec(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["random", "reference", "torch", "class"])
def test_names_that_would_hide_a_module(tmp_path, name):
    with pytest.raises(UsageError, match="hide"):
        new_spec(name, tmp_path)


def test_nothing_is_overwritten(tmp_path):
    path = new_spec("some-task", tmp_path)
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        new_spec("some-task", tmp_path)
    assert path.read_text() == "mine"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((InfrastructureError, UsageError)):
        new_spec("some-task", tmp_path / "file")
