"""Plain words and numbers for readers: statuses, tiers, figures, Markdown and source with colours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from taskfactory.grader.result import Status

TIERS = {
    "namespaced": "confined, and in process, IPC and network namespaces of its own",
    "confined": "no attack of the probe got out",
    "partial": "nothing could read hidden data or change a verdict; something could disturb or observe",
    "unconfined": "hidden data could be read or a verdict changed: trust this only as far as the submission",
}


def status_text(status: Status | str) -> str:
    """ "runtime_error" -> "runtime error"."""
    return str(status).replace("_", " ")


def device(name: str) -> str:
    """A GPU's name as it is; a machine without one names its architecture, and is called a CPU."""
    return f"CPU ({name})" if name in ("x86_64", "aarch64", "arm64", "ppc64le", "riscv64") else name


def reason(record: Mapping[str, Any], meaning: str) -> tuple[str, str]:
    """Why a grading ended as it did: at which shape, or "", and what was said there beyond the status's `meaning`."""
    failure = record.get("failure") or {}
    place = f"{failure['kind']} shape {failure['ordinal']}" if failure.get("kind") else ""
    if place and failure.get("case"):
        place += f", case {failure['case']}"
    said = str(failure.get("message") or record.get("message") or "").strip()
    if place:
        said = said.removeprefix(place).removeprefix(": ")
    return place, "" if _plain(said) in _plain(meaning) else said


def _plain(text: str) -> str:
    return text.rstrip(".").lower()


_TIME = r"\d ?(?:ns|us|µs|ms|s)\b"


def without_times(text: str) -> str:
    """A message without its times, which may tell a hidden shape; a remark in brackets with one goes whole."""
    text = re.sub(rf"\s*\([^()]*{_TIME}[^()]*\)", "", text)
    return re.sub(rf"[-+.\de]*{_TIME}", "…", text)


def figure(value: float | None, digits: int = 4) -> str:
    """A number to so many significant digits without an exponent; a dash for None."""
    if value is None:
        return "–"
    if value == 0 or not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits}g}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if abs(value) < 1:
        return f"{value:.{digits}g}"
    return f"{value:,.{max(0, digits - whole)}f}".replace(",", "\u202f")


def fraction(value: float | None) -> str:
    """Three decimals, or a dash for None."""
    return "–" if value is None else f"{value:.3f}"


def duration(seconds: float) -> str:
    """ "41 s", "3 min 20 s", "1 h 05 min"."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{seconds:.1f} s"


def moment(iso: str) -> str:
    """ "2026-01-02T03:04:05.678+00:00" -> "2026-01-02 03:04 UTC"."""
    return f"{iso[:10]} {iso[11:16]} UTC" if len(iso) >= 16 else iso or "–"


def slug(name: str) -> str:
    """A file name for any text; different names get different ones."""
    import hashlib

    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    if plain and plain == name:
        return plain
    return f"{plain or 'x'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def markdown(text: str) -> Markup:
    """CommonMark with tables as HTML; HTML in it is shown, not obeyed."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.options["highlight"] = lambda code, language, _: str(_tokens(code)) if language == "python" else ""
    html = parser.render(text)
    # What is wider than the page scrolls by itself, and must be reachable by keyboard for that.
    html = html.replace("<table>", '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>')
    html = html.replace("</table>", "</table></div>").replace("<pre>", '<pre tabindex="0">')
    return Markup(re.sub(r'<a href="(?!https?://|#|mailto:)[^"]*">(.*?)</a>', r"\1", html))


@lru_cache(maxsize=256)
def source(text: str) -> Markup:
    """Python source with colours and a number before each line."""
    lines = str(_tokens(text)).rstrip("\n").split("\n")
    rows = "\n".join(f'<span class="line" id="L{k}">{line}</span>' for k, line in enumerate(lines, 1))
    return Markup(f'<pre class="source" tabindex="0" role="region" aria-label="Source code"><code>{rows}</code></pre>')


def _tokens(text: str) -> Markup:
    """Spans with pygments' short class names, none of which crosses a line."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return Markup(highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)))
