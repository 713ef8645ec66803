"""Nonet in a FastAPI application: opened with it, at hand in routes, its refusals as responses.

Example:
    app = FastAPI(lifespan=lifespan(tasks=("mypackage.tasks",)))
    install(app)

    @app.post("/removals", status_code=202)
    async def remove(lfn: str, nonet: NonetApp) -> dict[str, str]:
        return {"task": await nonet.submit(RemoveFile("CERN-DST", lfn))}
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

# Until Redis, or SQL, is likely to answer again, or has room again.
_UNAVAILABLE_SECONDS = 5

Lifespan: TypeAlias = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def lifespan(nonet: Nonet | None = None, **options: Any) -> Lifespan:
    """A lifespan that opens Nonet before the first request and closes it after the last.

    Args:
        nonet: an application that is not open yet; None: one of `options` and the environment.
        options: fields of `nonet.Settings`, e.g. ``tasks=("mypackage.tasks",)``.

    Returns:
        What ``FastAPI(lifespan=…)`` takes. A lifespan of your own enters it, by
        ``async with lifespan(…)(app): yield``.

    Raises:
        ConfigurationError: a setting does not fit.
        RegistrationError: a task class cannot be registered.
        TypeError: both `nonet` and `options` are given.

    Example:
        web = FastAPI(lifespan=lifespan(namespace="test"))
        install(web)
    """
    if nonet is not None and options:
        raise TypeError(f"lifespan: {', '.join(options)} would be ignored: nonet has its settings")
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
        connection: the request or websocket, which FastAPI gives.

    Raises:
        NotBoundError: the application has no `lifespan` of Nonet.

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
    @web.post("/removals", status_code=202)
    async def remove(lfn: str, nonet: NonetApp) -> dict[str, str]:
        return {"task": await nonet.submit(RemoveFile("CERN-DST", lfn))}
"""


def install(app: FastAPI) -> None:
    """Answer requests that Nonet refuses with what HTTP has for it.

    ``AdmissionRejected`` is 429 with ``Retry-After`` and the numbers; a server that does not
    answer, or is full, 503 with ``Retry-After``; a lock that somebody else holds, and what has
    ended otherwise than is asked for, 409; what is not known, such as a task, or its result, 404;
    arguments and ids that do not fit 422, with the reasons. None of them tells clients the names
    of servers or of who holds a lock. Other errors stay 500: they are of the task or of the
    application, not of the request.

    Args:
        app: the application of FastAPI.

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
    assert isinstance(error, AdmissionRejected)  # it is installed for that
    content = {
        "detail": error.brief,
        "active": error.active,
        "ceiling": error.ceiling,
        "scope": error.scope,
    }
    return JSONResponse(content, 429, _retry_after(error.retry_after))


async def _unavailable(request: Request, error: Exception) -> Response:
    content = {"detail": "the task system cannot take this now"}
    return JSONResponse(content, 503, _retry_after(_UNAVAILABLE_SECONDS))


async def _locked(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "somebody else is working on this: try again later"}, 409)


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "there is none of this id"}, 404)


async def _no_result(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "there is no result of this id"}, 404)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidArgumentsError)  # it is installed for that
    return JSONResponse({"detail": [{"msg": problem} for problem in error.problems]}, 422)


async def _conflict(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "it is in a state in which this cannot be done"}, 409)


async def _without_result(request: Request, error: Exception) -> Response:
    ended = "cancelled" if isinstance(error, TaskCancelled) else "not started in time"
    return JSONResponse({"detail": f"it was {ended}: it has no result"}, 409)


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
