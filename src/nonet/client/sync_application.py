"""Submit tasks and wait for results from programs and threads without an event loop.

`SyncNonet` has the methods of `nonet.Nonet`, which block instead of being awaited. It is the same
client over other connections: `nonet.base.synchronous.complete` runs its coroutines, which do not
suspend, because the calls of Redis and SQL below them block.

It may be used from any thread, and after a fork: a child process opens connections of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from nonet.base.errors import ConflictError, NotBoundError
from nonet.base.forks import Lock
from nonet.base.synchronous import complete
from nonet.client.application import Application
from nonet.client.client import Client, Program
from nonet.client.envelopes import Envelopes
from nonet.client.schedules import SyncSchedules
from nonet.config.settings import Settings
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.sync_transport import THREADS
from nonet.stores.stores import EMBEDDED, Stores, start_embedded, stores_beside
from nonet.tasks import handles, runs
from nonet.tasks.handles import R
from nonet.tasks.middleware import Middlewares, registered_middleware
from nonet.tasks.registry import Registry
from nonet.tasks.sync_handles import SyncHandle
from nonet.tasks.sync_runs import SyncWorkflowRun
from nonet.tasks.task import BaseTask, Options, SubmitOptions, sync_submitters
from nonet.telemetry.running_middleware import close_middleware

P = ParamSpec("P")
_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


def _blocking(
    method: Callable[Concatenate[Program, P], Coroutine[Any, Any, _Answer]],
) -> Callable[[object], Callable[Concatenate[SyncNonet, P], _Answer]]:
    """Make the method that calls a method of the client and blocks until it has the answer."""

    def call(self: SyncNonet, /, *args: P.args, **options: P.kwargs) -> _Answer:
        return complete(method(self._client(), *args, **options))

    return _described(call, method)


@overload
def _submitting(
    method: Callable[Concatenate[Program, P], Coroutine[Any, Any, handles.Handle[R]]],
) -> Callable[[object], Callable[Concatenate[SyncNonet, P], SyncHandle[R]]]: ...


@overload
def _submitting(
    method: Callable[Concatenate[Program, P], Coroutine[Any, Any, list[handles.Handle[R]]]],
) -> Callable[[object], Callable[Concatenate[SyncNonet, P], list[SyncHandle[R]]]]: ...


@overload
def _submitting(
    method: Callable[Concatenate[Program, P], Coroutine[Any, Any, runs.WorkflowRun]],
) -> Callable[[object], Callable[Concatenate[SyncNonet, P], SyncWorkflowRun]]: ...


@overload
def _submitting(
    method: Callable[Concatenate[Program, P], Coroutine[Any, Any, list[runs.WorkflowRun]]],
) -> Callable[[object], Callable[Concatenate[SyncNonet, P], list[SyncWorkflowRun]]]: ...


def _submitting(
    method: Callable[Concatenate[Program, P], Coroutine[Any, Any, Any]],
) -> Callable[[object], Callable[Concatenate[SyncNonet, P], Any]]:
    """As `_blocking`, for methods that return handles: they return blocking handles."""

    def call(self: SyncNonet, /, *args: P.args, **options: P.kwargs) -> Any:
        made = complete(method(self._client(), *args, **options))
        return [_ours(self, one) for one in made] if isinstance(made, list) else _ours(self, made)

    return _described(call, method)


def _ours(
    app: SyncNonet, made: handles.Handle[Any] | runs.WorkflowRun
) -> SyncHandle[Any] | SyncWorkflowRun:
    kind = SyncWorkflowRun if isinstance(made, runs.WorkflowRun) else SyncHandle
    return kind(made, app, made.created)


def _iterating(
    method: Callable[Concatenate[Program, P], AsyncIterator[_Item]],
) -> Callable[[object], Callable[Concatenate[SyncNonet, P], Iterator[_Item]]]:
    """Make the method that iterates over what a method of the client yields without suspending."""

    def call(self: SyncNonet, /, *args: P.args, **options: P.kwargs) -> Iterator[_Item]:
        found = method(self._client(), *args, **options)

        async def following() -> _Item:
            return await anext(found)

        def items() -> Iterator[_Item]:
            while True:
                try:
                    item = complete(following())
                except StopAsyncIteration:
                    return
                yield item

        return items()

    return _described(call, method)


def _described(
    call: Callable[P, _Answer], method: Callable[..., Any]
) -> Callable[[object], Callable[P, _Answer]]:
    """Give a blocking method the documentation of the method that it calls."""
    update_wrapper(call, method)
    text = method.__doc__ or ""
    text = text.replace("await ", "").replace("async for ", "for ")
    call.__doc__ = text.replace("client.", "app.")
    return lambda _: call


class SyncNonet(Application):
    """An application for programs without an event loop, as Django, Flask and scripts are.

    Use it in a ``with`` block; or call `open` once when the program starts, also before a server
    such as gunicorn forks, and leave it open. While it is open ``.schedule_sync()`` uses it
    process-wide. Connections are opened when they are first needed, in each process.

    Args:
        settings: the settings of this process.
        load_tasks: False: leave the registry empty, to inspect tasks although modules that define
            them cannot be imported.

    Attributes:
        settings: the settings of this process.
        registry: task classes by name.

    Example:
        with nonet.SyncNonet.from_settings() as app:
            handle = SendInvoice(4711, "me@example.org").schedule_sync()
            print(handle.result(timeout=30))
    """

    def __init__(self, settings: Settings, *, load_tasks: bool = True) -> None:
        super().__init__(settings, load_tasks=load_tasks)
        self._url = ""
        self._envelopes: Envelopes | None = None
        self._opened: _Opened | None = None

    @classmethod
    def beside(
        cls, settings: Settings, registry: Registry, middlewares: Middlewares, url: str
    ) -> Self:
        """Create the application for threads beside an open `nonet.Nonet`, for the framework.

        Args:
            middlewares: the middlewares of the other application, which closes them.
            url: the URL of its Redis.
        """
        app = cls(settings, load_tasks=False)
        app.registry, app.middlewares, app._url = registry, middlewares, url
        app._opened = app._open()
        return app

    def __repr__(self) -> str:
        state = "closed" if self._opened is None else "open"
        return f"nonet.SyncNonet({self.settings.namespace!r}, {state})"

    def open(self) -> Self:
        """Open the application and return it; `close` it, or leave it open until the end.

        Raises:
            ConflictError: it is open.
            ConfigurationError: the URL of Redis is invalid, or the embedded server did not start.

        Example:
            app = nonet.SyncNonet.from_settings().open()
            app.submit(Add(1, 2))
            app.close()
        """
        if self._opened is not None:
            raise ConflictError("this SyncNonet is already open: use it")
        self.middlewares.extend(registered_middleware())
        self._opened = self._open()
        sync_submitters.append(self)
        complete(self._opened.stores.prepare_sqlite(self.registry))
        return self

    def close(self) -> None:
        """Close the connections of this process."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        if not self._url:
            sync_submitters.remove(self)
            if list(self.middlewares):  # their `close` may wait, which needs an event loop
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(asyncio.run, close_middleware(self.middlewares)).result()
        if opened.pid == os.getpid():
            complete(opened.closing.aclose())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    @_submitting(Program.submit)
    def submit(self) -> None: ...

    @_submitting(Program.submit_by_name)
    def submit_by_name(self) -> None: ...

    @_submitting(Program.submit_many)
    def submit_many(self) -> None: ...

    @_submitting(Program.submit_workflow)
    def submit_workflow(self) -> None: ...

    @_submitting(Program.submit_workflows)
    def submit_workflows(self) -> None: ...

    def check(self, task: BaseTask, **options: Unpack[SubmitOptions]) -> None:
        """Check a task as `submit` does, for the framework, and submit nothing."""
        self._client().envelopes.prepare(task, Options.from_mapping(options))

    @_blocking(Program.status)
    def status(self) -> None: ...

    @overload
    def result(self, id: SyncHandle[R], *, timeout: float | None = None) -> R: ...

    @overload
    def result(self, id: str, *, timeout: float | None = None) -> Any: ...

    def result(self, id: str, *, timeout: float | None = None) -> Any:
        """Wait for a task to end and return what it returned, as `nonet.Nonet.result`.

        Args:
            id: id or handle of the task; with a handle the result is typed.
            timeout: seconds to wait at most; None: as long as it takes.

        Raises:
            NotBoundError, ResultError, NotFoundError, TimeoutError: as `nonet.Nonet.result`.

        Example:
            assert app.result(handle, timeout=30) == 3
        """
        return complete(self._client().result(id, timeout=timeout))

    def handle(self, id: str) -> SyncHandle[Any]:
        """Return the handle of a submitted task, for example of an id that you have stored.

        Args:
            id: id of the task; nothing is read before its methods are called.

        Example:
            print(app.handle("sum-1-2").result(timeout=0, default=None))
        """
        return SyncHandle(id, self, created=False)

    @_blocking(Program.explain)
    def explain(self) -> None: ...

    @_blocking(Program.cancel)
    def cancel(self) -> None: ...

    @_blocking(Program.cancel_group)
    def cancel_group(self) -> None: ...

    @_blocking(Program.cancel_not_running)
    def cancel_not_running(self) -> None: ...

    @_blocking(Program.cancel_many)
    def cancel_many(self) -> None: ...

    @_blocking(Program.list_tasks)
    def list_tasks(self) -> None: ...

    @_blocking(Program.history)
    def history(self) -> None: ...

    @_blocking(Program.logs)
    def logs(self) -> None: ...

    @_blocking(Program.spawn_with_callback)
    def spawn_with_callback(self) -> None: ...

    @_blocking(Program.group_results)
    def group_results(self) -> None: ...

    @_blocking(Program.active_tasks)
    def active_tasks(self) -> None: ...

    @_blocking(Program.workflow_status)
    def workflow_status(self) -> None: ...

    @_blocking(Program.workflow_steps)
    def workflow_steps(self) -> None: ...

    @_blocking(Program.workflow_ended)
    def workflow_ended(self) -> None: ...

    @_blocking(Program.workflow_results)
    def workflow_results(self) -> None: ...

    @_blocking(Program.step_result)
    def step_result(self) -> None: ...

    @_blocking(Program.cancel_workflow)
    def cancel_workflow(self) -> None: ...

    @_blocking(Program.signal)
    def signal(self) -> None: ...

    @_blocking(Program.resume_workflow)
    def resume_workflow(self) -> None: ...

    @_iterating(Program.live)
    def live(self) -> None: ...

    @_iterating(Program.progress)
    def progress(self) -> None: ...

    def workflow(self, id: str) -> SyncWorkflowRun:
        """Return the run of a submitted workflow.

        Args:
            id: id of the workflow; nothing is read before its methods are called.
        """
        return SyncWorkflowRun(id, self)

    @_blocking(Program.workflows)
    def workflows(self) -> None: ...

    @property
    def schedules(self) -> SyncSchedules:
        """The schedules that programs made: put, pause, resume, remove and list them."""
        return SyncSchedules(self._client().schedules)

    def prepare_with(self, envelopes: Envelopes) -> None:
        """Create messages with these envelopes, for the framework: tests record them."""
        self._envelopes = envelopes
        self._client().envelopes = envelopes

    def _client(self) -> Client:
        return self._here().client

    def _here(self) -> _Opened:
        """What is open in this process."""
        opened = self._opened
        if opened is None:
            raise NotBoundError(
                "the application is not open: use it inside `with`, or call its open() first"
            )
        return opened if opened.pid == os.getpid() else self._reopen()

    def _reopen(self) -> _Opened:
        """Open connections in a child process. Its threads may come here at the same time."""
        with _reopening:
            opened = self._opened
            if opened is None or opened.pid != os.getpid():
                _inherited.append(opened)
                opened = self._opened = self._open()
        return opened

    def _open(self) -> _Opened:
        closing = AsyncExitStack()
        url = self._url or self.settings.redis_url.get_secret_value()
        if url.startswith(EMBEDDED):
            url = start_embedded(self.settings, closing).url
        broker = Broker(self.settings, url, THREADS)
        closing.push_async_callback(broker.aclose)
        stores = Stores(broker)
        closing.push_async_callback(stores.close)
        client = self._make_client(stores, closing, {})
        client.envelopes = self._envelopes or client.envelopes
        return _Opened(os.getpid(), client, stores, closing)

    def _make_client(
        self, stores: Stores, closing: AsyncExitStack, made: dict[str, Client]
    ) -> Client:
        """Make the client of a namespace; it makes clients of others when they are needed."""

        def beside(namespace: str) -> Client:
            with _reopening:
                if namespace not in made:
                    other = stores_beside(stores, namespace, closing)
                    made[namespace] = self._make_client(other, closing, made)
                return made[namespace]

        client = made[stores.namespace] = Client(
            stores, self.registry, middlewares=self.middlewares, beside=beside
        )
        closing.push_async_callback(client.aclose)
        return client


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an open application has in one process."""

    pid: int
    client: Client
    stores: Stores
    closing: AsyncExitStack


# What a child process has inherited. It stays as it is: to close a connection that the parent
# uses could end it for both.
_inherited: list[object] = []
_reopening = Lock()
