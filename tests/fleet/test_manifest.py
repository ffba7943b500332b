"""Manifests: both forms, the folder convention, and every mistake named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taskfactory.errors import UsageError
from taskfactory.fleet.manifest import Entry, read_entries


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    return tmp_path


def test_toml_with_defaults(folder: Path) -> None:
    path = folder / "m.toml"
    path.write_text(
        '[defaults]\ntask = "row-scale"\nwho = "ann"\n\n'
        '[[submission]]\nsubmission = "a.py"\n\n[[submission]]\nsubmission = "b.py"\nwho = "bob"\nsample = 3\n'
    )
    assert read_entries(path) == [
        Entry("row-scale", folder / "a.py", "ann", "1"),
        Entry("row-scale", folder / "b.py", "bob", "3"),
    ]


def test_json_lines(folder: Path) -> None:
    path = folder / "m.jsonl"
    rows = [{"task": "t", "submission": name, "who": "ann", "sample": name} for name in ("a.py", "b.py")]
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    assert [entry.sample for entry in read_entries(path)] == ["a.py", "b.py"]


def test_a_folder_names_task_who_and_sample(tmp_path: Path) -> None:
    for name in ("t1/ann/1.py", "t1/ann/2.py", "t2/bob.py", "t2/__pycache__/x.py", "t1/ann/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert [(e.task, e.who, e.sample) for e in read_entries(tmp_path)] == [
        ("t1", "ann", "1"), ("t1", "ann", "2"), ("t2", "bob", "1"),
    ]  # fmt: skip


def test_a_task_path_is_relative_to_the_manifest(folder: Path) -> None:
    (folder / "tasks" / "x").mkdir(parents=True)
    path = folder / "m.jsonl"
    path.write_text(json.dumps({"task": "tasks/x", "submission": "a.py", "who": "ann"}))
    assert read_entries(path)[0].task == str(folder / "tasks" / "x")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("m.toml", "[[submission]]\ntask = 1\n", "entry 1: no field 'submission', no field 'who', task must be text"),
        ("m.toml", "x = 1\n", "nothing else"),
        ("m.toml", "x = \n", "m.toml: "),
        ("m.toml", "", "names no submission"),
        ("m.jsonl", "\n{", "m.jsonl:2"),
        ("m.jsonl", "[1]", "not an object"),
        ("m.jsonl", '{"task":"t","submission":"a.py","who":"x","smaple":1}', "unknown field 'smaple'"),
        ("m.jsonl", '{"task":"t","submission":"a.py","who":"x","sample":true}', "text or a number"),
        ("m.jsonl", '{"task":"t","submission":"zz.py","who":"x"}', "zz.py: no such submission"),
        ("m.jsonl", '{"task":"t","submission":"a.py","who":"x"}\n' * 2, "there twice"),
        ("m.csv", "", "a manifest is"),
    ],
)
def test_mistakes_are_named(folder: Path, name: str, text: str, said: str) -> None:
    path = folder / name
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_entries(path)


def test_files_outside_the_convention_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    with pytest.raises(UsageError, match="TASK/WHO"):
        read_entries(tmp_path)
