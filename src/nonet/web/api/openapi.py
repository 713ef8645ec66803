"""``/api/v1/openapi.json``: describe all routes, their fields and their errors."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from nonet.rules.permissions import Action, Principal
from nonet.web.api.routing import resource
from nonet.web.site import may

router = resource("description")

_PROBLEM = "application/problem+json"
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
_TEXT = """\
Submit tasks, ask how they are, and do what the dashboard does. Send `Authorization: Bearer TOKEN`.
Lists have pages: send `cursor` of an answer to get what follows. Errors are problems (RFC 9457).
"""
# Retry-After is in seconds.
_HEADER = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}}
_CHANGES = ("post", "put", "delete")


@router.get("/openapi.json")
async def describe_api(who: Annotated[Principal, may(Action.READ)]) -> JSONResponse:
    """Return this description."""
    return JSONResponse(described())


@cache
def described() -> dict[str, Any]:
    """Return the description of the API as OpenAPI 3.1."""
    from nonet.web.api import routers  # it imports this

    routes = [route for each in routers() for route in each.routes if isinstance(route, APIRoute)]
    found = get_openapi(
        title="Nonet", version="1", openapi_version="3.1.0", description=_TEXT, routes=routes
    )
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = _problem()
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    found["security"] = [{"token": []}]
    for route in routes:
        for method in map(str.lower, route.methods or ()):
            operation = found["paths"][route.path_format][method]
            summary, _, rest = operation["description"].partition("\n\n")
            operation |= {"operationId": route.name, "summary": " ".join(summary.split())}
            operation["description"] = rest or summary
            operation["responses"] |= dict(_errors(route.path, method, operation))
    _describe(schemas, routes)
    return found


def _errors(path: str, method: str, operation: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the errors that an operation can answer."""
    wanted = {401, 403, 421, 422, 429, 503}
    wanted |= {404} if "{" in path or method in _CHANGES else set()
    wanted |= {409} if method in _CHANGES else set()
    wanted |= {400, 413} if "requestBody" in operation else set()
    schema = {"$ref": "#/components/schemas/Problem"}
    for status in sorted(wanted):
        answer = {"description": _ERRORS[status], "content": {_PROBLEM: {"schema": schema}}}
        yield str(status), answer | ({"headers": _HEADER} if status in (429, 503) else {})


def _problem() -> dict[str, Any]:
    text, number = {"type": "string"}, {"type": "integer"}
    return {
        "type": "object",
        "title": "Problem",
        "description": "An error (RFC 9457). That of a ceiling also has its numbers.",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": text,
            "title": text | {"description": "The phrase of the status."},
            "status": number,
            "detail": text | {"description": "What is wrong, and the next step."},
            "scope": text | {"description": "Of a ceiling: what it counts."},
            "active": number | {"description": "Of a ceiling: tasks that have not ended."},
            "ceiling": number | {"description": "Of a ceiling: the most tasks."},
            "wanted": number | {"description": "Of a ceiling: the tasks that it refused."},
            "accepted": number | {"description": "Of a bulk: tasks submitted before."},
        },
    }


def _describe(schemas: dict[str, Any], routes: list[APIRoute]) -> None:
    """Describe the fields of our dataclasses by the section ``Attributes`` of their docstrings."""
    known = {cls.__name__: cls for route in routes for cls in _classes(route.response_model)}
    for name, schema in schemas.items():
        cls = known.get(name)
        text = inspect.getdoc(cls) if cls else None
        if not text:
            continue
        summary, _, rest = text.partition("\n\n")
        schema["description"] = " ".join(summary.split())
        fields = _attributes(rest)
        for field, property in schema.get("properties", {}).items():
            if field in fields and "$ref" not in property:
                property.setdefault("description", fields[field])


def _classes(hint: Any, met: set[Any] | None = None) -> Iterator[type]:
    """Yield the classes in an annotation, and those of their fields."""
    met = set() if met is None else met
    if hint in met:
        return
    met.add(hint)
    for part in getattr(hint, "__args__", ()) or ():
        yield from _classes(part, met)
    if isinstance(hint, type) and hint.__module__.startswith("nonet."):
        yield hint
        for part in _hints(hint):
            yield from _classes(part, met)


def _hints(cls: type) -> list[Any]:
    if hasattr(cls, "model_fields"):
        return [field.annotation for field in cls.model_fields.values()]
    try:
        return list(inspect.get_annotations(cls, eval_str=True).values())
    except NameError:
        return []


def _attributes(text: str) -> dict[str, str]:
    """Return what the section ``Attributes`` of a docstring says of each name.

    >>> _attributes('''Attributes:
    ...     id, name: of
    ...         the task.
    ...     state: ``queued``.
    ... ''')
    {'id': 'of the task.', 'name': 'of the task.', 'state': '`queued`.'}
    """
    _, _, section = f"\n{text}".partition("\nAttributes:\n")
    section = section.partition("\n\n")[0]
    lines = re.split(r"\n(?=\S)", textwrap.dedent(section).strip())
    found: dict[str, str] = {}
    for line in lines:
        names, colon, said = line.partition(": ")
        if colon:
            told = " ".join(said.split()).replace("``", "`")
            found |= dict.fromkeys((name.strip() for name in names.split(",")), told)
    return found
