"""Find out who sends a request."""

from __future__ import annotations

from typing import Protocol

from fastapi import Request

from nonet.rules.permissions import Principal


class Access(Protocol):
    """Finds the principal of a request."""

    async def identify(self, request: Request) -> Principal | None:
        """Return who sends a request; None: nobody that is known."""


class Fixed:
    """Takes every request as one principal's: for tests, and for an application that checks itself.

    Args:
        principal: who sends all requests; None: nobody.
    """

    def __init__(self, principal: Principal | None) -> None:
        self._principal = principal

    async def identify(self, request: Request) -> Principal | None:
        """See `Access`."""
        return self._principal
