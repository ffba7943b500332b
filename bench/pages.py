"""The report of real gradings, and pictures of its pages: what README and docs show.

    python bench/pages.py --out FOLDER                 needs the extras fleet and browser, and a Chromium
    python bench/pages.py --out FOLDER --long 5000     how a page copes with as many gradings of one task

Into a store go the records of our solutions that were graded on a GPU (`--results`), with tasks and sources as they
were then, out of the history of this repository, and gradings done now, on the CPU, of submissions that fail: the
untouched starter, and three that cheat. Then FOLDER holds the store, the report in both forms, and a picture of every
kind of page, light, dark and narrow. With `--docs` those that the documentation shows are renewed, in few colours so
that they stay small.

With `--long` one of the records stands in for all: its copies are made in memory, and sizes and seconds are printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from taskfactory.altered import altered
from taskfactory.errors import TaskfactoryError
from taskfactory.fleet.plan import new_run, read_task
from taskfactory.load import load_spec
from taskfactory.report.site import Options, Site, write_site
from taskfactory.store.records import NewJob, NewResult, StoredTask, sha256
from taskfactory.store.store import Store, open_store

ROOT = Path(__file__).resolve().parents[1]
FAILING = "cache-hit-skip-gate"
"""The task whose failing submissions are graded: the quickest in the interpreter."""
RENAMED = {"c_after_ms": "c_next_ms"}
"""Fields of records whose name has changed since, with the same meaning; see bench/results/h200/README.md."""
WIDTHS = {"wide": 1280, "narrow": 390}
IN_DOCS = {
    "leaderboard": ("public", "index-light-wide", (0, 1000)),
    "task": ("public", "task-mixed-light-wide", (0, 1585)),
    "submission": ("private", "result-passed-dark-wide", (0, 1112)),
}
"""Pictures in docs/images: which form of the report, which picture of it, and which rows of pixels at most."""
COLOURS = 256


def versions(path: str) -> Iterator[bytes]:
    """A file of this repository as it is, and then as it was, the newest first."""
    yield (ROOT / path).read_bytes()
    git = ["git", "-C", str(ROOT)]
    log = subprocess.run([*git, "log", "--format=%H", "--", path], capture_output=True, text=True, check=False)
    for commit in log.stdout.split():
        yield subprocess.run([*git, "show", f"{commit}:{path}"], capture_output=True, check=False).stdout


def task_of(record: dict[str, Any]) -> StoredTask | None:
    """The task as it was graded."""
    name = f"{record['task'].replace('-', '_')}.py"
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, name)
        for text in versions(f"specs/{name}"):
            spec.write_bytes(text)
            with suppress(TaskfactoryError):  # a version that today's checks refuse
                if load_spec(spec).digest == record["spec_digest"]:
                    return read_task(str(spec))
    return None


def source_of(record: dict[str, Any], module: str) -> bytes | None:
    """The solution that was graded."""
    wanted = record["submission_sha256"].removeprefix("sha256:")
    return next((text for text in versions(f"solutions/{module}") if sha256(text) == wanted), None)


def add_graded(store: Store, folder: Path) -> int:
    """Keep the committed records of a folder; returns how many."""
    records: list[tuple[StoredTask, bytes, dict[str, Any]]] = []
    for path in sorted(folder.glob("*-*.json")):
        record = json.loads(path.read_text("utf-8"))
        if not path.stem.startswith(("graded-", "refused-")):
            continue
        task = task_of(record)
        source = task and source_of(record, json.loads(task.files["task.json"])["module"])
        if task is None or source is None:
            print(f"{path}: of a task or a solution that is not in the history; left out", file=sys.stderr)
            continue
        for shape in record["shapes"]:
            for old, new in RENAMED.items():
                if old in shape:
                    shape[new] = shape.pop(old)
        records.append((task, source, record))
    records.sort(key=lambda each: str(each[2]["started_at"]))
    store.add_tasks(task for task, _, _ in records)
    store.add_sources(source for _, source, _ in records)
    run = new_run("run", {"records": str(folder)})
    store.add_run(run, [NewJob(task.content_sha256, sha256(source), "ours", "1") for task, source, _ in records])
    for job, (_, _, record) in zip(store.jobs(run.id), records, strict=True):
        text = json.dumps(record)
        store.add_result(NewResult(job.id, 1, text, "", folder.parent.name, "", "not recorded", {}))
    return len(records)


def add_failing(store_path: Path, folder: Path) -> None:
    """Grade, on the CPU, submissions that fail."""
    task = read_task(FAILING)
    facts = json.loads(task.files["task.json"])
    oracle = (ROOT / "solutions" / facts["module"]).read_text("utf-8")
    folder.mkdir()
    found = altered(oracle, facts["func"])
    del found["slow"]
    found["starter"] = (ROOT / "build" / FAILING / "environment" / "app" / facts["module"]).read_text("utf-8")
    rows = []
    for name, text in found.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
        rows.append({"task": FAILING, "submission": f"{name}.py", "who": name})
    manifest = folder / "failing.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    command = [sys.executable, "-m", "taskfactory", "run", manifest, "--store", store_path, "--device", "cpu"]
    subprocess.run([*map(str, command), "--allow-unconfined"], check=True)


def kinds(site: Site) -> dict[str, str]:
    """A path for each kind of page."""
    # The solution with the most to see in its distributions, where its record still counts.
    passed = max((entry for entry in site.entries if entry.timed), key=lambda entry: "based" in entry.task)
    failed = next(entry for entry in site.entries if entry.judged and not entry.passed)
    broken = next((entry for entry in site.entries if not entry.judged), failed)
    who = next(path for path in site.paths() if path.startswith("who/ours"))
    task = f"task/{passed.task}"
    return {
        "index": "index.html", "task": f"{task}.html", "readme": f"{task}-readme.html", "result-passed": passed.page,
        "result-failed": failed.page, "result-broken": broken.page, "who": who, "runs": "runs.html",
        "about": "about.html", "task-mixed": f"task/{FAILING}.html",
    }  # fmt: skip


def chromium(playwright: Any) -> Any:
    """The system's Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    return playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])


def measure_long(site: Site, count: int, out: Path) -> None:
    """Print what a task of `count` gradings costs: bytes and seconds of its own page and of one of the further ones."""
    from playwright.sync_api import sync_playwright

    one = next(entry for entry in site.entries if entry.timed)
    site.entries = [
        replace(one, id=k, submitter=f"copy {k % max(1, count // 20)}", sample=str(k)) for k in range(1, count + 1)
    ]
    for name in ("style.css", "script.js"):
        (out / name).write_text(site.render(name), "utf-8")
    with sync_playwright() as playwright:
        browser = chromium(playwright)
        page = browser.new_page()
        for path in (f"task/{one.task}.html", *[p for p in site.paths() if p.startswith("gradings/task")][:1]):
            started = time.monotonic()
            text = site.render(path)
            seconds = {"rendered": time.monotonic() - started}
            (out / path).parent.mkdir(exist_ok=True)
            (out / path).write_text(text, "utf-8")
            page.goto("about:blank")
            for step, action in (
                ("loaded", lambda path=path: page.goto((out / path).resolve().as_uri())),
                ("sorted", lambda: page.locator("#all th", has_text="Score").get_by_role("button").click()),
                (
                    "filtered",
                    lambda: page.locator("#all").locator("xpath=../preceding-sibling::div[1]//input").fill("7"),
                ),
            ):
                started = time.monotonic()
                action()
                page.evaluate("document.body.offsetHeight")  # until it is laid out
                seconds[step] = time.monotonic() - started
            rows = page.evaluate("document.querySelectorAll('#all tbody tr').length")
            said = ", ".join(f"{step} in {value:.2f} s" for step, value in seconds.items())
            print(f"{path}: {rows} rows, {len(text.encode()) // 1024} KiB, {said}")
        browser.close()


def shoot(report: Path, pages: dict[str, str], out: Path) -> None:
    """A picture of every page, whole, in both themes and two widths."""
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = chromium(playwright)
        for scheme in ("light", "dark"):
            for name, width in WIDTHS.items():
                size = {"width": width, "height": 800}
                page = browser.new_context(color_scheme=scheme, viewport=size, reduced_motion="reduce").new_page()
                for kind, path in pages.items():
                    page.goto((report / path).resolve().as_uri())
                    page.screenshot(path=out / f"{kind}-{scheme}-{name}.png", full_page=True)
        browser.close()


def for_docs(pictures: Path, name: str, rows: tuple[int, int], out: Path) -> None:
    """Cut a picture and keep few colours, so that it stays small."""
    from PIL import Image

    out.parent.mkdir(exist_ok=True)
    with Image.open(pictures / f"{name}.png") as picture:
        cut = picture.convert("RGB").crop((0, rows[0], picture.width, min(rows[1], picture.height)))
        method = Image.Quantize.MAXCOVERAGE  # the default gives its colours to what covers much, and green turns grey
        cut.quantize(COLOURS, method, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size // 1024} KiB", file=sys.stderr)


def main() -> int:
    """Store, report, pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results" / "h200" / "2026-12-01")
    parser.add_argument("--docs", action="store_true", help="renew the pictures in docs/images")
    parser.add_argument("--long", type=int, metavar="COUNT", help="measure a task of so many gradings instead")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True)
    store = open_store(str(out / "pages.db"), create=True)
    graded = add_graded(store, arguments.results)
    print(f"{graded} records of {arguments.results}", file=sys.stderr)
    if graded == 0:
        return 2
    if arguments.long:
        measure_long(Site(store, Options("Copies of one grading")), arguments.long, out)
        store.close()
        return 0
    add_failing(out / "pages.db", out / "failing")
    for name, private in (("public", False), ("private", True)):
        site = Site(store, Options("Our solutions", private))
        write_site(site, out / name)
        shoot(out / name, kinds(site), out / f"{name}-pictures")
    store.close()
    if arguments.docs:
        for name, (form, picture, rows) in IN_DOCS.items():
            for_docs(out / f"{form}-pictures", picture, rows, ROOT / "docs" / "images" / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
