"""Nonet in a FastAPI application: a lifespan, a dependency for routes, errors, the dashboard.

Example:
    app = FastAPI(lifespan=lifespan(tasks=("mypackage.tasks",)))
    install(app)

    @app.post("/invoices/{number}/mail", status_code=202)
    async def send(number: int, to: str, nonet: NonetApp) -> dict[str, str]:
        return {"task": await nonet.submit(SendInvoice(number, to))}
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI, Request
from fastapi.requests import HTTPConnection
from fastapi.responses import JSONResponse, Response

from nonet.app import Nonet
from nonet.base.errors import (
    AdmissionRejected,
    BrokerFullError,
    ConfigurationError,
    ConflictError,
    InvalidArgumentsError,
    NonetError,
    NotBoundError,
    NotFoundError,
    ResultUnavailable,
    RowsBusy,
    ServerUnreachableError,
    TaskCancelled,
    TaskExpired,
    UnableToAcquireLockError,
)
from nonet.base.version import install_with
from nonet.config.web_settings import WebSettings
from nonet.web.statuses import STATUSES, retry_after

__all__ = ["NonetApp", "get_app", "install", "lifespan", "mount_dashboard"]

# In the state of an application: its dashboards.
_DASHBOARDS = "nonet_dashboards"

if TYPE_CHECKING:
    from nonet.web.mounted import Check

Lifespan: TypeAlias = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def lifespan(nonet: Nonet | None = None, **options: Any) -> Lifespan:
    """Create a lifespan that opens Nonet before the first request and closes it after the last.

    Args:
        nonet: an application that is not open yet; None: create one from the environment and
            `options`.
        options: fields of `nonet.Settings`, e.g. ``tasks=("mypackage.tasks",)``.

    Returns:
        The argument for ``FastAPI(lifespan=…)``. A lifespan of your own can enter it with
        ``async with lifespan(…)(app): yield``.

    Raises:
        ConfigurationError: a setting is invalid.
        RegistrationError: a task class cannot be registered.
        TypeError: both `nonet` and `options` are given.

    Example:
        web = FastAPI(lifespan=lifespan(namespace="test"))
        install(web)
    """
    if nonet is not None and options:
        raise TypeError(
            f"lifespan: {', '.join(options)} would be ignored, because nonet has its own settings"
        )
    chosen = nonet or Nonet.from_settings(**options)

    @asynccontextmanager
    async def opened(app: FastAPI) -> AsyncIterator[None]:
        async with chosen:
            app.state.nonet = chosen
            try:
                async with AsyncExitStack() as dashboards:
                    for mounted in getattr(app.state, _DASHBOARDS, ()):
                        await dashboards.enter_async_context(mounted.open(chosen))
                    yield
            finally:
                del app.state.nonet

    return opened


def get_app(connection: HTTPConnection) -> Nonet:
    """The open `Nonet`, for ``Depends(get_app)`` in routes and websockets.

    Args:
        connection: the request or websocket; FastAPI passes it.

    Raises:
        NotBoundError: the application was created without `lifespan`.

    Example:
        @web.get("/tasks/{id}")
        async def status(id: str, nonet: Nonet = fastapi.Depends(get_app)) -> dict[str, str]:
            return {"state": (await nonet.status(id)).state}
    """
    found: Nonet | None = getattr(connection.app.state, "nonet", None)
    if found is None:
        raise NotBoundError("Nonet is not open here: use FastAPI(lifespan=lifespan(…))")
    return found


NonetApp: TypeAlias = Annotated[Nonet, Depends(get_app)]
"""The open `Nonet` as a parameter of a route.

Example:
    @web.post("/invoices/{number}/mail", status_code=202)
    async def send(number: int, to: str, nonet: NonetApp) -> dict[str, str]:
        return {"task": await nonet.submit(SendInvoice(number, to))}
"""


def mount_dashboard(
    app: FastAPI, path: str = "/nonet", *, principal: Check | None = None, **options: Any
) -> None:
    """Mount the dashboard and its API, on the Nonet that `lifespan` opens.

    Args:
        app: the FastAPI application; its lifespan must be, or enter, `lifespan`.
        path: where the first page is.
        principal: a function, plain or async, which returns the principal of a request (a
            ``nonet.types.Principal``), or None to refuse it. Without it users log in as in
            ``task-web``.
        options: fields of ``WebSettings``, e.g. ``url="https://shop.example.org/nonet"``; the
            environment supplies the others. Without an `url`, only requests by loopback names are
            answered.

    Raises:
        ConfigurationError: the extra ``web`` is not installed, or a setting is invalid.

    Example:
        web = FastAPI(lifespan=lifespan(namespace="test"))
        mount_dashboard(web, "/nonet")
    """
    try:
        from nonet.web.mounted import Mounted  # only the dashboard needs it
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the dashboard needs the extra 'web' ({error.name} is missing): {install_with('web')}"
        ) from None

    path = "/" + path.strip("/")
    mounted = Mounted(path, WebSettings.load(**options), principal)
    if not hasattr(app.state, _DASHBOARDS):
        setattr(app.state, _DASHBOARDS, [])
    getattr(app.state, _DASHBOARDS).append(mounted)
    app.mount(path, mounted)


def install(app: FastAPI) -> None:
    """Turn errors of Nonet into HTTP responses.

    - 429 with ``Retry-After`` and the numbers: ``AdmissionRejected``.
    - 503 with ``Retry-After``: Redis or SQL does not answer, or Redis is full.
    - 409: a lock is held by others, or the task has already ended in another way; with
      ``Retry-After`` if a pipeline processes the row.
    - 404: the task or its result is unknown.
    - 422 with the reasons: invalid arguments or ids.

    Responses never contain the names of servers or lock holders. Other errors remain 500, because
    the task or the application caused them, not the request.

    Args:
        app: the FastAPI application.

    Example:
        web = FastAPI(lifespan=lifespan(namespace="test"))
        install(web)
    """
    for kind in _BODIES:
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    kind = next(kind for kind in type(error).__mro__ if kind in _BODIES)
    status = STATUSES[kind]
    is_timed = status in (429, 503) or isinstance(error, RowsBusy)
    headers = retry_after(error) if is_timed else None
    return JSONResponse(_BODIES[kind](error), status, headers)


def _detail(text: str) -> Callable[[Any], dict[str, Any]]:
    return lambda error: {"detail": text}


def _too_many(error: AdmissionRejected) -> dict[str, Any]:
    return {
        "detail": error.brief,
        "active": error.active,
        "ceiling": error.ceiling,
        "scope": error.scope,
    }


def _invalid(error: InvalidArgumentsError) -> dict[str, Any]:
    return {"detail": [{"msg": problem} for problem in error.problems]}


_UNAVAILABLE = _detail("the task system is unavailable: try again later")
# The texts of the responses; `nonet.web.statuses` has their statuses.
_BODIES: dict[type[NonetError], Callable[[Any], dict[str, Any]]] = {
    AdmissionRejected: _too_many,
    ServerUnreachableError: _UNAVAILABLE,
    BrokerFullError: _UNAVAILABLE,
    UnableToAcquireLockError: _detail("another process is working on this: try again later"),
    NotFoundError: _detail("this id is unknown"),
    ResultUnavailable: _detail("this id has no result"),
    InvalidArgumentsError: _invalid,
    ConflictError: _detail("the current state does not allow this"),
    TaskCancelled: _detail("the task was cancelled and has no result"),
    TaskExpired: _detail("the task was not started in time and has no result"),
}
