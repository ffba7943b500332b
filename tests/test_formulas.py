"""The interpreter of formulas agrees with Python where it answers, and stops with a line where it does not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskfactory.errors import FormulaError
from taskfactory.formulas import Formulas, Source


def formulas(*texts: str, first_line: int = 1) -> Formulas:
    return Formulas([Source(text, Path("spec.py"), first_line, "flops_src") for text in texts])


def evaluate(expression: str, **names: object) -> object:
    return formulas(f"def f({', '.join(names)}):\n    return {expression}\n").call("f", *names.values())


def stops(text: str, *args: object, first_line: int = 1) -> tuple[str, int]:
    with pytest.raises(FormulaError) as caught:
        formulas(text, first_line=first_line).call("f", *args)
    finding = caught.value.finding
    assert finding.code == "TF501"
    assert finding.field == "flops_src"
    return finding.message, finding.line


PROGRAM = '''
import math
from math import ceil as up

BLOCK = 4
TABLE = {"a": [1, 2, 3], "b": (4, 5)}


def _needs_torch(n):
    return torch.arange(n)


def starts(n, tile, stride):
    """Tile starts."""
    if tile >= n:
        return [0]
    xs = list(range(0, n - tile + 1, stride))
    if xs[-1] != n - tile:
        xs.append(n - tile)
    return xs


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    else:
        steps += 100
    return steps


def loops(n):
    total = 0
    for i, (a, *rest) in enumerate([(1, 2, 3), (4, 5)]):
        for j in range(n):
            if j == 3:
                continue
            if j == 6:
                break
            total += a * j + len(rest) + i
        else:
            total += 1000
    seen = {}
    for key, value in TABLE.items():
        seen[key] = sum(value)
    seen["a"] += 1
    return total, seen, sorted(seen), [v for k, v in sorted(seen.items()) if v > 7]


def mixed(a, b=2, *, c=BLOCK):
    x = y = a + b * c
    assert x == y, "equal"
    pair = {"sum": x, "half": x / 2, **{"extra": up(x / 3)}}
    return pair, math.gcd(a, 12), math.floor(2.5), min(3, a), max([1, a]), any(i > a for i in range(9)), abs(-a), \\
        divmod(a, 4), round(a / 3, 2), f"{a:,} of {b}", (a, b)[::-1], [1, 2, 3][1:], not a, a < b <= c or c, \\
        math.prod([a, 2, 3])
'''


def test_agrees_with_python_on_a_program():
    ours, python = formulas(PROGRAM), {}
    exec(PROGRAM, python)
    for call in [
        ("starts", 48, 32, 24),
        ("starts", 80, 32, 24),
        ("starts", 5, 9, 2),
        ("collatz", 27),
        ("loops", 2),
        ("loops", 9),
        ("mixed", 7),
        ("mixed", 1234567, 3),
    ]:
        name, *args = call
        assert ours.call(name, *args) == python[name](*args), call
    assert ours.call("mixed", 1, c=9) == python["mixed"](1, c=9)


NUMBERS = (
    st.integers(-50, 50).map(str) | st.floats(-8, 8, allow_nan=False).map(repr) | st.sampled_from(["True", "n", "m"])
)


def _binary(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(
        ["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "<", "<=", "==", "!=", "and", "or"]
    )
    return (
        st.builds("({} {} {})".format, parts, operators, parts)
        | st.builds("(-{})".format, parts)
        | st.builds("({} if {} else {})".format, parts, parts, parts)
        | st.builds("min({}, {})".format, parts, parts)
        | st.builds("int({})".format, parts)
        | st.builds("[{}, {}][{} % 2]".format, parts, parts, st.integers(0, 9))
        | st.builds("sum([x * {} for x in ({}, {}) if x > 0])".format, parts, parts, parts)
    )


@settings(max_examples=400, deadline=None)
@given(expression=st.recursive(NUMBERS, _binary, max_leaves=8), n=st.integers(-9, 99), m=st.integers(1, 9))
def test_arithmetic_agrees_with_python(expression, n, m):
    # Ours first: where a bound of ours stops it, Python itself might compute a power of powers until memory ends.
    try:
        result = evaluate(expression, n=n, m=m)
    except FormulaError as error:
        if any(word in str(error) for word in ("bits", "complex")):
            return
        with pytest.raises((ArithmeticError, TypeError, ValueError)):
            eval(expression, {"n": n, "m": m})
        return
    expected = eval(expression, {"n": n, "m": m})
    assert type(result) is type(expected)
    assert result == expected or result != result


@pytest.mark.parametrize(
    "body",
    [
        "return torch.numel(n)",
        "import os\n    return os.getcwd()",
        "return __import__('os')",
        "return n.__class__",
        "return ().__class__.__bases__",
        "return open('x')",
        "return eval('1')",
        "return getattr(n, 'real')",
        "return (lambda: 1)()",
        "return f'{n!r}'",
        "return f'{n:>999999999}'",
        "return '%d' % n",
        "return 'a'.join(['b'])",
        "return {n}.pop()",
        "class A: pass",
        "def g(): return 1",
        "try:\n        return 1\n    except Exception:\n        return 2",
        "yield n",
        "global x",
        "del n",
        "raise ValueError",
        "with n: pass",
        "return [*n]",
        "return n[0]",
        "return len(n)",
        "return 1 / (n - n)",
        "return [][0]",
        "return {}['a']",
        "return int('5')",
        "return undefined",
        "return sum",
        "return b'x'",
        "return 1j",
        "return ...",
        "a, b = (1, 2, 3)",
        "return (-1) ** 0.5",
        "return math.nothing(1)",
        "return range(n)(1)",
        "return min()",
        "return f(n, n)",
        "return sorted([1, 'a'])",
        "return {[]: 1}",
        "return [x for x in {(1, 'a'), ('a', 1)}]",
        "return n.append(x=1)",
        "return {**n}",
        "n.x = 1",
        "return print(n)",
        "assert n < 0, 'told'",
        "return math",
        "return (x := n)",
        "return n @ n",
        "return type(n)",
        "return dict(a=n).pop('a')",
        "for a in n: pass",
        "return n if {[]} else 1",
    ],
)
def test_outside_the_subset_stops_with_its_line(body):
    message, line = stops(f"X = 1\n\ndef f(n):\n    m = 0\n    {body}\n", 5, first_line=100)
    assert message
    assert line >= 102
    assert "\n" not in message


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "return f(n)",
        "return 9 ** 9 ** 9",
        "return 1 << 10 ** 9",
        "return [0] * 10 ** 9",
        "return 'a' * 10 ** 9",
        "return sum(range(10 ** 12))",
        "return list(range(10 ** 7))",
        "return round(5, -10 ** 10)",
        "return round(n, 10 ** 10)",
        "x = [0]\n    while True: x = x + x",
        "x = 2\n    while True: x = x * x",
        "x = ''\n    while True: x += 'ab'",
        "return math.lcm(*[10 ** 9 + i for i in range(5000)])",
        "return math.prod(range(1, 10 ** 5))",
        "return [a for a in range(9999) for b in range(9999)]",
        "x = []\n    x.append(x)\n    return x",
        "x = (0,)\n    for i in range(60): x = (x, x)\n    return {x: 1}",
        "x = (0,)\n    for i in range(60): x = (x, x)\n    return x == (x, 1)",
        "x = [0]\n    for i in range(60): x = [x, x]\n    return x",
        "x = (0,)\n    for i in range(60): x = (x, x)\n    return {x}",
        "x = [0]\n    for i in range(60): x = [x, x]\n    return sorted([x, x])",
        "x = [0]\n    for i in range(60): x = [x, x]\n    return [1].count(x)",
        "d = {1: 1}\n    for k in d: d[k + 1] = 1",
        "return " + "-" * 900 + "n",
        "return " + "(" * 90 + "n" + ")" * 90 + "[0]",
    ],
)
def test_bounds(body):
    start = time.monotonic()
    message, _ = stops(f"def f(n):\n    {body}\n", 5)
    assert message
    assert time.monotonic() - start < 30  # on a busy machine; alone it is seconds


def test_defaults_constants_and_overriding():
    first = "A = 2\n\ndef g(x):\n    return x\n\ndef f(n, c=A * 32):\n    return g(n) * c\n"
    assert formulas(first).call("f", 3) == 192
    assert formulas(first, "def g(x):\n    return 10 * x\n").call("f", 3) == 1920
    assert formulas("A = B\nB = A\ndef f(): return A\n").defines("f")
    assert "itself" in stops("A = B\nB = A\ndef f(): return A\n")[0]


@pytest.mark.parametrize(
    "change", ["SEEN.append(n)", "SEEN[0] = n", "x = SEEN\n    x.append(n)", "_add(SEEN)", "NEST['a'].append(n)"]
)
def test_module_level_values_cannot_be_changed(change):
    values = "SEEN = [0]\nNEST = {'a': [0]}\n\ndef _add(x):\n    x.append(1)\n\n"
    text = f"{values}def f(n):\n    {change}\n    return len(SEEN)\n"
    assert "module level" in stops(text, 1)[0]


def test_remembered_results_are_not_shared():
    ours = formulas(
        "def g(n):\n    return [n]\n\ndef h(n):\n    return n\n",
        "def f(n):\n    x = g(n)\n    x.append(n)\n    return x, g(n)\n",
    )
    assert ours.call("f", 3) == ([3, 3], [3])
    first = ours.call("g", 3)
    first.append(9)
    assert ours.call("g", 3) == [3]
    # One key in Python, different results here.
    assert (ours.call("h", 1), ours.call("h", True), ours.call("h", 1.0)) == (1, True, 1.0)
    assert [type(ours.call("h", x)) for x in (1, True, 1.0)] == [int, bool, float]
    assert ours.trace("f", 3)[1]["x"] == [3, 3]


def test_order_of_a_set_is_fixed():
    assert evaluate("[x for x in {'b', 'a', 'c'}]") == ["a", "b", "c"]


def test_trace_gives_locals():
    value, names = formulas("def f(n):\n    NT = n * 2\n    return NT + 1\n").trace("f", 4)
    assert (value, dict(names)) == (9, {"n": 4, "NT": 8})


def test_wrong_calls():
    text = "def f(a, b=1):\n    return a\n\ndef g(*args):\n    return 1\n"
    for args, kwargs in [((), {}), ((1, 2, 3), {}), ((1,), {"c": 1}), ((1,), {"a": 1})]:
        with pytest.raises(FormulaError):
            formulas(text).call("f", *args, **kwargs)
    with pytest.raises(FormulaError, match="arguments"):
        formulas(text).call("g", 1)
    with pytest.raises(FormulaError, match="no function"):
        formulas(text).call("h")


def test_source_that_does_not_parse_names_its_line():
    with pytest.raises(FormulaError) as caught:
        formulas("def f(:\n", first_line=40)
    assert (caught.value.finding.code, caught.value.finding.line) == ("TF201", 40)


def test_line_inside_a_helper_is_reported():
    text = "def _half(n):\n    return n // (n - 5)\n\n\ndef f(n):\n    return _half(n)\n"
    assert stops(text, 5, first_line=11) == ("ZeroDivisionError: integer division or modulo by zero", 12)


def test_docstring_and_line():
    ours = formulas('X = 1\ndef f():\n    """Bytes."""\n    return 1\n', first_line=7)
    assert (ours.docstring("f"), ours.line("f"), ours.defines("g")) == ("Bytes.", 8, False)
