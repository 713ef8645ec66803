"""The address of the dashboard, for commands and daemons that only link to it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from nonet.config.environment import EnvironmentModel


class _WebUrl(EnvironmentModel, frozen=True, kw_only=True):
    """The field `WebSettings.url` alone: another wrong setting must not stop a command."""

    PREFIX: ClassVar[str] = "NONET_WEB_"
    TEXTS: ClassVar[dict[str, str]] = {"url": "an address such as https://nonet.example.org/jobs"}

    url: Annotated[str, Meta(pattern=r"^(https?://[^\s?#]+)?$")] = ""


def web_url() -> str:
    """Return ``NONET_WEB_URL`` without a slash at its end; empty if it is not set.

    Raises:
        ConfigurationError: it is no address.
    """
    return _WebUrl.load().url.rstrip("/")
