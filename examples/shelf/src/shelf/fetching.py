"""Fetch addresses, and find the pictures on a page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx

from nonet import ExponentialBackoff, StopRetrying

_MOST_BYTES = 5_000_000
_SECONDS = 10


class Web:
    """A client that gives up on what is too long.

    It fetches whatever users ask for. A real service must not let them reach its own network.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, address: str) -> bytes:
        """Return the content of an address.

        Raises:
            httpx.HTTPError: it cannot be fetched.
            StopRetrying: it is too long.
        """
        content = bytearray()
        async with self._client.stream("GET", address) as answer:
            answer.raise_for_status()
            async for part in answer.aiter_bytes():
                content += part
                if len(content) > _MOST_BYTES:
                    raise StopRetrying(f"{address} has more than {_MOST_BYTES} bytes")
        return bytes(content)


async def web() -> AsyncIterator[Web]:
    """Provide the client: with ``scope="process"`` one for the process."""
    async with httpx.AsyncClient(timeout=_SECONDS, follow_redirects=True) as client:
        yield Web(client)


class WhileUnavailable(ExponentialBackoff):
    """Retry while a host does not answer or is overloaded; 404 and the like are final."""

    def schedule_retry(self, attempt: int, exception: BaseException) -> datetime | None:
        """Ask the base class, unless the host has said no."""
        if isinstance(exception, httpx.HTTPStatusError):
            is_passing = exception.response.status_code in (429, 500, 502, 503, 504)
        else:
            is_passing = isinstance(exception, httpx.TransportError)
        return super().schedule_retry(attempt, exception) if is_passing else None


def host_of(address: str) -> str:
    """Return the host of an address.

    >>> host_of("https://Example.org:8000/a.png")
    'example.org'
    """
    return urlsplit(address).hostname or ""


def pictures_on(page: bytes, address: str) -> list[str]:
    """Return the addresses of the PNGs on a page, each once.

    >>> pictures_on(b'<img src="/a.png"> <img src="b.gif"> <img src="/a.png">', "http://host/x")
    ['http://host/a.png']
    """
    parser = _Images()
    parser.feed(page.decode(errors="replace"))
    found = [urljoin(address, source) for source in parser.sources]
    return list(dict.fromkeys(item for item in found if urlsplit(item).path.endswith(".png")))


class _Images(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        source = dict(attrs).get("src")
        if tag == "img" and source:
            self.sources.append(source)
