"""Links by which a browser logs in without a password: an admin once, or viewers until an end."""

from __future__ import annotations

import logging
import secrets
import time
from ipaddress import ip_address

from nonet.base.errors import ConfigurationError
from nonet.config.web_settings import WebSettings
from nonet.daemon.service import Stop, reached
from nonet.stores.namespace.sessions import Link, Sessions

logger = logging.getLogger(__name__)

_LINK_SECONDS = 600.0


def ensure_protected(settings: WebSettings) -> None:
    """Raise `ConfigurationError` if no user can log in, or only a link protects an open port."""
    try:
        is_local = settings.host == "localhost" or ip_address(settings.host).is_loopback
    except ValueError:
        is_local = False
    ensure_login(settings)
    if not (is_local or is_configured(settings)):
        raise ConfigurationError(
            f"NONET_WEB_HOST: {settings.host} is not a loopback address, and no users are "
            "configured: set NONET_WEB_USERS (see 'task-run web password'), NONET_WEB_OIDC_ISSUER "
            "or NONET_WEB_PROXY_HEADER"
        )


def ensure_login(settings: WebSettings) -> None:
    """Raise `ConfigurationError` if no user can log in."""
    if not (settings.links or is_configured(settings)):
        raise ConfigurationError(
            "NONET_WEB_LINKS: without one-time links no user can log in: set NONET_WEB_USERS (see "
            "'task-run web password'), NONET_WEB_OIDC_ISSUER or NONET_WEB_PROXY_HEADER"
        )


def is_configured(settings: WebSettings) -> bool:
    """Return whether there is another way to log in than by a link."""
    return bool(settings.users or settings.oidc_issuer or settings.proxy_header)


async def announce(sessions: Sessions, settings: WebSettings, stop: Stop) -> None:
    """Log a link to log in by, if there is no other way; wait for Redis until a stop request."""
    if is_configured(settings):
        return

    async def offer() -> None:
        link = await new_link(sessions, settings.address, "task-web")
        logger.warning(
            "no users are configured. Log in once, within 10 min, by this link: %s", link
        )

    await reached(stop, offer)


async def new_link(sessions: Sessions, url: str, who: str, read_only: float = 0.0) -> str:
    """Return a link by which one browser logs in as an admin, once, within ten minutes.

    Args:
        url: of the first page.
        who: made the link, for the audit.
        read_only: instead let any number of browsers log in as viewers, for this many seconds;
            their sessions end with the link.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    code = secrets.token_urlsafe(32)
    until = time.time() + (read_only or _LINK_SECONDS)
    await sessions.offer(code, Link(who, until, is_read_only=bool(read_only)))
    return f"{url.rstrip('/')}/login?code={code}"
