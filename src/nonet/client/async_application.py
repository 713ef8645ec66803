"""`AsyncApplication`: opens and closes what submits tasks and runs attempts in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ParamSpec, Self, Unpack

from nonet.base.errors import ConflictError, NotBoundError, masked
from nonet.client.application import Application
from nonet.client.client import Client
from nonet.client.namespace import InNamespace, OpenNamespace, ResumeRow
from nonet.config.settings import Settings
from nonet.stores.queue.broker import Broker
from nonet.stores.stores import Stores, open_stores, stores_beside
from nonet.tasks.injection import Injector
from nonet.tasks.middleware import Middleware, registered_middleware
from nonet.tasks.sync_handles import SyncHandle
from nonet.tasks.sync_runs import SyncWorkflowRun
from nonet.tasks.task import BaseTask, SubmitOptions, submitters, sync_submitters
from nonet.tasks.workflows import Workflow
from nonet.telemetry.running_middleware import close_middleware

if TYPE_CHECKING:
    from nonet.client.sync_application import SyncNonet

P = ParamSpec("P")


class AsyncApplication(Application, InNamespace):
    """An application whose methods are awaited: a `nonet.Nonet`, or that of a child process."""

    def __init__(self, settings: Settings, *, load_tasks: bool = True) -> None:
        super().__init__(settings, load_tasks=load_tasks)
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._client: Client | None = None
        self._others: dict[str, Client] = {}
        self._sync: SyncNonet | None = None
        self._closing = AsyncExitStack()
        self._is_open = False
        # False in a child process, because its worker has prepared the database.
        self.prepares_sqlite = True
        # Makes the row of a dead letter due again; None: there are no pipelines.
        self._resume_row: ResumeRow | None = None
        # A broker to use instead of a new one. The fork server makes the broker of its children.
        self.made_broker: Broker | None = None

    def __repr__(self) -> str:
        state = "closed" if self._client is None else "open"
        url = masked(self.settings.redis_url.get_secret_value())
        return f"Nonet({self.settings.namespace!r} on {url}, {state})"

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise ConflictError(
                "this Nonet is already open: use it, or create another one with "
                "Nonet.from_settings()"
            )
        self._is_open = True
        try:
            await self._open_client()
        except BaseException:
            await self._close()
            raise
        return self

    async def _open_client(self) -> None:
        settings = self.settings
        stores = await open_stores(settings, self._closing, self.made_broker)
        self.middlewares.extend(registered_middleware())
        self._closing.push_async_callback(close_middleware, self.middlewares)
        client = self._make_client(stores)
        submitters.append(client)
        self._closing.callback(submitters.remove, client)
        self._client = client
        beside = _Beside(self)
        sync_submitters.append(beside)
        self._closing.callback(sync_submitters.remove, beside)
        if self.prepares_sqlite:
            await stores.prepare_sqlite(self.registry)

    def _make_client(self, stores: Stores) -> Client:
        client = Client(
            stores,
            self.registry,
            middlewares=self.middlewares,
            beside=self.client_of,
            resume_row=self._resume_row,
        )
        self._closing.push_async_callback(client.aclose)
        return client

    def client_of(self, namespace: str) -> Client:
        """Return the client of a namespace on the same servers, for the framework.

        It opens when it is first asked for, and closes with this application.

        Raises:
            NotBoundError: outside ``async with``.
        """
        home = self.client
        if namespace == home.namespace:
            return home
        if namespace not in self._others:
            stores = stores_beside(home.stores, namespace, self._closing)
            self._others[namespace] = self._make_client(stores)
        return self._others[namespace]

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    async def _close(self) -> None:
        self._client = None
        self._others = {}
        sync, self._sync = self._sync, None
        if sync is not None:
            sync.close()
        try:
            await self._closing.aclose()
        finally:
            self._is_open = False

    @property
    def client(self) -> Client:
        """The open client.

        Raises:
            NotBoundError: outside ``async with``.
        """
        if self._client is None:
            raise NotBoundError("the application is not open: use it inside `async with`")
        return self._client

    def _open(self, *ids: str) -> OpenNamespace:
        return self.client

    @property
    def sync(self) -> SyncNonet:
        """The same application for threads of this program, with methods that block.

        It opens connections of its own when it is first used. ``.schedule_sync()`` uses it.

        Raises:
            NotBoundError: outside ``async with``.

        Example:
            def endpoint(invoice: int) -> str:  # runs in a thread
                return app.sync.submit(Charge(invoice))
        """
        client = self.client
        if self._sync is None:
            from nonet.client.sync_application import SyncNonet  # few programs mix both

            url = client.stores.broker.url
            self._sync = SyncNonet.beside(self.settings, self.registry, self.middlewares, url)
        return self._sync

    @property
    def stores(self) -> Stores:
        """The stores, for commands. Raises `NotBoundError` outside ``async with``."""
        return self.client.stores

    @property
    def broker(self) -> Broker:
        """The open broker. Raises `NotBoundError` outside ``async with``."""
        return self.client.stores.broker

    def use(self, make: Callable[P, Middleware], *args: P.args, **options: P.kwargs) -> Middleware:
        """Create a middleware with ``make(*args, **options)`` and use it in this application.

        Child processes create their own if `make` can be imported and the arguments are plain data:
        numbers, texts, and lists or mappings of them. Otherwise they run without it, and the worker
        logs a warning. `nonet.register_middleware` has no such limit.

        Args:
            make: a subclass of `Middleware`, or a function that returns an instance of one.
            args, options: its arguments.

        Raises:
            RegistrationError: `make` does not return a middleware.

        Example:
            class Announce(Middleware):
                async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
                    print("begins", task.name, task.id)
                    yield

            app = Nonet.from_settings(namespace="test")
            app.use(Announce)
        """
        return self.middlewares.add(make, args, options)

    def injector(self) -> Injector:
        """Create an injector that honours `dependency_overrides`; close it when the process ends.

        Example:
            async with app.injector() as injector:
                assert app.dependency_problems(injector) == []
        """
        return Injector(self.dependency_overrides)


class _Beside:
    """Submits for threads of the program; only the first call opens connections for them."""

    def __init__(self, app: AsyncApplication) -> None:
        self._app = app

    def submit(self, task: BaseTask, **options: Unpack[SubmitOptions]) -> SyncHandle[Any]:
        """Submit one task."""
        _ensure_no_loop("task.schedule()")
        return self._app.sync.submit(task, **options)

    def submit_workflow(self, workflow: Workflow, *, id: str | None = None) -> SyncWorkflowRun:
        """Submit a workflow."""
        _ensure_no_loop("workflow.submit()")
        return self._app.sync.submit_workflow(workflow, id=id)


def _ensure_no_loop(instead: str) -> None:
    """Refuse a call that would block the event loop of this thread."""
    if asyncio._get_running_loop() is not None:
        raise NotBoundError(
            "this thread runs an event loop, which the call would block: write "
            f"`await {instead}`, or call it in a thread (asyncio.to_thread)"
        )
