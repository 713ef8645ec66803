"""Errors as ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None, **fields: Any
) -> JSONResponse:
    """Return an error response.

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
