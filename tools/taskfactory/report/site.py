"""The pages of a report: their paths, what each shows, and writing all of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from taskfactory import __version__
from taskfactory.errors import UsageError
from taskfactory.grader.result import Status
from taskfactory.paths import templates_dir
from taskfactory.report import words
from taskfactory.report.boards import Board, boards, overall
from taskfactory.report.calibration import Calibration, calibrations, gates, share
from taskfactory.report.entries import Entry, Span, entry_of, record_of
from taskfactory.report.listing import Listing
from taskfactory.report.svg import fraction_bar, strip
from taskfactory.store.store import Store

MARK = ".taskfactory-report"
"""Marks a folder that may be replaced."""
ASSETS = ("style.css", "script.js")


@dataclass(frozen=True)
class Options:
    """What the pages show."""

    title: str = "Kernel leaderboard"
    private: bool = False
    """Graded shapes, seeds, coordinates and tracebacks too."""
    with_source: bool = True
    merge: frozenset[str] = frozenset()
    """Differences to ignore in rankings; see `boards.MERGEABLE`."""
    live: bool = False
    """Served: pages follow the store."""


class Site:
    """The pages of a store; `refresh` reads what is new since the last time."""

    def __init__(self, store: Store, options: Options) -> None:
        self.store, self.options = store, options
        self.entries: list[Entry] = []
        self.boards: dict[str, list[Board]] = {}
        self.calibrations: dict[str, list[Calibration]] = {}
        self.environment = _environment()
        self.version = (-1, -1)
        self.refresh()

    def refresh(self) -> bool:
        """Read new results; returns whether there were any, or new jobs."""
        version = self.store.version()
        if version == self.version:
            return False
        after = self.entries[-1].id if self.entries else 0
        self.entries += [entry_of(stored) for stored in self.store.results(after=after)]
        by_task: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.judged:
                by_task.setdefault(entry.task, []).append(entry)
        self.boards = {task: boards(found, self.options.merge) for task, found in sorted(by_task.items())}
        last = {entry.task: entry.task_sha256 for entry in self.entries}
        self.tasks = {task: self.store.task(digest) for task, digest in sorted(last.items())}
        self.version = version
        return True

    def paths(self) -> Iterator[str]:
        """All pages."""
        yield from ("index.html", "runs.html", "about.html")
        yield from (f"task/{words.slug(task)}.html" for task in self.tasks)
        yield from (f"task/{words.slug(task)}-readme.html" for task, stored in self.tasks.items() if stored.readme)
        yield from (f"who/{words.slug(name)}.html" for name in self._submitters())
        yield from (entry.page for entry in self.entries)
        yield from (path for listing in self._listings() for path in listing.paths())
        yield from ASSETS

    def _submitters(self) -> list[str]:
        return list(dict.fromkeys(entry.submitter for entry in self.entries))

    def _listings(self) -> list[Listing]:
        """One for each task and each submitter."""
        found: dict[tuple[str, str], list[Entry]] = {}
        for entry in reversed(self.entries):
            found.setdefault(("task", entry.task), []).append(entry)
            found.setdefault(("who", entry.submitter), []).append(entry)
        return [Listing(kind, name, entries) for (kind, name), entries in found.items()]

    def render(self, path: str) -> str:
        """The text of one page.

        Raises:
            KeyError: there is no such page.
        """
        folder, _, name = path.rpartition("/")
        stem, extension = os.path.splitext(name)
        if path in ASSETS:
            return (templates_dir() / "report" / path).read_text("utf-8")
        if extension != ".html":
            raise KeyError(path)
        if folder == "" and stem in ("index", "runs", "about"):
            return self._page(path, f"{stem}.html", getattr(self, f"_{stem}")())
        if folder == "task":
            names = {words.slug(task): task for task in self.tasks}
            if stem in names:
                return self._page(path, "task.html", self._task(names[stem]))
            return self._page(path, "readme.html", self._task(names[stem.removesuffix("-readme")]))
        if folder == "who":
            return self._page(path, "who.html", self._who(stem))
        if folder == "gradings":
            return self._page(path, "gradings.html", self._gradings(path))
        if folder == "result" and stem.isdigit():
            return self._page(path, "result.html", self._result(int(stem)))
        raise KeyError(path)

    def _page(self, path: str, template: str, view: dict[str, Any]) -> str:
        up = "../" * path.count("/")
        shared = {"options": self.options, "up": up, "path": path, "version": __version__, "tasks": self.tasks}
        return self.environment.get_template(f"report/{template}.jinja").render(shared | view)

    def _index(self) -> dict[str, Any]:
        every = [board for found in self.boards.values() for board in found]
        tallies = [self.store.tally(run) for run in self.store.runs()]
        return {
            "overalls": overall(every), "boards": self.boards,
            "judged": sum(entry.judged for entry in self.entries),
            "passed": sum(entry.passed for entry in self.entries),
            "submitters": len({entry.submitter for entry in self.entries}),
            "open_runs": [tally for tally in tallies if tally.done + tally.broken < tally.jobs],
        }  # fmt: skip

    def _runs(self) -> dict[str, Any]:
        rows = []
        for run in reversed(self.store.runs()):
            tally = self.store.tally(run)
            own = [entry for entry in self.entries if entry.run_id == run.id]
            rows.append({"tally": tally, "slots": len({(e.host, e.slot) for e in own}), "seconds": _seconds(own)})
        return {"rows": rows}

    def _about(self) -> dict[str, Any]:
        return {"statuses": list(Status), "tiers": words.TIERS}

    def _task(self, task: str) -> dict[str, Any]:
        own = [entry for entry in self.entries if entry.task == task]
        found = self.boards.get(task, [])
        tops = [row.best.fraction.high for board in found for row in board.rows if row.best and row.best.fraction]
        stored = self.tasks[task]
        if stored.content_sha256 not in self.calibrations:  # once: a spec may take a while to load
            self.calibrations[stored.content_sha256] = calibrations(stored, names=self.options.private)
        return {
            "task": stored, "listing": Listing("task", task, own[::-1]),
            "found": found, "top": max([1.0, *tops]) * 1.02, "gates": gates(stored),
            "limits": next((entry for entry in reversed(own) if entry.limits_ms), None),
            "calibrations": self.calibrations[stored.content_sha256],
            "readme": words.markdown(stored.readme), "broken": sum(not entry.judged for entry in own),
        }  # fmt: skip

    def _who(self, stem: str) -> dict[str, Any]:
        own = [entry for entry in self.entries if words.slug(entry.submitter) == stem]
        if not own:
            raise KeyError(stem)
        return {"submitter": own[0].submitter, "own": own, "listing": Listing("who", own[0].submitter, own[::-1])}

    def _gradings(self, path: str) -> dict[str, Any]:
        for listing in self._listings():
            if path in listing.paths():
                number = listing.paths().index(path) + 1
                return {"listing": listing, "number": number, "entries": listing.page(number)}
        raise KeyError(path)

    def _result(self, number: int) -> dict[str, Any]:
        entry = next((entry for entry in self.entries if entry.id == number), None)
        if entry is None:
            raise KeyError(number)
        stored = self.store.result(number)
        record = record_of(stored, private=self.options.private)
        text = self.store.source(entry.source_sha256).decode("utf-8", "replace") if self.options.with_source else None
        key = (entry.task, entry.submitter, entry.sample)
        same = [other for other in self.entries if (other.task, other.submitter, other.sample) == key]
        place, said = words.reason(record or {}, entry.status.meaning)
        return {
            "place": place, "said": said, "differences": _differences(record) if self.options.private else [],
            "entry": entry, "stored": stored, "record": record, "others": [e for e in same if e.id != number],
            "strips": _strips(record) if record and self.options.private else [], "source": text and words.source(text),
            "tier_text": words.TIERS.get(entry.tier, ""), "printed": stored.printed if self.options.private else "",
        }  # fmt: skip


def _seconds(entries: list[Entry]) -> float | None:
    """From the first start to the last result of a run, as far as it has results."""
    from datetime import datetime

    try:
        first = min(datetime.fromisoformat(entry.started_at) for entry in entries)
        return (max(datetime.fromisoformat(entry.stored_at) for entry in entries) - first).total_seconds()
    except (ValueError, TypeError):
        return None


def _shape_span(shape: dict[str, Any]) -> Span:
    """A graded shape's fraction of the limit, as uncertain as its time is."""
    value, delta = float(shape["fraction_of_limit"]), float(shape["delta_of_time"] or 0.0)
    return Span(value, value / (1 + delta), value / max(1 - delta, 0.01))


def _differences(record: dict[str, Any] | None) -> list[str]:
    """The first entries of outputs that differ, in words; the private form alone has them."""
    outputs = ((record or {}).get("failure") or {}).get("outputs", [])
    return [
        f"{output['name']}{found['index']}: {found['actual']}, expected {found['expected']}"
        for output in outputs
        for found in output.get("differences", [])
    ]


def _strips(record: dict[str, Any]) -> list[Markup]:
    """A distribution for each graded shape that was timed."""
    return [
        strip(f"graded shape {s['ordinal']}", s["claim_ms"], s["interval_ms"], s["score_ms"], s["limit_ms"])
        for s in record["shapes"]
        if s["kind"] == "graded" and s["claim_ms"] and s["interval_ms"] and s["score_ms"] and s["limit_ms"]
    ]


def _environment() -> jinja2.Environment:
    """Escaping, strict; the names of submitters and all that submissions say are strangers' text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()), undefined=jinja2.StrictUndefined, autoescape=True,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    environment.filters |= {
        "figure": words.figure, "fraction": words.fraction, "status": words.status_text, "slug": words.slug,
        "moment": words.moment, "share": share,
        "duration": words.duration, "device": words.device,
    }  # fmt: skip
    environment.globals |= {"fraction_bar": fraction_bar, "shape_span": _shape_span}
    return environment


def write_site(site: Site, out: Path) -> int:
    """Write every page into `out`, all of it or nothing; returns how many.

    Raises:
        UsageError: `out` holds something else than a report.
    """
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: is not a report, so it is left alone; name another folder with --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        (fresh / MARK).write_text("Written by taskfactory report, which replaces this folder.\n")
        fresh.chmod(0o755)
        count = 0
        for path in site.paths():
            (fresh / path).parent.mkdir(exist_ok=True)
            (fresh / path).write_text(site.render(path), encoding="utf-8")
            count += 1
        if out.exists():
            shutil.rmtree(out)
        fresh.rename(out)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return count
