"""Fixtures: a web site with pictures, and a store for each test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shelf.pictures import Picture, write
from shelf.store import Store


def png(side: int, value: int) -> bytes:
    """A grey picture."""
    return write(Picture(side, 0, [bytes([value]) * side] * side))


class Site:
    """A web site on this machine.

    Attributes:
        files: content by path.
        failures: how often a path answers 503 before it answers.
        asked: how often it was asked for anything.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.failures: dict[str, int] = {}
        self.asked = 0
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked += 1
                found = site.files.get(self.path)
                failures = site.failures.get(self.path, 0)
                site.failures[self.path] = failures - 1
                self.send_response(503 if failures > 0 else 200 if found is not None else 404)
                self.send_header("Content-Length", str(len(found or b"")))
                self.end_headers()
                self.wfile.write(found or b"")

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add_page(self, number: int) -> str:
        """Add a page with so many pictures, and return its address."""
        for one in range(number):
            self.files[f"/{one}.png"] = png(200, one)
        tags = "".join(f'<img src="/{one}.png">' for one in range(number))
        self.files["/page"] = tags.encode()
        return f"{self.url}/page"

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    """An empty site."""
    made = Site()
    yield made
    made.close()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store, for tasks and routes, too."""
    monkeypatch.setenv("SHELF_DIR", str(tmp_path))
    return Store(tmp_path)
