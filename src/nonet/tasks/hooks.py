"""Start-up hooks: what an application does once for each epoch of Redis, thus on an empty one."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from nonet.base.errors import RegistrationError

Hook = Callable[..., Any]
_AnyHook = TypeVar("_AnyHook", bound=Hook)


@dataclass(frozen=True, slots=True)
class Epoch:
    """Which data set of Redis this is; what a hook gets for a parameter of this class.

    Attributes:
        began: when it began, by the clock of Redis: the first use, or when somebody noticed that
            its data were gone or older. What was submitted before is lost or may be.

    Example:
        @startup_hook
        async def tell(epoch: Epoch) -> None:
            print(f"a new epoch began at {epoch.began:%H:%M:%S}")
    """

    began: datetime


_registered: dict[str, Hook] = {}


def startup_hook(function: _AnyHook) -> _AnyHook:
    """Let the leading scheduler call `function` once for each epoch of Redis, until it succeeds.

    At least once: a scheduler may die right after it, and the next one calls it again, so that it
    must be idempotent. Hooks run in the order of their registration, those of the entry points
    ``nonet.startup`` before them, by name; one that fails is tried again before the next ones.

    Args:
        function: ``async def`` or ``def``; its parameters are injected as those of ``execute``,
            and one annotated with `Epoch` gets the epoch. Tasks may be submitted in it.

    Raises:
        RegistrationError: another function has this name in its module.

    Example:
        @startup_hook
        async def reset(epoch: Epoch, db: Annotated[JobDB, Depends(JobDB.session)]) -> None:
            # What Redis has lost is to be done again.
            for job in await db.received_again(pending_since_before=epoch.began):
                await Submit(job).schedule(id=f"submit-{job}")
    """
    if not callable(function):
        raise RegistrationError(f"@startup_hook got {function!r:.100}: put it above a function")
    _register(f"{function.__module__}.{function.__qualname__}", function)
    return function


def startup_hooks(prefixes: Iterable[str] = ("nonet",)) -> dict[str, Hook]:
    """All hooks by name, in the order in which they run.

    Args:
        prefixes: of the groups of entry points, ``<prefix>.startup``.

    Raises:
        RegistrationError: an entry point cannot be imported, two have one name, or one is no
            function that can be called.
    """
    found: dict[str, Hook] = {}
    for prefix in prefixes:
        group = importlib.metadata.entry_points(group=f"{prefix}.startup")
        for entry in sorted(group, key=lambda item: item.name):
            if entry.name in found:
                raise RegistrationError(f"two start-up hooks are named {entry.name!r}: rename one")
            try:
                found[entry.name] = entry.load()
            except (Exception, SystemExit) as error:  # an author's module may raise anything
                problem = f"{type(error).__name__}: {error}"
                raise RegistrationError(
                    f"start-up hook {entry.name!r} ({entry.value}) cannot be loaded: {problem}; "
                    f"correct or remove it in the entry points {entry.group}"
                ) from error
    decorated = {name: hook for name, hook in _registered.items() if hook not in found.values()}
    for name, hook in (found | decorated).items():
        if wrong := _no_function(hook):
            raise RegistrationError(f"start-up hook {name!r} {wrong}")
    return found | decorated


def _no_function(hook: object) -> str:
    """What a hook is instead of a function, and what to do; empty: it is one."""
    if not callable(hook):
        return f"is {hook!r:.100}, which cannot be called: name a function"
    if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
        return "is a generator, of which nothing would run: remove its yield"
    return ""


def _register(name: str, function: Hook) -> None:
    known = _registered.get(name, function)
    if _place(known) != _place(function):  # a module that is imported anew brings the same ones
        raise RegistrationError(f"two start-up hooks are named {name}: rename one")
    _registered[name] = function


def _place(function: Hook) -> tuple[str, int]:
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("", id(function))
