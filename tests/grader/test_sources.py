"""Executing a task's sources: one namespace, the right device, the right lines in tracebacks."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from grader.toy import write_task
from taskfactory.grader.sources import Part, case_functions, load_directory, load_namespace


def run(text: str, device: str = "cpu", path: str = "<spec>", first_line: int = 1) -> dict[str, Any]:
    return load_namespace([Part(text, path, first_line)], device)


def test_parts_share_one_namespace_in_order() -> None:
    namespace = load_namespace([Part("a = 1", "x"), Part("b = a + 1\ndef f(): return b", "y"), Part("b = 10", "z")])
    assert namespace["f"]() == 10


def test_namespaces_are_fresh() -> None:
    run("leftover = 1")
    assert "leftover" not in run("pass")
    assert run("pass")["__name__"] == "task_sources"


@pytest.mark.parametrize("quote", ['"cuda"', "'cuda'", '"cu" "da"', 'f"cuda"', '"""cuda"""'])
def test_the_literal_cuda_points_at_the_device(quote: str) -> None:
    assert run(f"def f(device={quote}): return device, [{quote}]")["f"]() == ("cpu", ["cpu"])
    assert run(f"x = {quote}", device="cuda")["x"] == "cuda"


@pytest.mark.parametrize("expression", ['"cuda:0"', '"a cuda"', '"CUDA"', 'b"cuda"', '"".join(["cu", "da"])'])
def test_nothing_but_that_literal_is_replaced(expression: str) -> None:
    assert run(f"x = {expression}")["x"] == eval(expression)


def test_names_and_attributes_of_that_spelling_stay() -> None:
    assert run("class o:\n    cuda = 5\ncuda = 3\nx = (cuda, o.cuda)")["x"] == (3, 5)


def test_imports_between_the_two_files_are_dropped() -> None:
    text = (
        "from make_inputs import x\ndef f(a):\n    if a:\n        from reference import _helper\n    return _helper(a)"
    )
    namespace = load_namespace([Part("def _helper(a): return a + 1", "make_inputs.py"), Part(text, "reference.py")])
    assert namespace["f"](1) == 2


def test_other_imports_are_not() -> None:
    assert run("from math import pi\nimport json")["pi"] > 3
    with pytest.raises(ImportError):
        run("import reference")
    with pytest.raises(ImportError):
        run("from taskfactory.reference import x")


def test_this_modules_future_imports_do_not_leak_into_the_sources() -> None:
    """A solver's import of the same file must mean the same."""
    assert run("def f(a: int): pass")["f"].__annotations__ == {"a": int}
    postponed = run("from __future__ import annotations\ndef f(a: int): pass")
    assert postponed["f"].__annotations__ == {"a": "int"}


def test_a_traceback_shows_the_authors_file_line_and_text() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("\ndef f():\n    return 1 / 0\n", path="specs/none.py", first_line=40)["f"]()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.name, last.line) == ("specs/none.py", 42, "f", "return 1 / 0")


def test_a_traceback_of_a_file_on_disk_shows_its_line(tmp_path: Path) -> None:
    write_task(tmp_path)
    text = (tmp_path / "reference.py").read_text()
    (tmp_path / "reference.py").write_text(text.replace("y = x.float()", "y = x.no_such_thing()"))
    namespace = load_directory(tmp_path, "cpu")
    with pytest.raises(AttributeError) as caught:
        namespace["row_scale"](*namespace["_mk"](2, 3, 0))
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename == str(tmp_path / "reference.py")
    assert last.line == "y = x.no_such_thing() * (2.0 if scale is None else scale)"


def test_a_syntax_error_names_the_file() -> None:
    with pytest.raises(SyntaxError) as caught:
        run("x = (", path="reference.py")
    assert caught.value.filename == "reference.py"


def test_a_directory_makes_the_same_inputs_for_the_same_seed(tmp_path: Path) -> None:
    namespace = load_directory(write_task(tmp_path), "cpu")
    first, again, other = (namespace["make_inputs"]((3, 4), seed)[0] for seed in (5, 5, 6))
    assert first.device.type == "cpu"
    assert first.equal(again)
    assert not first.equal(other)


def test_cases_come_in_their_order_and_are_functions() -> None:
    namespace = run("case_b = 1\ndef case_z(): pass\ndef case_a(): pass\ndef lower_case_x(): pass")
    assert list(case_functions(namespace)) == ["z", "a"]
