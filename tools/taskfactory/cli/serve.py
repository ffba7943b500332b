"""`taskfactory serve`: the report, live."""

from __future__ import annotations

import click

from taskfactory.cli.drive import STORE
from taskfactory.cli.report import PAGES


@click.command("serve", epilog="Example: taskfactory serve --port 8000")
@STORE
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@PAGES[0]
@PAGES[1]
@PAGES[2]
@PAGES[3]
def command(
    store_url: str, host: str, port: int, title: str, private: bool, no_source: bool, merge: tuple[str, ...]
) -> None:
    """Serve the report of a store; open pages follow a run as it goes on. Ctrl-C ends it."""
    from taskfactory.report.serve import Server
    from taskfactory.report.site import Options, Site
    from taskfactory.store.store import open_store

    store = open_store(store_url)
    site = Site(store, Options(title, private, not no_source, frozenset(merge), live=True))
    with Server((host, port), site) as server:
        click.echo(f"http://{host}:{server.server_address[1]}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("", err=True)
    store.close()
