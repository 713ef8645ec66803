"""Errors as responses: problem+json for programs, a page for people."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from nonet.base.errors import (
    AdmissionRejected,
    NonetError,
    NotConfirmedError,
    ServerUnreachableError,
    listed,
)
from nonet.web import statuses
from nonet.web.rendering import render

logger = logging.getLogger(__name__)


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
    found = statuses.status_of(error)
    if found is None and isinstance(error, TimeoutError):
        return 503
    return found or (422 if isinstance(error, ValueError) else 500)


async def answer(request: Request, error: Exception) -> Response:
    """Return the response to a request that failed."""
    status = status_of(error)
    headers = dict(getattr(error, "headers", None) or {})
    if status in (429, 503):
        headers = {**statuses.retry_after(error), **headers}
    if status == 503:
        logger.warning("request failed: path=%s error=%s", request.url.path, error)
    if status == 500:
        logger.error("request failed: path=%s", request.url.path, exc_info=error)
    # The text of an unexpected error may hold anything; it is in the log.
    detail = _detail(error) if status != 500 else "an error of this server: see its log"
    if request.url.path.removeprefix(request.scope.get("root_path", "")).startswith("/api/"):
        return problem(status, detail, headers=headers, **_numbers(error))

    page = render(request, "error.html", status, detail=detail)
    page.headers.update(headers)
    return page


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None, **fields: Any
) -> JSONResponse:
    """Return an error as ``application/problem+json`` (RFC 9457).

    Args:
        status: of HTTP.
        detail: what is wrong, and the next step.
        fields: further members of the object.
    """
    content = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        # A text of the caller may have lone surrogates, which no answer can contain.
        "detail": detail.encode(errors="backslashreplace").decode(),
        **fields,
    }
    return JSONResponse(content, status, dict(headers or {}), media_type="application/problem+json")


def _detail(error: Exception) -> str:
    if isinstance(error, HTTPException | StarletteHTTPException):
        return str(error.detail)
    if isinstance(error, RequestValidationError):
        return listed(
            f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors()
        )
    if isinstance(error, ServerUnreachableError) and not isinstance(error, NotConfirmedError):
        # The error itself, which the log has, names the server.
        problem = error.way_out or "does not answer: try again later, or see 'task-run doctor'"
        return f"{error.server or 'SQL'} {problem}"
    return str(error)


def _numbers(error: Exception) -> dict[str, Any]:
    """Return what programs want to know of a ceiling that refuses a task."""
    if not isinstance(error, AdmissionRejected):
        return {}
    names = ("scope", "active", "ceiling", "wanted", "accepted")
    return {name: getattr(error, name) for name in names}
