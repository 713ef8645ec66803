"""Settings of ``task-web``: ``NONET_WEB_…`` variables of the environment or of ``.env``."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, SecretStr, field_validator, model_validator

from nonet.config.environment import EnvironmentModel

_Seconds = Annotated[float, Field(ge=60, le=1e7)]


class WebSettings(EnvironmentModel):
    """Settings of the dashboard and the API. Durations are in seconds.

    Each field ``x`` is read from the environment variable ``NONET_WEB_X``.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes any free port.
        url: the address of the pages for people, e.g. ``https://nonet.example.org/jobs``. Links
            in `explain`, alerts and webhooks start with it, and its path is the path of the pages
            behind a proxy; empty: ``http://HOST:PORT``.
        hosts: further names under which requests may come, besides those of `url` and `host` and
            loopback; ``*``: any.
        users: YAML file of users and tokens; empty: none.
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
    FROM_FILES: ClassVar[tuple[str, ...]] = ("oidc_secret",)

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8800, ge=0, le=65535)
    url: str = Field(default="", pattern=r"^(https?://[^\s?#]+)?$")
    hosts: tuple[str, ...] = ()
    users: Path | None = None
    oidc_issuer: str = Field(default="", pattern=r"^(https?://[^\s?#]+)?$")
    oidc_client: str = ""
    oidc_secret: SecretStr = SecretStr("")
    oidc_claim: str = Field(default="groups", min_length=1)
    oidc_roles: str = ""
    proxy_header: str = ""
    proxy_role_header: str = ""
    proxy_addresses: tuple[str, ...] = ()
    session: _Seconds = 12 * 3600
    session_idle: _Seconds = 3600
    read_only: bool = False
    audit_retention: float = Field(default=0, ge=0, le=1.6e9)

    TEXTS: ClassVar[Mapping[str, str]] = {
        "url": "an address such as https://nonet.example.org/jobs, or empty",
        "oidc_issuer": "an address such as https://login.example.org, or empty",
    }

    @field_validator("hosts", "proxy_addresses", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("proxy_addresses")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for part in value:
            try:
                ip_network(part, strict=False)
            except ValueError:
                raise ValueError(f"{part!r} is not an address or a network") from None
        return value

    @field_validator("oidc_roles")
    @classmethod
    def _are_roles(cls, value: str) -> str:
        from nonet.rules.permissions import read_roles  # every command imports this module

        read_roles(value)
        return value

    @model_validator(mode="after")
    def _complete(self) -> WebSettings:
        if self.oidc_issuer and not self.oidc_client:
            raise ValueError("NONET_WEB_OIDC_CLIENT is missing: OIDC needs the id of this client")
        if self.proxy_header and not self.proxy_role_header:
            raise ValueError("NONET_WEB_PROXY_ROLE_HEADER is missing: nobody has a role without it")
        if self.proxy_header and not self.proxy_addresses:
            raise ValueError(
                "NONET_WEB_PROXY_ADDRESSES is missing: headers are believed only from there"
            )
        return self

    @property
    def address(self) -> str:
        """The address of the first page: `url`, or where it listens; without a slash at its end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.url or f"http://{host}:{self.port}").rstrip("/")
