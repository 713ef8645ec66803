"""What a daemon answers over HTTP: `Answer`, and the pages that make one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from msgspec import Struct


class Answer(Struct, frozen=True):
    """The response to a request."""

    content: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "application/json"

    @classmethod
    def json(cls, body: Mapping[str, Any], *, is_fine: bool = True) -> Answer:
        """Return one line of JSON; the status is 503 if `is_fine` is false."""
        status = HTTPStatus.OK if is_fine else HTTPStatus.SERVICE_UNAVAILABLE
        return cls(json.dumps(body, default=str).encode() + b"\n", status)


Page = Callable[[str], Answer]
"""Answers a path, given the ``Accept`` header; called in a thread, where it must not block."""
