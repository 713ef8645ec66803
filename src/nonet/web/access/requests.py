"""What a request says of itself: its path, its origin, its host, and where it comes from."""

from __future__ import annotations

from contextvars import ContextVar
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import Scope

from nonet.config.web_settings import WebSettings

Networks = tuple[IPv4Network | IPv6Network, ...]

address: ContextVar[str] = ContextVar("address", default="")
"""Where the request comes from that this context answers, for the audit."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def networks(addresses: tuple[str, ...]) -> Networks:
    """Return addresses and networks as networks; raises `ValueError`."""
    return tuple(ip_network(address, strict=False) for address in addresses)


def is_in(text: str, known: Networks) -> bool:
    """Return whether an address is in one of some networks."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:  # a socket of the machine, or a test without a network
        return False
    found = getattr(found, "ipv4_mapped", None) or found
    return any(found in network for network in known)


def peer_of(request: Request) -> str:
    """Return the address of the other end of the connection."""
    return request.client.host if request.client else ""


def address_of(request: Request, proxies: Networks) -> str:
    """Return where a request comes from: the nearest address that is not a known proxy's."""
    found = peer_of(request)
    hops = ",".join(request.headers.getlist("X-Forwarded-For")).split(",")
    for hop in reversed([hop.strip() for hop in hops if hop.strip()]):
        if not is_in(found, proxies):
            break
        found = hop
    return found[:64]


def household_of(address: str) -> str:
    """Return what is counted as one caller: an IPv4 address, or a network that one IPv6 caller has.

    >>> household_of("192.0.2.1"), household_of("2001:db8:0:7::1"), household_of("?")
    ('192.0.2.1', '2001:db8:0:7::/64', '?')
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    found = getattr(found, "ipv4_mapped", None) or found
    return str(found if found.version == 4 else ip_network(f"{found}/64", strict=False))


def base_of(scope: Scope) -> str:
    """Return the path below which all pages are; empty for the root."""
    return str(scope.get("root_path", "")).rstrip("/")


def path_in(scope: Scope) -> str:
    """Return the path of a request below `base_of`."""
    path, base = str(scope["path"]), base_of(scope)
    return (path[len(base) :] or "/") if path == base or path.startswith(f"{base}/") else path


def is_known_host(request: Request, settings: WebSettings) -> bool:
    """Return whether a request names this server as we know it.

    A page of another site that makes its name resolve to our address (DNS rebinding) shares an
    origin with us for the browser, but sends its own name.
    """
    if "*" in settings.hosts:
        return True
    try:
        host = (urlsplit(f"//{request.headers.get('host', '')}").hostname or "").rstrip(".")
    except ValueError:
        return False
    url = urlsplit(settings.url).hostname or ""
    names = {*_LOOPBACK, url, settings.host, *(name.lower() for name in settings.hosts)}
    return bool(host) and host in names


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL; empty if it has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}".lower() if parts.netloc else ""


def own_origins(request: Request, settings: WebSettings) -> set[str]:
    """Return the origins that our pages have in the browser that sends a request."""
    here = f"{request.scope['scheme']}://{request.headers.get('host', '')}".lower()
    return {here, origin_of(settings.url)} - {""}


def sender_of(request: Request) -> str:
    """Return the origin of the page that sends a request; empty: the browser does not say."""
    origin = request.headers.get("Origin", "")
    return origin.lower() if origin else origin_of(request.headers.get("Referer", ""))


def is_secure(request: Request, settings: WebSettings) -> bool:
    """Return whether the browser sends a request over TLS, perhaps to a proxy before us."""
    url = urlsplit(settings.url)
    is_its = request.headers.get("host", "").lower() == url.netloc.lower()
    return request.scope["scheme"] == "https" or (url.scheme == "https" and is_its)


def own_path(text: str, base: str) -> str:
    """Return where to go after a login: `text` if it is a path of ours, else our first page.

    >>> own_path("/jobs/tasks?state=dead", "/jobs"), own_path("//evil.example", "")
    ('/jobs/tasks?state=dead', '/')
    """
    # A browser takes two slashes for the beginning of a host, and drops tabs and ends of lines.
    is_host = text.startswith("//") or "\\" in text or not text.isprintable()
    return text if text.startswith(f"{base}/") and not is_host else f"{base}/"
