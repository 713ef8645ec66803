"""Log in at an OpenID Connect provider: authorization code with PKCE, by authlib."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.starlette_client import StarletteOAuth2App
from authlib.oauth2.auth import encode_client_secret_basic
from fastapi import HTTPException
from joserfc.errors import JoseError

from nonet.config.web_settings import WebSettings

logger = logging.getLogger(__name__)

# Signatures by a key that the provider publishes: neither `none` nor a shared secret.
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_CLAIMS = ("sub", "exp", "iat", "nonce")
_BASIC = "client_secret_basic"
_ANSWER_SECONDS = 10.0
# What the provider publishes is read again after this time; keys also when one is unknown.
_KEPT_SECONDS = 3600.0
_LEEWAY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Subject:
    """A user as the provider names it.

    Attributes:
        name: for people and the audit, e.g. ``oidc:alice``.
        id: claim ``sub``, which never changes.
        values: of the claim that gives the role.
        next: where the user wanted to go.
    """

    name: str
    id: str
    values: list[str]
    next: str


class Provider:
    """The provider of ``NONET_WEB_OIDC_ISSUER``.

    What a login needs later is made of one secret in a cookie of the browser. Nothing is stored,
    and the answer of the provider is of use only in the browser that asked for it.
    """

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._known: tuple[float, Any] | None = None

    async def start(self, redirect: str, next: str) -> tuple[str, str]:
        """Return the URL where the user logs in, and the cookie for `finish`."""
        secret = secrets.token_urlsafe(32)
        client = await self._client()
        supported = client.server_metadata.get("scopes_supported", ("profile", "email"))
        scopes = [name for name in ("profile", "email", "groups") if name in supported]
        found = await client.create_authorization_url(
            redirect,
            scope=["openid", *scopes],
            state=_part(secret, "state"),
            nonce=_part(secret, "nonce"),
            code_verifier=_part(secret, "verifier"),
        )
        return found["url"], f"{secret}.{quote(next, safe='')}"

    async def finish(self, answer: Mapping[str, str], cookie: str, redirect: str) -> Subject:
        """Return who logged in.

        Args:
            answer: the query with which the provider sent the browser back.
            cookie: of `start`.

        Raises:
            HTTPException: 403, the answer is not valid; 503, the provider cannot be reached.
        """
        secret, _, next = cookie.partition(".")
        state, issuer = answer.get("state", ""), self._settings.oidc_issuer
        if not secret or not hmac.compare_digest(_part(secret, "state").encode(), state.encode()):
            raise _refused("the login began in another browser or too long ago: log in again")
        if answer.get("iss", issuer) != issuer:
            raise _refused(f"the answer is of {answer['iss'][:200]!r}, another provider")
        if problem := answer.get("error"):
            text = answer.get("error_description", "")
            raise _refused(f"the provider refused the login: {problem[:100]} {text[:300]}".strip())
        claims = await self._claims(answer.get("code", ""), secret, redirect)
        shown = claims.get("preferred_username") or claims.get("email") or claims["sub"]
        values = _values(claims, self._settings.oidc_claim)
        return Subject(f"oidc:{str(shown)[:90]}", claims["sub"], values, unquote(next))

    async def _claims(self, code: str, secret: str, redirect: str) -> Mapping[str, Any]:
        """Return the claims of the ID token for a code, once all that OIDC demands is checked."""
        client, verifier = await self._client(), _part(secret, "verifier")
        wanted: dict[str, Any] = {name: {"essential": True} for name in _CLAIMS}
        wanted["iss"] = {"essential": True, "value": self._settings.oidc_issuer}
        wanted["aud"] = {"essential": True, "value": self._settings.oidc_client}
        try:
            token = await client.fetch_access_token(
                redirect, code=code, code_verifier=verifier, grant_type="authorization_code"
            )
            claims = await client.parse_id_token(
                token, _part(secret, "nonce"), wanted, leeway=_LEEWAY_SECONDS
            )
        except httpx2.HTTPError as error:
            raise _unavailable(self._settings.oidc_issuer, error) from None
        except (OAuthError, JoseError, ValueError, TypeError, KeyError) as error:
            logger.warning("refused an ID token: %s: %s", type(error).__name__, error)
            raise _refused(f"the provider sent no valid ID token: {str(error)[:200]}") from None
        if claims is None:
            raise _refused("the provider sent no ID token")
        return dict(claims)

    async def _client(self) -> Any:
        """Return a client that knows what the provider publishes."""
        if self._known and time.monotonic() - self._known[0] < _KEPT_SECONDS:
            return self._known[1]
        settings = self._settings
        issuer = settings.oidc_issuer
        _ensure_private(issuer)
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        client = StarletteOAuth2App(
            None,
            client_id=settings.oidc_client,
            client_secret=settings.oidc_secret.get_secret_value(),
            client_auth_methods=[(_BASIC, _encode_basic)],
            client_kwargs={
                "code_challenge_method": "S256",
                "timeout": _ANSWER_SECONDS,
                # Each request would read all certificates of the system, in the event loop.
                "verify": httpx2.create_ssl_context(),
            },
            server_metadata_url=url,
        )
        try:
            found = await client.load_server_metadata()
        except (httpx2.HTTPError, ValueError, TypeError) as error:
            raise _unavailable(url, error) from None
        if found.get("issuer") != issuer:
            raise HTTPException(
                503,
                f"{url} names the issuer {str(found.get('issuer'))[:200]!r}: set "
                "NONET_WEB_OIDC_ISSUER to exactly that",
            )
        for name in _ENDPOINTS:
            _ensure_private(str(found.get(name, "")))
        found["id_token_signing_alg_values_supported"] = _ALGORITHMS
        methods = found.get("token_endpoint_auth_methods_supported", [_BASIC])
        if client.client_secret and _BASIC not in methods:
            client.client_kwargs["token_endpoint_auth_method"] = "client_secret_post"
        self._known = time.monotonic(), client
        return client


def _encode_basic(client: Any, *request: Any) -> Any:
    """Quote id and secret as RFC 6749 demands, which authlib does not."""
    quoted = SimpleNamespace(
        client_id=quote(client.client_id, safe=""),
        client_secret=quote(client.client_secret, safe=""),
    )
    return encode_client_secret_basic(quoted, *request)


def _part(secret: str, name: str) -> str:
    """Make one of the values of a login, from which the others cannot be found."""
    value = hmac.new(secret.encode(), name.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _values(claims: Mapping[str, Any], name: str) -> list[str]:
    """Return the values of a claim; ``a.b`` is also the field ``b`` of the claim ``a``."""
    found: Any = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    values = found if isinstance(found, list) else [found]
    return [value for value in values if isinstance(value, str)]


def _ensure_private(url: str) -> None:
    """Refuse an address to which passwords and tokens would travel in the open."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_local)):
        raise HTTPException(503, f"{url or 'an address'} of the OIDC provider is not https")


def _refused(text: str) -> HTTPException:
    return HTTPException(403, text)


def _unavailable(url: str, error: Exception) -> HTTPException:
    logger.warning("the OIDC provider does not answer: url=%s error=%r", url, error)
    return HTTPException(503, f"{url} does not answer as an OIDC provider does")
