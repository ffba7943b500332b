"""Long lists: every grading is on exactly one page of its task's list, and a task's own page stays small."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from store.invented import ROW_SCALE, fill, invented_result, sqlite_store
from taskfactory.report.listing import PER_PAGE, SHOWN, Listing
from taskfactory.report.site import Options, Site

MANY = 5000


def crowded(folder: Path, count: int) -> Site:
    """A site whose store holds two results and which believes in `count`: by as many submitters as there are tens."""
    folder.mkdir(exist_ok=True)
    store = sqlite_store(folder / "r.db")
    fill(store, [("a", "1", invented_result(ROW_SCALE, 0.5)), ("b", "1", invented_result(ROW_SCALE, 0.6))])
    site = Site(store, Options())
    first = site.entries[0]
    site.entries = [replace(first, id=k, submitter=f"m{k % (count // 10)}", sample=str(k)) for k in range(1, count + 1)]
    return site


@pytest.mark.parametrize(
    ("count", "pages"),
    [(0, 0), (SHOWN, 0), (SHOWN + 1, 1), (PER_PAGE, 1), (PER_PAGE + 1, 2), (10 * PER_PAGE, 10)],
)
def test_pages_of_a_list(count: int, pages: int) -> None:
    listing = Listing("task", "t", range(count))  # type: ignore[arg-type]
    assert listing.pages == len(listing.paths()) == pages
    assert list(listing.shown) == list(range(min(count, SHOWN)))
    listed = [entry for number in range(1, pages + 1) for entry in listing.page(number)]
    assert listed == (list(range(count)) if pages else [])
    for number in (0, pages + 1):
        with pytest.raises(KeyError):
            listing.page(number)


def test_every_grading_is_on_one_page_and_no_page_is_large(tmp_path: Path) -> None:
    site = crowded(tmp_path, MANY)
    own = site.render("task/row-scale.html")
    assert len(own.encode()) < 600 * 1024
    assert own.count("../result/") == SHOWN + 2 + 1  # two in the ranking, one among the limits
    assert "gradings/task-row-scale-1.html" in own
    further = [path for path in site.paths() if path.startswith("gradings/task-")]
    assert len(further) == MANY // PER_PAGE
    numbers: list[int] = []
    for path in further:
        page = site.render(path)
        assert len(page.encode()) < 1024 * 1024
        assert all(f'href="../{other}"' in page for other in further)
        numbers += [int(number) for number in re.findall(r"\.\./result/(\d+)\.html", page)]
    assert numbers == list(range(MANY, 0, -1))
    for path in ("gradings/task-row-scale-0.html", "gradings/task-row-scale-6.html", "gradings/x.html"):
        with pytest.raises(KeyError):
            site.render(path)


def test_a_submitters_list_has_pages_too(tmp_path: Path) -> None:
    site = crowded(tmp_path, 20)
    site.entries = [replace(site.entries[0], id=k, submitter="busy", sample=str(k)) for k in range(1, SHOWN + 2)]
    assert "gradings/who-busy-1.html" in site.render("who/busy.html")
    assert f"{SHOWN + 1} of {SHOWN + 1}, newest first" in site.render("gradings/who-busy-1.html")


def test_a_short_list_has_none(tmp_path: Path) -> None:
    site = crowded(tmp_path, SHOWN)
    assert not [path for path in site.paths() if path.startswith("gradings/")]
    assert "All gradings</h2>" in site.render("task/row-scale.html")
