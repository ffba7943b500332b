"""TaskSpec as a plain Python object."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

import pytest
from pydantic import ValidationError

import specimens
from taskfactory import SpecError, TaskSpec
from taskfactory.load import load_spec
from taskfactory.spec import FIELDS, PROSE_FIELDS, SHAPE_FIELDS, SOURCE_FIELDS, render_docs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def spec(tmp_path) -> TaskSpec:
    return load_spec(specimens.write(tmp_path, specimens.text())).spec


def test_frozen_closed_and_keyword_only(spec):
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.tol = 0.5
    with pytest.raises(ValidationError, match="nothing"):
        TaskSpec(**spec.as_dict(), nothing=1)
    with pytest.raises((TypeError, ValidationError)):
        TaskSpec("name")


def test_lists_become_tuples(spec):
    again = TaskSpec(**{**spec.as_dict(), "grader_shapes": [[64, 128]], "keywords": ["a"]})
    assert (again.grader_shapes, again.keywords) == (((64, 128),), ("a",))


def test_running_the_file_is_the_same_as_loading_it(tmp_path, spec):
    path = specimens.write(tmp_path, specimens.text())
    assert runpy.run_path(str(path))["SPEC"] == spec
    assert spec.digest() == load_spec(path).digest


def test_validate_returns_self(spec):
    assert spec.validate() is spec


def test_validate_lists_everything_without_a_file(spec):
    bad = TaskSpec(**{**spec.as_dict(), "tol": 2.0, "perf_md": ""})
    with pytest.raises(SpecError) as caught:
        bad.validate()
    assert {finding.code for finding in caught.value.findings} == {"TF306", "TF401"}
    assert {finding.line for finding in caught.value.findings} == {0}


def test_validate_in_the_spec_file_knows_its_lines(tmp_path):
    content = specimens.damaged(("tol=1e-2", "tol=1.5")).rstrip() + ".validate()\n"
    path = specimens.write(tmp_path, content)
    with pytest.raises(SpecError) as caught:
        runpy.run_path(str(path))
    (finding,) = [f for f in caught.value.findings if f.code == "TF306"]
    assert (finding.path, finding.line) == (path, specimens.line_of(content, "tol=1.5"))


def test_groups_of_fields():
    assert set(PROSE_FIELDS + SHAPE_FIELDS + SOURCE_FIELDS) < set(FIELDS)
    assert len(FIELDS) == len(set(FIELDS))


def test_every_field_is_documented_and_docs_are_current():
    docs = render_docs()
    for field in FIELDS:
        assert f"- **`{field}`** (" in docs
    assert "None." not in [line.rsplit("). ")[-1] for line in docs.split("\n")]
    assert (ROOT / "docs" / "spec.md").read_text("utf-8") == docs
