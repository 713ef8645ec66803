"""Actions of operators: what each one needs, and what the audit says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from string import Formatter
from typing import Any, Generic, ParamSpec, TypeVar

from nonet.base.plain import few
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
        thing: the object as events name it; empty: the first parameter of `says`.
    """

    act: Callable[P, Awaitable[_R_co]]
    permission: Action
    says: str
    thing: str = ""

    async def __call__(self, *args: P.args, **options: P.kwargs) -> _R_co:
        """Act, without an audit: in a terminal the event stream names the user."""
        return await self.act(*args, **options)

    def sentence(self, *args: P.args, **options: P.kwargs) -> str:
        """Return the sentence of the audit for a call with these arguments."""
        return self._said(self.says, *args, **options).removesuffix(": ")

    def things(self, *args: P.args, **options: P.kwargs) -> list[str]:
        """Return the objects that a call with these arguments changes, as events name them."""
        first = next(name for _, name, *_ in Formatter().parse(self.says) if name)
        return self._said(self.thing or f"{{{first}}}", *args, **options).split(", ")

    def _said(self, text: str, *args: P.args, **options: P.kwargs) -> str:
        given = signature(self.act).bind(*args, **options)
        given.apply_defaults()
        values = {name: _in_words(value) for name, value in given.arguments.items()}
        return text.format(**values)


def audited(
    permission: Action, says: str, thing: str = ""
) -> Callable[[Callable[P, Awaitable[R]]], Audited[P, R]]:
    """Make an action of a function; the arguments are the attributes of `Audited`.

    Example:
        @audited(Action.LIMIT, "limit {address}: as configured")
        async def unset(stores: Stores, address: LimitAddress) -> None: ...
    """
    return lambda act: Audited(act, permission, says, thing)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A task or workflow after its cancellation.

    Attributes:
        state: ``cancelled``; or ``cancelling`` (a workflow: ``running``) while workers end what
            runs, within seconds.
    """

    id: str
    state: str


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of named tasks.

    Attributes:
        changed: ids of the tasks that the action changed.
        states: the state of each of the others, by id; empty: it is unknown.
    """

    changed: Sequence[str]
    states: Mapping[str, str]

    @classmethod
    def of(cls, states: Mapping[str, str], *done: str) -> Changed:
        """Part tasks by their state: which are in one of the states that the action leads to."""
        changed = [id for id, state in states.items() if state in done]
        return cls(changed, {id: state for id, state in states.items() if state not in done})

    def problems(self, wanted: str) -> list[str]:
        """Return a sentence for each task that was not in the state that the action needs."""
        return [
            f"task {id} is {state}, not {wanted}" if state else f"task {id} is unknown"
            for id, state in self.states.items()
        ]


def _in_words(value: Any) -> Any:
    """Name the first items of a list: the audit keeps a sentence, not a thousand ids.

    Of changed arguments it names the names: values may be secret.
    """
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return f"changed {', '.join(value)}" if value else ""
    return few(value) if isinstance(value, list | tuple) else value
