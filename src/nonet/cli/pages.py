"""Links from commands to the pages of the dashboard."""

from __future__ import annotations

from typing import Any

from nonet.base.errors import ConfigurationError
from nonet.base.plain import plain
from nonet.cli.process import warn
from nonet.config.web_url import web_url


def page_at(path: str) -> str:
    """Return the address of a page below ``NONET_WEB_URL``; empty if that is not set."""

    try:
        url = web_url()
    except ConfigurationError as error:  # a link is no reason to refuse the answer
        warn(str(error))
        return ""
    return url + path if url else ""


def with_page(found: Any, page: str) -> dict[str, Any]:
    """Return an answer for JSON, with the address of its page if there is one."""
    return {**plain(found), **({"page": page} if page else {})}
