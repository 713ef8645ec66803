"""Start-up hooks, which the leading scheduler runs once per data set of Redis."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from nonet.base.errors import RegistrationError
from nonet.tasks.entry_points import entries, load

Hook = Callable[..., Any]
_AnyHook = TypeVar("_AnyHook", bound=Hook)


@dataclass(frozen=True, slots=True)
class Epoch:
    """The current data set of Redis; a hook gets it through a parameter of this class.

    Attributes:
        began: start of the epoch, by the clock of Redis: the first use, or the moment when Nonet
            noticed that the data were lost or older than before. Tasks submitted earlier may be
            lost.

    Example:
        @startup_hook
        async def report(epoch: Epoch) -> None:
            print(f"a new epoch began at {epoch.began:%H:%M:%S}")
    """

    began: datetime


_registered: dict[str, Hook] = {}


def startup_hook(function: _AnyHook) -> _AnyHook:
    """Run `function` once per epoch of Redis, in the leading scheduler, until it succeeds.

    The hook must be idempotent: a scheduler can die right after it, and then the next leader runs
    it again. Hooks of the entry points ``nonet.startup`` run first, sorted by name, then the others
    in the order of registration. A hook that fails is retried before the next one runs.

    Args:
        function: ``async def`` or ``def``. Its parameters are injected like those of ``execute``;
            one annotated with `Epoch` gets the epoch. It may submit tasks.

    Raises:
        RegistrationError: another function in the module has the same name.

    Example:
        @startup_hook
        async def resubmit(epoch: Epoch, db: Annotated[InvoiceDB, Depends(connection)]) -> None:
            # Submit again what Redis has lost.
            for number in await db.unpaid(before=epoch.began):
                await Charge(number).schedule(id=f"charge-{number}")
    """
    if not callable(function):
        raise RegistrationError(f"@startup_hook got {function!r:.100}: put it above a function")
    _register(f"{function.__module__}.{function.__qualname__}", function)
    return function


def startup_hooks(prefixes: Iterable[str] = ("nonet",)) -> dict[str, Hook]:
    """All start-up hooks by name, in the order in which they run.

    Args:
        prefixes: prefixes of the entry point groups ``<prefix>.startup``.

    Raises:
        RegistrationError: an entry point cannot be imported, two have the same name, or one is not
            a function that can be called.
    """
    found: dict[str, Hook] = {}
    for entry in entries(prefixes, "startup"):
        if entry.name in found:
            raise RegistrationError(f"two start-up hooks are named {entry.name!r}: rename one")
        found[entry.name] = load(entry, f"start-up hook {entry.name!r}")
    decorated = {name: hook for name, hook in _registered.items() if hook not in found.values()}
    for name, hook in (found | decorated).items():
        if wrong := _problem(hook):
            raise RegistrationError(f"start-up hook {name!r} {wrong}")
    return found | decorated


def _problem(hook: object) -> str:
    if not callable(hook):
        return f"is {hook!r:.100}, which cannot be called: name a function"
    if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        return "is a generator, so calling it would run nothing: remove its yield"
    return ""


def _register(name: str, function: Hook) -> None:
    known = _registered.get(name, function)
    if _place(known) != _place(function):  # a reloaded module registers the same hooks again
        raise RegistrationError(f"two start-up hooks are named {name}: rename one")
    _registered[name] = function


def _place(function: Hook) -> tuple[str, int]:
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("", id(function))
