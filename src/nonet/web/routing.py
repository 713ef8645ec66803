"""What the routes of all nouns have in common: routers, parameters, bodies and fields of forms."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import getdoc
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, StringConstraints, model_validator

from nonet.base.plain import plain
from nonet.operate.lists import PRINTABLE, Text as Text
from nonet.rules.permissions import Principal
from nonet.rules.viewing import seen

PREFIX = "/api/v1"

Id = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")]
"""An id of a task in a body."""
ClassName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=PRINTABLE)]
"""The name of a task class in a body."""
Seconds = Annotated[float, Field(ge=0, le=3653 * 86400, allow_inf_nan=False)]
"""A duration in seconds, at most ten years."""

TaskId = Annotated[str, Path(pattern=r"^[!-~]{1,128}$", description="Id of the task.")]

FormText = Annotated[Text, Form()]
"""A short text in a form, such as a reason."""

# Report more unknown fields than this as one error.
_FEW = 10


class Body(BaseModel, extra="forbid"):
    """The body of a request."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_unknown(cls, value: Any) -> Any:
        """Refuse many unknown fields at once: an error for each would cost seconds."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + _FEW:
            unknown = value.keys() - cls.model_fields.keys()
            few = ", ".join(repr(name)[:50] for name in sorted(unknown)[:3])
            raise ValueError(f"{len(unknown)} fields are not known, such as {few}")
        return value


class Reason(Body):
    """Why something is changed."""

    reason: Text = Field(default="", description="For people: it is shown and recorded.")


NO_REASON = Reason()


class Discard(Body):
    """How something is deleted."""

    why: Text = Field(default="", description="Why; events and audit record it.")


class Made(BaseModel):
    """A task that was submitted."""

    id: str = Field(description="Id of the new task.")


_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
# Retry-After is in seconds.
_RETRY = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}}
_ERRORS = {
    400: "The body is not JSON.",
    401: "No valid token or session.",
    403: "The token or user may not do this; see `detail`.",
    404: "Unknown.",
    409: "The current state does not allow this.",
    413: "The body is too long.",
    421: "The `Host` is none of this server's names; see `NONET_WEB_HOSTS`.",
    422: "A parameter, the body or an argument of a task is invalid; see `detail`.",
    429: "A ceiling is reached, or there are too many requests; see `Retry-After`.",
    503: "Redis or SQL does not answer, or is full; see `Retry-After`.",
}
# What changes nothing answers these with a path only.
_OF_CHANGES = (400, 404, 409, 413)


class _Route(APIRoute):
    """A route that its docstring describes, and whose caller `who` sees what it may see only."""

    def __init__(self, path: str, endpoint: Callable[..., Awaitable[Any]], **options: Any) -> None:
        if hasattr(endpoint, "__wrapped__"):  # a router that includes another one makes it again
            super().__init__(path, endpoint, **options)
            return

        @wraps(endpoint)
        async def answer(who: Principal, **values: Any) -> Any:
            found = seen(await endpoint(who=who, **values), who)
            if found is None or isinstance(found, Response):
                return found
            # As `--json` prints it. FastAPI would check each field against the schema, and refuse
            # bytes that are not UTF-8.
            return ascii_json(found, status)

        status = options.get("status_code") or 200
        summary, _, rest = (getdoc(endpoint) or "").partition("\n\n")
        is_change = set(options["methods"]) != {"GET"}
        errors = {
            status: {"description": text, "content": _PROBLEM}
            | ({"headers": _RETRY} if status in (429, 503) else {})
            for status, text in _ERRORS.items()
            if is_change or status not in _OF_CHANGES or (status == 404 and "{" in path)
        }
        options |= {
            "operation_id": options.get("name") or endpoint.__name__,
            "summary": " ".join(summary.split()),
            "description": rest or summary,
            "responses": {**(options.get("responses") or {}), **errors},
        }
        super().__init__(path, answer, **options)


def resource(tag: str) -> APIRouter:
    """Return the router of a kind of thing. The names of its functions are its operation ids."""
    return APIRouter(prefix=PREFIX, tags=[tag], route_class=_Route)


def ascii_json(content: Any, status: int = 200) -> Response:
    """Answer with values of tasks, whose bytes become lone surrogates that UTF-8 cannot encode."""
    return Response(json.dumps(plain(content)), status, media_type="application/json")
