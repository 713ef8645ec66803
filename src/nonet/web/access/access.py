"""Find out who sends a request."""

from __future__ import annotations

from typing import Protocol

from fastapi import Request

from nonet.rules.permissions import Principal


class Access(Protocol):
    """Finds the principal of a request."""

    async def identify(self, request: Request) -> Principal | None:
        """Return who sends a request; None: a stranger."""
