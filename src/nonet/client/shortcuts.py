"""Functions that use the open application: `spawn_with_callback`, `cancel_many`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from nonet.base.errors import NotBoundError
from nonet.client.client import Client
from nonet.client.namespace import InNamespace, OpenNamespace
from nonet.client.submitting import Submitting
from nonet.tasks.task import current_submitter

P = ParamSpec("P")
_Answer = TypeVar("_Answer")


def _same_as(
    method: Callable[Concatenate[Any, P], _Answer],
) -> Callable[[object], Callable[Concatenate[object, P], _Answer]]:
    return lambda _: method


class CallbackSpawner(InNamespace):
    """Injected into ``execute``: calls `nonet.spawn_with_callback`.

    Example:
        class HashAll(BaseTask):
            async def execute(self, spawn: CallbackSpawner) -> str:
                return await spawn([Hash("a"), Hash("b")], Report())
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    def _open(self, *ids: str) -> OpenNamespace:
        return self.client._open(*ids)

    @_same_as(Submitting.spawn_with_callback)
    def __call__(self) -> None: ...


def _on_open_client(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, _Answer]], instead: str = ""
) -> Callable[[object], Callable[P, Coroutine[Any, Any, _Answer]]]:
    """Return a decorator that replaces a stub by a client method."""

    async def call(*args: P.args, **options: P.kwargs) -> _Answer:
        client = current_submitter()
        if not isinstance(client, Client):
            raise NotBoundError(
                f"{method.__name__}() does not work in run_inline(): "
                f"{instead}use nonet.testing.System"
            )
        return await method(client, *args, **options)

    update_wrapper(call, method)
    call.__doc__ = (method.__doc__ or "").replace("client.", "")
    given = signature(method)
    vars(call)["__signature__"] = given.replace(parameters=list(given.parameters.values())[1:])
    return lambda _: call


@_on_open_client(Client.cancel_many)
def cancel_many() -> None: ...


@_on_open_client(Client.spawn_with_callback, "annotate a parameter with CallbackSpawner, or ")
def spawn_with_callback() -> None: ...
