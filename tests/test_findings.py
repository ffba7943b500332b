"""The three ways findings are printed."""

from __future__ import annotations

import io
import json

import pytest

from taskfactory.findings import (
    Finding,
    color_wanted,
    failed,
    format_github,
    format_json,
    format_text,
    in_file_order,
    summary,
)

ERROR = Finding("TF306", "error", "1.5 is not below 1", "specs/a.py", 2, "tol", "choose less")
WARNING = Finding("TF223", "warning", "there is no floor", "specs/a.py", 0, "floor_src")


def test_order_and_repetition():
    later = Finding("TF101", "error", "x", "specs/a.py", 9, "name")
    other = Finding("TF101", "error", "x", "specs/b.py", 1, "name")
    assert in_file_order([other, later, ERROR, WARNING, ERROR]) == [WARNING, ERROR, later, other]


def test_failed():
    assert failed([ERROR])
    assert not failed([WARNING])
    assert failed([WARNING], strict=True)
    assert not failed([], strict=True)


def test_text_shows_place_excerpt_and_help(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.py"
    path.write_text("one\n    tol=1.5,\n", encoding="utf-8")
    finding = Finding("TF306", "error", "1.5 is not below 1", path, 2, "tol", "choose less")
    assert format_text([finding]).split("\n") == [
        "a.py:2: error TF306 tol  1.5 is not below 1",
        "    2 |     tol=1.5,",
        "      = help: choose less",
    ]
    assert "|" not in format_text([finding], excerpts=False)
    assert "\033[" not in format_text([finding])
    assert "\033[1;31merror\033[0m" in format_text([finding], color=True)


def test_one_line_is_shown_once(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("tol=1.5\n", encoding="utf-8")
    findings = [Finding(code, "error", "x", path, 1) for code in ("TF306", "TF307")]
    assert format_text(findings).count("tol=1.5") == 1


def test_excerpts_of_strange_files(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(b"\x1b[31m\xff red \x07\n" + b"x" * 500 + b"\n")
    first, second = (format_text([Finding("TF306", "error", "x", path, line)]) for line in (1, 2))
    assert "\x1b" not in first
    assert "\x07" not in first
    assert len(second.split("\n")[1]) < 130
    assert "|" not in format_text([Finding("TF306", "error", "x", path, 99)])
    assert "|" not in format_text([Finding("TF001", "error", "x", tmp_path / "missing.py", 1)])


def test_json():
    data = json.loads(format_json([ERROR], schema=1, ok=False))
    assert data["schema"] == 1
    assert data["findings"] == [
        {
            "code": "TF306",
            "severity": "error",
            "message": "1.5 is not below 1",
            "path": "specs/a.py",
            "line": 2,
            "field": "tol",
            "hint": "choose less",
        }
    ]


def test_github_escapes():
    nasty = Finding("TF306", "error", "50 % of\nit", "specs/a,b:c.py", 3, "tol", "do: it")
    assert format_github([nasty, WARNING]).split("\n") == [
        "::error file=specs/a%2Cb%3Ac.py,title=TF306 tol,line=3::50 %25 of%0Ait (do: it)",
        "::warning file=specs/a.py,title=TF223 floor_src::there is no floor",
    ]


def test_summary():
    assert summary([], specs=1) == "1 spec: no findings"
    assert summary([ERROR, WARNING, WARNING], specs=2) == "2 specs: 1 error, 2 warnings"
    assert "errors under --strict" in summary([WARNING], specs=2, strict=True)


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_color_only_on_a_willing_terminal(monkeypatch, variable, value):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert color_wanted(Terminal())
    assert not color_wanted(io.StringIO())
    monkeypatch.setenv(variable, value)
    assert not color_wanted(Terminal())
