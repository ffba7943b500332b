"""Numbers typed into prose, held against the spec: tolerances, ranges and sizes (TF405 to TF407)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from taskfactory.checks.report import Report
from taskfactory.spec import PROSE_FIELDS

_SCALES = {"k": 1e3, "M": 1e6}
_UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9}
# How far a typed range may go beyond the real one: rounding outwards hides the shapes and is fine.
_SLACK = 0.10
# Repetitions are bounded and numbers begin at a boundary: the text is a stranger's, and must not take for ever.
_N = r"\d{1,3}(?:[,_]\d{3}){1,5}(?!\d)[kM]?|\d{1,15}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?[kM]?"
_TO = r"[*`]{0,4}\s{0,9}(?:-|–|—|\.\.+|\bto\b|\band\b|\bthrough\b)\s{0,9}[*`]{0,4}"
_WORDS = r"(?:in|of|is|are|from|between|ranges?|runs?|spans?|spanning|varies|lies|with|at)"
_RANGE = re.compile(
    rf"`(?P<name>[A-Za-z_]\w*)`(?:[\s*:=]|\([^()\d`]{{0,60}}\)|\b{_WORDS}\b)*"
    rf"(?P<low>{_N}){_TO}(?P<high>{_N})(?![\w.]*\d)"
)
_SET = re.compile(rf"`(?P<name>[A-Za-z_]\w*)`(?:[\s*:=]|\b{_WORDS}\b|∈)*\\?\{{(?P<set>[\d\s,]+)\\?\}}")
_SIZE = re.compile(rf"(?<![\w.,])(?P<low>{_N}){_TO}(?P<high>{_N})[\s*]*(?P<unit>[KMG]iB|[kKMG]B)\b")
_E = r"(?P<number>\d{1,9}(?:\.\d{1,9})?e-\d{1,3}|0?\.\d{1,15})(?!\s*[x×%]|[\d.]*[x×%])"
_FILLER = r"(?:[\s`*.:=()]|\b(?:is|of|at|was|set|to|comes|from|here|for|this|task)\b)*"
_TOLERANCES = (
    re.compile(rf"\b(?:tolerance|gate|tol)\b{_FILLER}(?<![\d.]){_E}", re.I),
    re.compile(rf"(?<![\d.\w]){_E}[`*]*\s+(?:gate|tolerance)\b", re.I),
    re.compile(rf"\bwithin\b[^.\d]{{0,80}}\berror\b[\s`*:=]*(?:of\b[\s`*]*)?{_E}", re.I),
)
# A sentence about other shapes than the graded ones.
_OTHER_SHAPES = re.compile(
    r"\b(?:correct\w*|measure\w*|quick|small(?:er)?|public|example)\b[^.]{0,200}\bshapes?\b", re.I
)


def check_tolerance(report: Report) -> None:
    """A number that a sentence calls the tolerance or the gate is `tol`, or a region's own tolerance."""
    spec = report.file.spec
    known = {spec.tol, spec.tol * spec.tile_kappa}
    known |= {float(n) for n in re.findall(r"(?<![\w.])\d*\.?\d+(?:e-?\d+)?(?![\w.])", spec.regions_src or "")}
    for field in PROSE_FIELDS:
        text = getattr(spec, field)
        told: set[int] = set()
        for pattern in _TOLERANCES:
            for match in pattern.finditer(text):
                value, offset = float(match["number"]), match.start("number")
                if offset in told or any(abs(value - right) <= 1e-9 * right for right in known):
                    continue
                told.add(offset)
                message = f"{match['number']} is called the tolerance here, but tol is {spec.tol:g}"
                report.add("TF405", field, message, offset=offset, hint="write {{ tol }}")


def check_ranges(report: Report, quantities: Mapping[str, Sequence[float]]) -> None:
    """`NAME` followed by a typed range or set, against what NAME really is at the graded shapes."""
    for field in PROSE_FIELDS:
        text = getattr(report.file.spec, field)
        for match in _RANGE.finditer(text):
            name = match["name"]
            if name in quantities and not _OTHER_SHAPES.search(_sentence(text, match.start())):
                low, high = _number(match["low"]), _number(match["high"])
                real_low, real_high = min(quantities[name]), max(quantities[name])
                if not _covers(low, high, real_low, real_high):
                    message = f"{name} is said to be {low:g} to {high:g}, and is {real_low:g} to {real_high:g}"
                    hint = f"write {{{{ graded.{name} }}}}, which is rendered from the shapes"
                    report.add("TF406", field, message, offset=match.start(), hint=hint)
        for match in _SET.finditer(text):
            name = match["name"]
            said = {float(n) for n in re.findall(r"\d+", match["set"])}
            if name in quantities and said != set(quantities[name]):
                if _OTHER_SHAPES.search(_sentence(text, match.start())):
                    continue
                real = ", ".join(f"{v:g}" for v in sorted(set(quantities[name])))
                report.add(
                    "TF406",
                    field,
                    f"{name} is said to be in {{{match['set'].strip()}}}, and is in {{{real}}}",
                    offset=match.start(),
                    hint=f"write {{{{ graded.{name}.values }}}}, which is rendered from the shapes",
                )


def check_sizes(report: Report, quantities: Mapping[str, Sequence[float]]) -> None:
    """A range of bytes in `regime_md` that nothing computed from the shapes has."""
    text = report.file.spec.regime_md
    for match in _SIZE.finditer(text):
        unit = _UNITS[match["unit"]]
        low, high = _number(match["low"]), _number(match["high"])
        real = [(n, min(v) / s, max(v) / s) for n, v in quantities.items() for s in (1.0, unit)]
        if any(_covers(low, high, least, most) for _, least, most in real):
            continue
        message = f"no quantity of the graded shapes is {match['low']} to {match['high']} {match['unit']}"
        if report.file.spec.metric == "GB/s" and "canonical_work" in quantities:
            work = quantities["canonical_work"]
            message += f"; canonical_work is {min(work) / unit:.2f} to {max(work) / unit:.2f}"
        report.add("TF407", "regime_md", message, offset=match.start())


def _covers(low: float, high: float, real_low: float, real_high: float) -> bool:
    """Whether a typed range contains the real one, up to its last printed digit, without going far beyond it."""
    return _near(low, real_low, below=True) and _near(high, real_high, below=False)


def _near(said: float, real: float, *, below: bool) -> bool:
    inside = said <= real if below else said >= real
    rounding = 0.5 * 10.0 ** -_decimals(said) if _decimals(said) else 0.0
    return abs(said - real) <= max(rounding, abs(real) * _SLACK if inside else 0.0)


def _decimals(value: float) -> int:
    text = f"{value:.6f}".rstrip("0")
    return len(text.partition(".")[2])


def _number(text: str) -> float:
    scale = _SCALES.get(text[-1:], 1.0)
    return float(text.rstrip("kM").replace(",", "").replace("_", "")) * scale


def _sentence(text: str, offset: int) -> str:
    """The sentence around an offset; a semicolon or an empty line ends one too."""
    start = max((m.end() for m in _ends(text, 0, offset)), default=0)
    stop = next((m.start() for m in _ends(text, offset, len(text))), len(text))
    return text[start:stop]


def _ends(text: str, start: int, stop: int) -> Iterator[re.Match[str]]:
    return re.compile(r"[.;!?](?=\s)|\n\s*\n").finditer(text, start, stop)
