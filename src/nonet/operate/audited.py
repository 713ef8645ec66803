"""Actions of operators: what each one needs, and what the audit says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import signature
from typing import Generic, ParamSpec, TypeVar

from nonet.rules.permissions import Action

P = ParamSpec("P")
R = TypeVar("R")
_R_co = TypeVar("_R_co", covariant=True)


@dataclass(frozen=True)
class Audited(Generic[P, _R_co]):
    """An action: call it as the function that it wraps.

    Attributes:
        act: makes the change.
        permission: what a principal needs to call it.
        says: the object and its new value, with the parameters of `act` in braces.
    """

    act: Callable[P, Awaitable[_R_co]]
    permission: Action
    says: str

    async def __call__(self, *args: P.args, **options: P.kwargs) -> _R_co:
        """Act, without an audit: in a terminal the event stream names the user."""
        return await self.act(*args, **options)

    def sentence(self, *args: P.args, **options: P.kwargs) -> str:
        """Return the sentence of the audit for a call with these arguments."""
        given = signature(self.act).bind(*args, **options)
        given.apply_defaults()
        return self.says.format(**given.arguments).removesuffix(": ")


def audited(permission: Action, says: str) -> Callable[[Callable[P, Awaitable[R]]], Audited[P, R]]:
    """Make an action of a function.

    Example:
        @audited(Action.LIMIT, "limit {address}: as configured")
        async def unset(stores: Stores, address: LimitAddress) -> None: ...
    """
    return lambda act: Audited(act, permission, says)
