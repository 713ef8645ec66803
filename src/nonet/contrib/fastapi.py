"""Nonet in a FastAPI application: a lifespan, a dependency for routes, and error responses.

Example:
    app = FastAPI(lifespan=lifespan(tasks=("mypackage.tasks",)))
    install(app)

    @app.post("/invoices/{number}/mail", status_code=202)
    async def send(number: int, to: str, nonet: NonetApp) -> dict[str, str]:
        return {"task": await nonet.submit(SendInvoice(number, to))}
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI, Request
from fastapi.requests import HTTPConnection
from fastapi.responses import JSONResponse, Response

from nonet.app import Nonet
from nonet.base.errors import (
    AdmissionRejected,
    BrokerFullError,
    ConflictError,
    InvalidArgumentsError,
    NotBoundError,
    NotFoundError,
    ResultUnavailable,
    ServerUnreachableError,
    TaskCancelled,
    TaskExpired,
    UnableToAcquireLockError,
)

__all__ = ["NonetApp", "get_app", "install", "lifespan"]

# Suggested to clients while Redis or SQL does not answer or is full.
_UNAVAILABLE_SECONDS = 5

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


def install(app: FastAPI) -> None:
    """Turn errors of Nonet into HTTP responses.

    - 429 with ``Retry-After`` and the numbers: ``AdmissionRejected``.
    - 503 with ``Retry-After``: Redis or SQL does not answer, or Redis is full.
    - 409: a lock is held by others, or the task has already ended in another way.
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
    app.add_exception_handler(AdmissionRejected, _too_many)
    app.add_exception_handler(ServerUnreachableError, _unavailable)
    app.add_exception_handler(BrokerFullError, _unavailable)
    app.add_exception_handler(UnableToAcquireLockError, _locked)
    app.add_exception_handler(NotFoundError, _not_found)
    app.add_exception_handler(ResultUnavailable, _no_result)
    app.add_exception_handler(InvalidArgumentsError, _invalid)
    app.add_exception_handler(ConflictError, _conflict)
    app.add_exception_handler(TaskCancelled, _without_result)
    app.add_exception_handler(TaskExpired, _without_result)


async def _too_many(request: Request, error: Exception) -> Response:
    assert isinstance(error, AdmissionRejected)
    content = {
        "detail": error.brief,
        "active": error.active,
        "ceiling": error.ceiling,
        "scope": error.scope,
    }
    return JSONResponse(content, 429, _retry_after(error.retry_after))


async def _unavailable(request: Request, error: Exception) -> Response:
    content = {"detail": "the task system is unavailable: try again later"}
    return JSONResponse(content, 503, _retry_after(_UNAVAILABLE_SECONDS))


async def _locked(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "another process is working on this: try again later"}, 409)


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "this id is unknown"}, 404)


async def _no_result(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "this id has no result"}, 404)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidArgumentsError)
    return JSONResponse({"detail": [{"msg": problem} for problem in error.problems]}, 422)


async def _conflict(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "the current state does not allow this"}, 409)


async def _without_result(request: Request, error: Exception) -> Response:
    ended = "cancelled" if isinstance(error, TaskCancelled) else "not started in time"
    return JSONResponse({"detail": f"the task was {ended} and has no result"}, 409)


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
