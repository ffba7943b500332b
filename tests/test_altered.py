"""Submissions made from an oracle do what their names say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taskfactory.altered import CHEATS, altered

ORACLE = "calls = []\n\n\ndef double(x, n=2):\n    calls.append(x)\n    return [v * n for v in x.data]\n"


class Values:
    def __init__(self, data: list[int]) -> None:
        self.data = data
        self.shape = (len(data),)

    def zero_(self) -> None:
        self.data = [0] * len(self.data)


def load(name: str) -> SimpleNamespace:
    namespace: dict[str, Any] = {"__name__": "double"}
    exec(compile(altered(ORACLE, "double")[name], name, "exec"), namespace)
    return SimpleNamespace(**namespace)


def test_all_of_them_are_there_and_compile() -> None:
    made = altered(ORACLE, "double")
    assert set(made) == {"slow", *CHEATS}
    for name, text in made.items():
        compile(text, name, "exec")


def test_slow_repeats_the_work_and_is_right() -> None:
    module = load("slow")
    assert module.double(Values([1, 2])) == [2, 4]
    assert len(module.calls) == 4


def test_replay_returns_what_it_returned_for_that_shape() -> None:
    module = load("replay")
    assert module.double(Values([1, 2])) == [2, 4]
    assert module.double(Values([3, 4])) == [2, 4]
    assert module.double(Values([3])) == [6]


def test_write_inputs_spoils_its_first_tensor() -> None:
    module, values = load("write-inputs"), Values([1, 2])
    assert module.double(values) == [2, 4]
    assert values.data == [0, 0]


def test_forge_leaves_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(OSError))
    with pytest.raises(SystemExit):
        load("forge-reward")
