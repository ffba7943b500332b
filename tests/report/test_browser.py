"""The report in Chromium: no console error, sorting, filtering, theme, keyboard, live updates, and axe's rules.

Needs a Chromium, and playwright and axe from PyPI (extra `browser`). Long: `full`. `.ci/run pages` runs them; there a
skip is a failure.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from report.test_listing import crowded
from store.invented import PAIR_SUM, ROW_SCALE, fill, invented_result, new_result, sqlite_store
from taskfactory.fleet.plan import read_task
from taskfactory.grader.result import Status
from taskfactory.report.serve import Server
from taskfactory.report.site import Options, Site, write_site

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_MISSING = not CHROMIUM or not find_spec("playwright") or not find_spec("axe_playwright_python")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(_MISSING, reason="needs chromium, playwright, axe-playwright-python"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of INVENTED results."""
    folder = tmp_path_factory.mktemp("report")
    store = sqlite_store(folder / "r.db")
    entries = [
        (f"Model {chr(65 + w)}", str(k), invented_result(task, 0.9 - 0.1 * w - 0.01 * k, noise=0.04, seed=k))
        for w in range(5)
        for k in range(3)
        for task in (ROW_SCALE, PAIR_SUM)
    ]
    entries.append(("Model A", "9", invented_result(ROW_SCALE, None, status=Status.INCORRECT)))
    entries.append(("Model B", "9", invented_result(ROW_SCALE, None, status=Status.INFRASTRUCTURE_ERROR, message="x")))
    fill(store, entries, conditions={"slowed_by": ["heat"]})
    fill(store, [("Model C", "1", invented_result(ROW_SCALE, None, device="x86_64"))], run_id="r2")
    calibrated = read_task("based-forward")  # a real task, for the picture of its calibration
    fill(store, [("Model A", "1", invented_result(calibrated, 0.7))], tasks=(calibrated,), run_id="r3")
    write_site(Site(store, Options(merge=frozenset({"device"}))), folder / "merged")
    write_site(Site(store, Options()), folder / "site")
    write_site(Site(store, Options(private=True)), folder / "private")
    store.close()
    long = crowded(folder / "long", 5000)
    long.store.close()
    (folder / "site" / "gradings").mkdir()
    for path in ("task/row-scale.html", "gradings/task-row-scale-2.html"):
        target = folder / "site" / path.replace("row-scale", "crowded")
        target.write_text(long.render(path).replace("task-row-scale", "task-crowded"), "utf-8")
    return folder / "site"


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test if anything is said on the console."""
    context = browser.new_context()
    fresh = context.new_page()
    said: list[str] = []
    fresh.on("console", lambda message: said.append(message.text))
    fresh.on("pageerror", lambda error: said.append(str(error)))
    yield fresh
    context.close()
    assert said == []


def column(page: Any, table: str, number: int) -> list[str]:
    cells = page.locator(f"{table} tbody tr:visible td:nth-child({number})").all_inner_texts()
    return [text.strip() for text in cells]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_on_any_kind_of_page(browser: Any, out: Path, scheme: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    kinds = [
        "index",
        "runs",
        "about",
        "task/row-scale",
        "task/row-scale-readme",
        "task/based-forward",
        "result/1",
        "result/31",
        "result/32",
        "gradings/task-crowded-2",
    ]
    wrong: list[tuple[str, str, list[str]]] = []
    paths = [out / f"{kind}.html" for kind in kinds] + [next((out / "who").glob("*.html"))]
    paths += [out.parent / "private" / "result" / "1.html", out.parent / "private" / "task" / "based-forward.html"]
    for path in [*paths, out.parent / "merged" / "task" / "row-scale.html"]:
        page.goto(path.as_uri())
        for rule in Axe().run(page).response["violations"]:
            wrong.append((path.name, rule["id"], [node["html"][:90] for node in rule["nodes"]][:3]))
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide:
            wrong.append((path.name, f"scrolls sideways by {wide} px", []))
    context.close()
    assert wrong == []


def test_sorting_and_filtering(page: Any, out: Path) -> None:
    page.goto((out / "task" / "row-scale.html").as_uri())
    board = "#board-1"
    assert column(page, board, 2) == [f"Model {c}" for c in "ABCDE"]
    submitter = page.locator(f"{board} th", has_text="Submitter")
    submitter.get_by_role("button").click()
    submitter.get_by_role("button").click()
    assert column(page, board, 2) == [f"Model {c}" for c in "EDCBA"]
    assert submitter.get_attribute("aria-sort") == "descending"
    page.locator(f"{board} th", has_text="Of limit").get_by_role("button").press("Enter")
    assert column(page, board, 2) == [f"Model {c}" for c in "ABCDE"]
    page.get_by_label("Verdict of All gradings of this task").select_option("incorrect")
    assert column(page, "#all", 1) == ["Model A"]
    page.get_by_label("Verdict of All gradings of this task").select_option("")
    page.get_by_label("Filter All gradings of this task").fill("X86_64  model")
    assert column(page, "#all", 1) == ["Model C"]
    assert page.locator(".count", has_text="1 of 18 shown").is_visible()


def test_five_thousand_gradings_of_a_task_are_sorted_and_filtered(page: Any, out: Path) -> None:
    page.goto((out / "task" / "crowded.html").as_uri())
    assert page.locator("#all tbody tr").count() == 500
    assert page.evaluate("document.querySelectorAll('*').length") < 20_000
    head = page.locator("#all th", has_text="Sample")
    head.get_by_role("button").click()
    assert column(page, "#all", 2)[:2] == ["sample 4501", "sample 4502"]
    page.get_by_role("link", name="all 5000 gradings").click(no_wait_after=True, trial=True)
    page.goto((out / "gradings" / "task-crowded-2.html").as_uri())
    assert page.locator("#all tbody tr").count() == 1000
    page.get_by_label("Filter Page 2 of all gradings").fill("m123")
    assert column(page, "#all", 1) == ["m123"] * 2


def test_the_theme_is_remembered(page: Any, out: Path) -> None:
    page.emulate_media(color_scheme="light")
    page.goto((out / "index.html").as_uri())
    color = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(color)
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(color) != light
    dark = page.evaluate(color)
    page.reload()
    assert page.evaluate(color) == dark


def test_everything_is_reached_by_keyboard(page: Any, out: Path) -> None:
    page.goto((out / "index.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_without_script_the_tables_are_there(browser: Any, out: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((out / "task" / "row-scale.html").as_uri())
    assert page.locator("#board-1 tbody tr").count() == 5
    assert page.locator(".filters:visible").count() == 0
    context.close()


def test_a_served_page_follows_the_run_and_keeps_what_was_sorted(page: Any, tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "r.db")
    fill(store, [(f"m{k}", "1", invented_result(ROW_SCALE, 0.1 * (k + 1))) for k in range(5)])
    with Server(("127.0.0.1", 0), Site(store, Options(live=True))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/task/row-scale.html")
        page.locator("#board-1 th", has_text="Submitter").get_by_role("button").click()
        page.wait_for_timeout(1500)  # until the stream of events is open, which nothing on the page shows
        job = store.jobs("r1")[0]
        store.add_result(new_result(job.id, invented_result(ROW_SCALE, 0.99), attempt=2))
        page.locator("#all tbody tr:nth-child(6)").wait_for()
        assert column(page, "#board-1", 2) == [f"m{k}" for k in range(5)]
        page.goto("about:blank")
        server.shutdown()
        thread.join()
    store.close()
