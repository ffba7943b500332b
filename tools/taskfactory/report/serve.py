"""Serving a report on this machine; pages are rendered when asked for and told when the store changes."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from taskfactory.report.site import Site

POLL_S = 1.0
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
# Nothing from elsewhere, no inline script: what a submission prints cannot run, even where escaping failed.
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'"


class Server(ThreadingHTTPServer):
    """The HTTP server; `site` is used by one request at a time."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], site: Site) -> None:
        super().__init__(address, Handler)
        self.site, self.lock, self.closing = site, threading.Lock(), threading.Event()

    def page(self, path: str) -> str:
        """A page, up to date. Raises KeyError where there is none."""
        with self.lock:
            self.site.refresh()
            return self.site.render(path)

    def server_close(self) -> None:
        self.closing.set()
        super().server_close()


class Handler(BaseHTTPRequestHandler):
    """GET of pages, and of `events`, a stream that says when the store changed."""

    server: Server

    def do_GET(self) -> None:  # the name that http.server asks for
        path = unquote(urlsplit(self.path).path).lstrip("/") or "index.html"
        if path == "events":
            self._events()
            return
        try:
            body = self.server.page(path).encode()
        except KeyError:
            self.send_error(404, "no such page")
            return
        self._head(f"{_TYPES[path.rsplit('.', 1)[1]]}; charset=utf-8", len(body))
        self.wfile.write(body)

    def _head(self, kind: str, length: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _events(self) -> None:
        self._head("text/event-stream", None)
        known = None
        try:
            while not self.server.closing.wait(0.0 if known is None else POLL_S):
                with self.server.lock:
                    version = self.server.site.store.version()
                # A comment keeps the connection alive and tells us when it is not.
                self.wfile.write(b": here\n\n" if version == known else b"data: %d-%d\n\n" % version)
                self.wfile.flush()
                known = version
        except OSError:
            return

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""
