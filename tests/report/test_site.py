"""Pages: their numbers are the store's, they hide what is hidden, and nothing that strangers wrote becomes markup."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from store.invented import PAIR_SUM, ROW_SCALE, fill, invented_result, new_result, sqlite_store
from taskfactory.cli import main
from taskfactory.errors import UsageError
from taskfactory.grader.result import Status
from taskfactory.report import words
from taskfactory.report.serve import Server
from taskfactory.report.site import MARK, Options, Site, write_site
from taskfactory.report.svg import strip
from taskfactory.store.store import Store

HOSTILE = '<script>alert(1)</script>"><img src=x>'


@pytest.fixture
def store(tmp_path: Path):
    opened = sqlite_store(tmp_path / "r.db")
    fill(
        opened,
        [
            ("ann", "1", invented_result(ROW_SCALE, 0.8)),
            ("ann", "1", invented_result(PAIR_SUM, 0.4)),
            ("bob", "1", invented_result(ROW_SCALE, 0.6)),
            ("bob", "2", invented_result(ROW_SCALE, None, status=Status.INCORRECT)),
            (HOSTILE, "1", invented_result(ROW_SCALE, None, status=Status.INFRASTRUCTURE_ERROR, message=HOSTILE)),
        ],
    )
    yield opened
    opened.close()


class Links(HTMLParser):
    """Collects where a page points, and the names of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.elements: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.targets += [value for name, value in attrs if name in ("href", "src") and value]


def test_the_pages_numbers_are_the_stores(store: Store) -> None:
    site = Site(store, Options())
    page = site.render("task/row-scale.html")
    for result in store.results():
        if result.task == "row-scale" and result.score is not None:
            assert f'data-value="{result.score}"' in page
            own = site.render(f"result/{result.id}.html")
            assert words.figure(result.score) in own
            assert words.figure(result.score_low) in own
            assert words.figure(result.score_high) in own
    index = site.render("index.html")
    assert re.search(r"<b>4</b> gradings", index)
    assert re.search(r"<b>3</b> passed", index)
    assert f'data-value="{(0.8 + 0.4) / 2}"'[:20] in index


def test_every_link_leads_to_a_page_and_nothing_leads_outside(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    count = write_site(Site(store, Options()), out)
    pages = sorted(out.rglob("*.html"))
    assert count == len(pages) + 2
    for page in pages:
        for target in Links(page.read_text()).targets:
            if target != "data:," and not target.startswith("#"):
                assert (page.parent / target.split("#")[0]).resolve().is_file(), (page, target)


def test_graded_shapes_are_only_in_the_private_view(store: Store) -> None:
    public, private = Site(store, Options()), Site(store, Options(private=True))
    failed = next(e for e in public.entries if e.status is Status.INCORRECT)
    assert not any("77777" in public.render(path) for path in public.paths())
    assert "77777" in private.render(failed.page)
    assert "out[0, 7]: 1, expected 2" in private.render(failed.page)
    assert "expected 2" not in public.render(failed.page)
    assert "12345" not in public.render(failed.page)
    passed = next(e for e in public.entries if e.timed)
    for name in ("index.html", "task/row-scale.html", passed.page):
        assert not re.search(r"\bms\b", public.render(name)), "times of hidden shapes tell the shapes"
    assert "limit 0.6 ms" in private.render(passed.page)
    assert "Limit, ms" in private.render("task/row-scale.html")
    assert failed.status.meaning in public.render(failed.page)


NOISY = "graded shape 5: the clock is too noisy here (delta 0.08 ms against a limit of 0.237 ms); is it busy? 3.5 ms"


def test_a_message_that_tells_a_limit_is_private(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "r.db")
    broken = invented_result(ROW_SCALE, None, status=Status.INFRASTRUCTURE_ERROR, message=NOISY)
    fill(store, [("ann", "1", broken)])
    public, private = (Site(store, Options(private=private)).render("result/1.html") for private in (False, True))
    assert "graded shape 5: the clock is too noisy here; is it busy? …" in public
    assert NOISY in private
    store.close()


def test_a_record_of_another_grader_is_not_shown_in_part(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "r.db")
    fill(store, [("ann", "1", invented_result(ROW_SCALE, 0.5))])
    text = store.result(1).record.replace('"score_ms"', '"a_field_of_another_version"')
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER IF EXISTS result_no_update")
        connection.exec_driver_sql("UPDATE result SET record = ?", (text,))
    page = Site(store, Options()).render("result/1.html")
    assert "another version of the grader" in page
    assert "77777" not in page
    store.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no GPU 3 here (exit status 1)", "no GPU 3 here (exit status 1)"),
        ("took 1.5e-3 s, not 20us (see (2 ms))", "took …, not … (see)"),
        ("5 shapes, 12 samples", "5 shapes, 12 samples"),
    ],
)
def test_times_are_taken_out(text: str, shown: str) -> None:
    assert words.without_times(text) == shown


def failure(**fields: object) -> dict[str, object]:
    return {"failure": {"kind": "correct", "ordinal": 1, "case": "", "message": "", **fields}}


@pytest.mark.parametrize(
    ("record", "place", "said"),
    [
        ({}, "", ""),
        ({"message": "no such file"}, "", "no such file"),
        ({"message": "It failed."}, "", ""),
        (failure(message="correct shape 1: it failed"), "correct shape 1", ""),
        (failure(message="correct shape 1, case ties: E 3", case="ties"), "correct shape 1, case ties", "E 3"),
        (failure(message="ValueError: x"), "correct shape 1", "ValueError: x"),
        (failure(kind="", message="the process ended"), "", "the process ended"),
    ],
)
def test_a_reason_is_said_once(record: dict[str, object], place: str, said: str) -> None:
    assert words.reason(record, "It failed.") == (place, said)


def test_a_machine_without_a_gpu_is_called_a_cpu() -> None:
    assert [words.device(name) for name in ("x86_64", "NVIDIA H200")] == ["CPU (x86_64)", "NVIDIA H200"]


def test_strangers_text_stays_text(store: Store) -> None:
    site = Site(store, Options(private=True))
    for path in site.paths():
        if path.endswith(".html"):
            elements = Links(site.render(path)).elements
            assert "img" not in elements
            assert elements.count("script") == 1  # our own


def test_markdown_gives_no_markup_and_no_foreign_links() -> None:
    html = words.markdown(
        "<b>x</b>\n\n[a](javascript:alert(1)) [b](other.md) [c](https://example.org)\n\n|a|\n|-|\n|1|\n"
    )
    assert "<b>" not in html
    assert "javascript:alert" not in re.sub(r"<[^a][^>]*>", "", html).replace("[a](javascript:alert(1))", "")
    assert 'href="other.md"' not in html
    assert 'href="https://example.org"' in html
    assert "<table>" in html


def test_names_that_differ_have_pages_that_differ() -> None:
    names = ["Ann", "ann", "ann!", "Änn", "../../etc/passwd", "", "a" * 300, "a" * 301]
    slugs = [words.slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", slug) and len(slug) < 60 for slug in slugs)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.123456, "0.1235"),
        (3.6, "3.600"),
        (912.34, "912.3"),
        (4180.2, "4\u202f180"),
        (2e9, "2e+09"),
    ],
)
def test_figures(value: float | None, text: str) -> None:
    assert words.figure(value) == text


def test_a_strip_survives_odd_times() -> None:
    for times in ([1.0], [1.0, 1.0], [0.001, 900.0]):
        assert "nan" not in strip("s", times, [1.0, 1.0], 1.0, 0.5)


def test_a_report_replaces_only_a_report(store: Store, tmp_path: Path) -> None:
    site = Site(store, Options())
    out = tmp_path / "out"
    write_site(site, out)
    (out / "result" / "999.html").write_text("stale")
    write_site(site, out)
    assert not (out / "result" / "999.html").exists()
    (out / MARK).unlink()
    with pytest.raises(UsageError, match="left alone"):
        write_site(site, out)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".out")) == []


def test_an_empty_store_has_a_page(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "empty.db")
    site = Site(store, Options())
    assert "store is empty" in site.render("index.html")
    store.close()


def test_the_command_writes_and_prints_the_path(store: Store, tmp_path: Path) -> None:
    arguments = ["report", "--store", str(store.sqlite_path), "--out", str(tmp_path / "site"), "--merge", "device"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "site" / "index.html")
    assert CliRunner().invoke(main, ["report", "--store", str(tmp_path / "no.db")]).exit_code == 2


def test_the_server_follows_the_store(store: Store) -> None:
    with Server(("127.0.0.1", 0), Site(store, Options(live=True))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{address}/") as answer:
            assert "script" not in answer.headers["Content-Security-Policy"].replace("default-src 'self'", "")
            assert "<b>4</b> gradings" in answer.read().decode()
        with urllib.request.urlopen(f"{address}/events", timeout=20) as events:
            first = events.readline()
            assert first.startswith(b"data: ")
            job = store.jobs("r1")[4]
            store.add_result(new_result(job.id, invented_result(), attempt=2))
            seen = (line for line in events if line.startswith(b"data: "))
            assert next(seen) != first
        with urllib.request.urlopen(f"{address}/index.html") as answer:
            assert "<b>5</b> gradings" in answer.read().decode()
        for path in ("nothing.html", "result/99.html", "task/../style.css", "r.db", "%2e%2e/r.db"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"{address}/{path}")
            assert caught.value.code == 404
            caught.value.close()
        server.shutdown()
        thread.join()
