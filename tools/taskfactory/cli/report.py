"""`taskfactory report`: a store as a static site."""

from __future__ import annotations

from pathlib import Path

import click

from taskfactory.cli.drive import STORE

PAGES = (
    click.option("--title", default="Kernel leaderboard", show_default=True, help="Heading of the pages."),
    click.option("--private", is_flag=True, help="Show graded shapes, seeds, coordinates and tracebacks too."),
    click.option("--no-source", is_flag=True, help="Leave the submissions' source out."),
    click.option("--merge", multiple=True, type=click.Choice(["device", "ceilings", "spec"]),
                 help="Rank results together that differ in this; the page says so. Repeatable."),
)  # fmt: skip


@click.command("report", epilog="Example: taskfactory report --store taskfactory.db --out report")
@STORE
@click.option("--out", default="report", show_default=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder to write, replaced if it is a report.")  # fmt: skip
@PAGES[0]
@PAGES[1]
@PAGES[2]
@PAGES[3]
def command(store_url: str, out: Path, title: str, private: bool, no_source: bool, merge: tuple[str, ...]) -> None:
    """Write leaderboards and a page for each grading, task and submitter; they need no server and no network.

    Results of different devices, ceilings or spec versions are ranked apart. Prints the path of the first page.
    """
    from taskfactory.report.site import Options, Site, write_site
    from taskfactory.store.store import open_store

    store = open_store(store_url)
    site = Site(store, Options(title, private, not no_source, frozenset(merge)))
    count = write_site(site, out)
    store.close()
    click.echo(f"{count} files", err=True)
    click.echo(str(out / "index.html"))
