"""Errors as responses: problem+json for programs, a page for people."""

from __future__ import annotations

import logging
import math

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from nonet.base.errors import (
    AdmissionRejected,
    BrokerFullError,
    ConfigurationError,
    ConflictError,
    InvalidArgumentsError,
    LimitImpossible,
    NonetError,
    NotFoundError,
    RegistrationError,
    ResultUnavailable,
    ServerUnreachableError,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    UnableToAcquireLockError,
    UnknownTaskError,
)
from nonet.web.api.problems import problem

logger = logging.getLogger(__name__)

# Suggested to clients while Redis or SQL does not answer or is full.
_UNAVAILABLE_SECONDS = 5
_STATUSES: dict[type[Exception], int] = {
    AdmissionRejected: 429,
    ServerUnreachableError: 503,
    BrokerFullError: 503,
    NotFoundError: 404,
    ResultUnavailable: 404,
    ConflictError: 409,
    UnableToAcquireLockError: 409,
    TaskFailed: 409,
    TaskCancelled: 409,
    TaskExpired: 409,
    InvalidArgumentsError: 422,
    LimitImpossible: 422,
    UnknownTaskError: 422,
    RegistrationError: 422,
    ConfigurationError: 422,
    ValueError: 422,
}


def install(app: FastAPI) -> None:
    """Answer the errors of Nonet and of HTTP as the caller expects them."""
    for kind in (NonetError, ValueError, TimeoutError, StarletteHTTPException):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(RequestValidationError, answer)


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, StarletteHTTPException):
        return error.status_code
    if isinstance(error, RequestValidationError):
        return 422
    found = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), None)
    if found is None:
        found = 503 if isinstance(error, TimeoutError) else 500
    return found


async def answer(request: Request, error: Exception) -> Response:
    """Return the response to a request that failed."""
    status = status_of(error)
    headers = dict(getattr(error, "headers", None) or {})
    if status in (429, 503):
        seconds = getattr(error, "retry_after", _UNAVAILABLE_SECONDS)
        headers.setdefault("Retry-After", str(max(1, math.ceil(seconds))))
    if status == 500:
        logger.error("request failed: path=%s", request.url.path, exc_info=error)
    detail = _detail(error)
    if request.url.path.removeprefix(request.scope.get("root_path", "")).startswith("/api/"):
        return problem(status, detail, headers=headers)
    from nonet.web.pages.rendering import render  # it imports the site, which imports this

    page = render(request, "error.html", status, detail=detail)
    page.headers.update(headers)
    return page


def _detail(error: Exception) -> str:
    if isinstance(error, HTTPException | StarletteHTTPException):
        return str(error.detail)
    if isinstance(error, RequestValidationError):
        return "; ".join(
            f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors()
        )
    return str(error)
