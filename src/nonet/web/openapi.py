"""``/api/v1/openapi.json``: describe all routes, their fields and their errors."""

from __future__ import annotations

import re
import textwrap
from functools import cache
from importlib import import_module
from inspect import cleandoc
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from nonet.web.resources import resources
from nonet.web.routing import resource
from nonet.web.site import Knower

router = resource("description")

_TEXT = """\
Submit tasks, ask how they are, and do what the dashboard does. Send `Authorization: Bearer TOKEN`.
Lists have pages: send `cursor` of an answer to get what follows. With `.csv` or `.jsonl` behind its
path a list is a file. Errors are problems (RFC 9457).
"""


class Problem(BaseModel):
    """An error (RFC 9457). That of a ceiling also has its numbers."""

    type: str
    title: str = Field(description="The phrase of the status.")
    status: int
    detail: str = Field(description="What is wrong, and the next step.")
    scope: str = Field("", description="Of a ceiling: what it counts.")
    active: int = Field(0, description="Of a ceiling: tasks that have not ended.")
    ceiling: int = Field(0, description="Of a ceiling: the most tasks.")
    wanted: int = Field(0, description="Of a ceiling: the tasks that it refused.")
    accepted: int = Field(0, description="Of a bulk: tasks submitted before.")


@router.get("/openapi.json")
async def describe_api(who: Knower) -> JSONResponse:
    """Return this description."""
    return JSONResponse(described())


@cache
def described() -> dict[str, Any]:
    """Return the description of the API as OpenAPI 3.1."""
    routes = [route for noun in resources() for route in noun.api.routes]
    found = get_openapi(
        title="Nonet",
        version="1",
        openapi_version="3.1.0",
        description=_TEXT,
        routes=[*routes, *router.routes],
    )
    found["security"] = [{"token": []}]
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schemas = found["components"]["schemas"]
    schemas["Problem"] = Problem.model_json_schema()
    for schema in schemas.values():
        _describe(schema)
    return found


def _describe(schema: dict[str, Any]) -> None:
    """Describe the fields of a dataclass by the section ``Attributes`` of its docstring."""
    text = schema.get("description", "")
    summary, fields = text.partition("\n\n")[0], _documented().get(text) or _attributes(text)
    if summary:
        schema["description"] = " ".join(summary.split())
    for name, property in schema.get("properties", {}).items():
        if name in fields and "$ref" not in property:
            property.setdefault("description", fields[name])


@cache
def _documented() -> dict[str, dict[str, str]]:
    """Return the descriptions of the fields of each view, also inherited ones, by its docstring."""
    found: dict[str, dict[str, str]] = {}
    for noun in resources():
        module = import_module(f"nonet.operate.{noun.__name__.rpartition('.')[2]}")
        for view in (item for item in vars(module).values() if isinstance(item, type)):
            fields: dict[str, str] = {}
            for one in view.__mro__[::-1]:
                fields |= _attributes(cleandoc(one.__doc__ or ""))
            found[cleandoc(view.__doc__ or "")] = fields
    return found


def _attributes(text: str) -> dict[str, str]:
    """Return the description of each name in the section ``Attributes`` of a docstring.

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
        names, colon, text = line.partition(": ")
        if colon:
            description = " ".join(text.split()).replace("``", "`")
            found |= dict.fromkeys((name.strip() for name in names.split(",")), description)
    return found
