"""Settings of ``task-web``: ``NONET_WEB_…`` variables of the environment or of ``.env``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from nonet.base.keys import NAMESPACE, NAMESPACE_TEXT
from nonet.config.environment import EnvironmentModel, Secret, read_secret
from nonet.rules.permissions import read_roles

_Seconds = Annotated[float, Meta(ge=60, le=1e7)]
SHORTEST_SECRET = 32


def _networks(value: Any) -> tuple[str, ...]:
    found = value.split(",") if isinstance(value, str) else value
    parts = tuple(part.strip() for part in found if part.strip())
    for part in parts:
        try:
            ip_network(part, strict=False)
        except ValueError:
            raise ValueError(f"{part!r} is not an address or a network") from None
    return parts


def _namespaces(value: Any) -> tuple[str, ...]:
    names = [name.strip() for name in (value.split(",") if isinstance(value, str) else value)]
    for name in filter(None, names):
        if not re.fullmatch(NAMESPACE, name):
            raise ValueError(f"{name!r:.100} must be {NAMESPACE_TEXT}")
    return tuple(filter(None, names))


def _roles(value: str) -> str:

    read_roles(value)
    return value


def _long_secret(value: Any) -> Secret:
    found = read_secret(value)
    if 0 < len(found.get_secret_value()) < SHORTEST_SECRET:
        raise ValueError(
            f"must have at least {SHORTEST_SECRET} characters: make one with "
            "'openssl rand -base64 32'"
        )
    return found


class WebSettings(EnvironmentModel, frozen=True, kw_only=True):
    """Settings of the dashboard and the API. Durations are in seconds.

    Each field ``x`` is read from the environment variable ``NONET_WEB_X``.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes any free port.
        url: the address of the pages for people, e.g. ``https://nonet.example.org/jobs``. Links
            in `explain`, alerts and webhooks start with it, and its path is the path of the pages
            behind a proxy; empty: ``http://HOST:PORT``.
        hosts: further host names that requests may use, besides the names in `url`, `host` and
            loopback; ``*``: any.
        namespaces: further namespaces, with pages and API below ``/in/NAME``; ``NONET_NAMESPACE``
            is at the root.
        users: YAML file of users and tokens; empty: none.
        links: accept one-time links, which log in an admin.
        secret: authenticates sessions and one-time links; 32 characters or more. Empty: the first
            start writes one to ``web-secret`` in the state directory. All ``task-web`` processes
            and ``task-run web link`` need the same one. ``NONET_WEB_SECRET_FILE`` names a file
            that holds it.
        oidc_issuer: URL of an OpenID Connect provider; empty: none.
        oidc_client: client id there.
        oidc_secret: client secret there; empty for a public client.
            ``NONET_WEB_OIDC_SECRET_FILE`` names a file that holds it.
        oidc_claim: claim of the ID token that names the role, or groups, of a user.
        oidc_roles: value of that claim to role, ``nonet-admins:admin,staff:viewer``.
        proxy_header: header in which a proxy names the user; empty: none.
        proxy_role_header: header in which it names the role.
        proxy_addresses: addresses or networks of the proxy; headers of others are ignored.
        session: how long a session lasts.
        session_idle: how long it lasts while its user does nothing.
        read_only: refuse all changes.
        audit_retention: how long audit entries are kept in SQL; 0: forever.

    Example:
        settings = WebSettings.load(port=9000)
        assert settings.host == "127.0.0.1"
    """

    PREFIX: ClassVar[str] = "NONET_WEB_"
    FROM_FILES: ClassVar[tuple[str, ...]] = ("oidc_secret", "secret")

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8800
    url: Annotated[str, Meta(pattern=r"^(https?://[^\s?#]+)?$")] = ""
    hosts: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    users: Path | None = None
    links: bool = True
    secret: Secret = Secret("")
    oidc_issuer: Annotated[str, Meta(pattern=r"^(https?://[^\s?#]+)?$")] = ""
    oidc_client: str = ""
    oidc_secret: Secret = Secret("")
    oidc_claim: Annotated[str, Meta(min_length=1)] = "groups"
    oidc_roles: str = ""
    proxy_header: str = ""
    proxy_role_header: str = ""
    proxy_addresses: tuple[str, ...] = ()
    session: _Seconds = 12 * 3600
    session_idle: _Seconds = 3600
    read_only: bool = False
    audit_retention: Annotated[float, Meta(ge=0, le=1.6e9)] = 0

    TEXTS: ClassVar[Mapping[str, str]] = {
        "url": "an address such as https://nonet.example.org/jobs, or empty",
        "oidc_issuer": "an address such as https://login.example.org, or empty",
    }

    READERS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "namespaces": _namespaces,
        "proxy_addresses": _networks,
        "oidc_roles": _roles,
        "secret": _long_secret,
    }

    def __post_init__(self) -> None:
        if self.oidc_issuer and not self.oidc_client:
            raise ValueError("NONET_WEB_OIDC_CLIENT is missing: OIDC needs the id of this client")
        if self.proxy_header and not self.proxy_role_header:
            raise ValueError("NONET_WEB_PROXY_ROLE_HEADER is missing: it gives users their roles")
        if self.proxy_header and not self.proxy_addresses:
            raise ValueError(
                "NONET_WEB_PROXY_ADDRESSES is missing: headers are believed only from there"
            )

    @property
    def address(self) -> str:
        """The address of the first page: `url`, or where it listens; without a slash at its end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.url or f"http://{host}:{self.port}").rstrip("/")
