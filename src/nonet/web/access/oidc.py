"""Log in at an OpenID Connect provider: authorization code with PKCE."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import httpx
from fastapi import HTTPException

from nonet.config.web_settings import WebSettings

logger = logging.getLogger(__name__)

# Signatures by a key that the provider publishes: neither `none` nor a shared secret.
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
_KEY_TYPES = ("RSA", "EC", "OKP")
_ANSWER_SECONDS = 10.0
_KEPT_SECONDS = 3600.0
# A token with an unknown key makes us read the keys again, but not more often than this.
_KEYS_SECONDS = 30.0
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
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client
        self._client_secret = settings.oidc_secret.get_secret_value()
        self._claim = settings.oidc_claim
        self._configuration: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, Any] | None = None

    async def start(self, redirect: str, next: str) -> tuple[str, str]:
        """Return the URL where the user logs in, and the cookie for `finish`."""
        secret = secrets.token_urlsafe(32)
        found = await self._discover()
        scopes = ["openid", *(
            scope
            for scope in ("profile", "email", "groups")
            if scope in found.get("scopes_supported", ("profile", "email"))
        )]  # fmt: skip
        challenge = base64.urlsafe_b64encode(
            hashlib.sha256(_part(secret, "verifier").encode()).digest()
        )
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect,
            "scope": " ".join(scopes),
            "state": _part(secret, "state"),
            "nonce": _part(secret, "nonce"),
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        endpoint = found["authorization_endpoint"]
        separator = "&" if urlsplit(endpoint).query else "?"
        return f"{endpoint}{separator}{urlencode(query)}", f"{secret}.{quote(next, safe='')}"

    async def finish(self, answer: Mapping[str, str], cookie: str, redirect: str) -> Subject:
        """Return who logged in.

        Args:
            answer: the query with which the provider sent the browser back.
            cookie: of `start`.

        Raises:
            HTTPException: 403, the answer is not valid; 503, the provider cannot be reached.
        """
        secret, _, next = cookie.partition(".")
        state = answer.get("state", "")
        if not secret or not hmac.compare_digest(_part(secret, "state").encode(), state.encode()):
            raise _refused("the login began in another browser or too long ago: log in again")
        if answer.get("iss", self._issuer) != self._issuer:
            raise _refused(f"the answer is of {answer['iss'][:200]!r}, another provider")
        if problem := answer.get("error"):
            text = answer.get("error_description", "")
            raise _refused(f"the provider refused the login: {problem[:100]} {text[:300]}".strip())
        token = await self._exchange(answer.get("code", ""), _part(secret, "verifier"), redirect)
        claims = await self._claims(token, _part(secret, "nonce"))
        shown = claims.get("preferred_username") or claims.get("email") or claims["sub"]
        return Subject(
            f"oidc:{str(shown)[:90]}", claims["sub"], _values(claims, self._claim), unquote(next)
        )

    async def _exchange(self, code: str, verifier: str, redirect: str) -> str:
        found = await self._discover()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "code_verifier": verifier,
            "client_id": self._client_id,
        }
        methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        login = None
        if self._client_secret and "client_secret_basic" in methods:
            login = httpx.BasicAuth(
                quote(self._client_id, safe=""), quote(self._client_secret, safe="")
            )
        elif self._client_secret:
            form["client_secret"] = self._client_secret
        answer = await self._ask("POST", found["token_endpoint"], data=form, auth=login)
        token = answer.get("id_token")
        if not isinstance(token, str):
            reason = str(answer.get("error", "it has no id_token"))[:200]
            raise _refused(f"the provider refused the code of this login: {reason}")
        return token

    async def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token, once all that OIDC demands of it is checked."""
        from joserfc.errors import JoseError
        from joserfc.jwt import JWTClaimsRegistry

        registry = JWTClaimsRegistry(
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": self._client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            claims = await self._verified(token)
            registry.validate(claims)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            logger.warning("refused an ID token: %s: %s", type(error).__name__, error)
            raise _refused(f"the ID token of the provider is not valid: {error}") from None
        authorized = claims.get("azp", self._client_id)
        audience = claims["aud"]
        is_shared = isinstance(audience, list) and len(audience) > 1
        if authorized != self._client_id or (is_shared and "azp" not in claims):
            raise _refused("the ID token of the provider is for another client")
        return claims

    async def _verified(self, token: str) -> dict[str, Any]:
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            return dict(jwt.decode(token, await self._key_set(), _ALGORITHMS).claims)
        except (JoseError, ValueError):
            # The provider may have new keys.
            read_at = self._keys[0] if self._keys else 0.0
            if time.monotonic() - read_at < _KEYS_SECONDS:
                raise
            self._keys = None
            return dict(jwt.decode(token, await self._key_set(), _ALGORITHMS).claims)

    async def _key_set(self) -> Any:
        from joserfc.jwk import KeySet

        if self._keys is None or time.monotonic() - self._keys[0] > _KEPT_SECONDS:
            found = await self._ask("GET", (await self._discover())["jwks_uri"])
            public = [
                key for key in found.get("keys", ()) if key.get("kty") in ("RSA", "EC", "OKP")
            ]
            self._keys = time.monotonic(), KeySet.import_key_set({"keys": public})
        return self._keys[1]

    async def _discover(self) -> dict[str, Any]:
        if self._configuration and time.monotonic() - self._configuration[0] < _KEPT_SECONDS:
            return self._configuration[1]
        url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        found = await self._ask("GET", url)
        if found.get("issuer") != self._issuer:
            raise _unavailable(
                f"{url} names the issuer {str(found.get('issuer'))[:200]!r}: set "
                "NONET_WEB_OIDC_ISSUER to exactly that"
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            _ensure_private(str(found.get(name, "")))
        self._configuration = time.monotonic(), found
        return found

    async def _ask(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        _ensure_private(url)
        try:
            async with httpx.AsyncClient(timeout=_ANSWER_SECONDS) as client:
                answer = await client.request(method, url, **options)
            found = answer.json()
            if not isinstance(found, dict) or answer.status_code >= 500:
                raise ValueError(f"status {answer.status_code}")
        except (httpx.HTTPError, ValueError, json.JSONDecodeError) as error:
            logger.warning("the OIDC provider does not answer: url=%s error=%r", url, error)
            raise _unavailable(f"{url} does not answer as an OIDC provider does") from None
        return found


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
        raise _unavailable(f"{url or 'an address'} of the OIDC provider is not https")


def _refused(text: str) -> HTTPException:
    return HTTPException(403, text)


def _unavailable(text: str) -> HTTPException:
    return HTTPException(503, text)
