"""A small OpenID Connect provider on a loopback port, which can lie."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from typing import Any
from urllib.parse import urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from ports import free_port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "nonet", "s3cret of the client"


@cache
def _key(id: str, number: int = 0) -> RSAKey:
    """A key with this id; keys with other numbers differ. To make one takes 0.2 CPU seconds."""
    return RSAKey.generate_key(2048, {"kid": id})


class FakeProvider:
    """Logs everybody in as `claims`.

    Attributes:
        claims: of the ID token, besides those that OIDC demands; None removes one of these.
        sign: makes the token of its claims.
        answer: fields of the query with which the browser is sent back.
    """

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.key = _key("1")
        self.claims: dict[str, Any] = {}
        self.answer: dict[str, str] = {}
        self.sign = self._signed
        self._codes: dict[str, dict[str, str]] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._configuration),
                Route("/keys", self._keys),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    def rotate(self) -> None:
        """Sign with a new key from now on, and publish only that."""
        self.key = _key("2")

    async def _configuration(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "scopes_supported": ["openid", "profile", "groups"],
            }
        )

    async def _keys(self, _: Request) -> Response:
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})

    async def _authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        assert query["response_type"] == "code" and query["code_challenge_method"] == "S256"
        assert query["scope"] == "openid profile groups" and query["client_id"] == CLIENT
        code = secrets.token_urlsafe()
        self._codes[code] = query
        back = {"code": code, "state": query["state"], "iss": self.issuer, **self.answer}
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(back)}")

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        query = self._codes.pop(str(form["code"]), {})
        verifier = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        basic = base64.b64encode(f"{CLIENT}:{SECRET.replace(' ', '%20')}".encode()).decode()
        is_right = (
            query.get("code_challenge") == challenge
            and query["redirect_uri"] == form["redirect_uri"]
            and request.headers["Authorization"] == f"Basic {basic}"
        )
        if not is_right:
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": "4711",
            "iat": now,
            "exp": now + 60,
            "nonce": query["nonce"],
            "preferred_username": "alice",
            **self.claims,
        }
        token = self.sign({name: value for name, value in claims.items() if value is not None})
        return JSONResponse({"id_token": token, "access_token": "x", "token_type": "Bearer"})

    def _signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def unsigned(self, claims: dict[str, Any]) -> str:
        """A token with the algorithm ``none``."""
        parts = ({"alg": "none"}, claims)
        return ".".join(_encoded(json.dumps(part).encode()) for part in parts) + "."

    def by_another_key(self, claims: dict[str, Any]) -> str:
        """A token with the id of our key, signed by another one."""
        kid = str(self.key.kid)
        return jwt.encode({"alg": "RS256", "kid": kid}, claims, _key(kid, 1))

    def by_public_key(self, claims: dict[str, Any]) -> str:
        """A token whose shared secret is the public key, which everybody has."""
        head = json.dumps({"alg": "HS256", "kid": self.key.kid}).encode()
        text = f"{_encoded(head)}.{_encoded(json.dumps(claims).encode())}"
        secret = self.key.as_pem(private=False)
        return f"{text}.{_encoded(hmac.digest(secret, text.encode(), 'sha256'))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@asynccontextmanager
async def providing() -> AsyncIterator[FakeProvider]:
    """A provider that answers in this loop."""
    port = free_port()
    provider = FakeProvider(f"http://127.0.0.1:{port}")
    config = uvicorn.Config(provider.app, port=port, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.02)
        assert not running.done()
    try:
        yield provider
    finally:
        server.should_exit = True
        await running
