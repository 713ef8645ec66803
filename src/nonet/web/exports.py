"""Each list of the API as a file: ``/api/v1/LIST.csv`` and ``/api/v1/LIST.jsonl``."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from inspect import get_annotations, unwrap
from typing import Any

from fastapi import APIRouter
from fastapi.params import Query
from fastapi.responses import Response

from nonet.base.plain import plain
from nonet.operate.lists import MOST_LINES, ListQuery
from nonet.rules.permissions import Principal
from nonet.rules.viewing import seen
from nonet.web.resources import resources

_PAGE = 1000
# How long a list is searched: a filter can match nothing in a million tasks.
_SECONDS = 10.0
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def router() -> APIRouter:
    """Return the routes of all lists. They come before the API, whose ids match any path."""
    made = APIRouter(include_in_schema=False)
    for route in (route for noun in resources() for route in noun.api.routes):
        listing = unwrap(route.endpoint)
        if "GET" not in route.methods or not _is_list(listing):
            continue
        for form, write in (("csv", as_csv), ("jsonl", as_lines)):
            endpoint = _exporting(listing, route.path.rpartition("/")[2], form, write)
            name = f"{route.name}_{form}"
            made.add_api_route(f"{route.path}.{form}", endpoint, name=name, response_model=None)
    return made


def _is_list(listing: Callable[..., Any]) -> bool:
    query = get_annotations(listing, eval_str=True).get("query")
    is_query = any(isinstance(item, Query) for item in getattr(query, "__metadata__", ()))
    return is_query and issubclass(query.__origin__, ListQuery)  # type: ignore[union-attr]


def _exporting(
    listing: Callable[..., Awaitable[Any]],
    noun: str,
    form: str,
    write: Callable[[Sequence[Mapping[str, Any]]], str],
) -> Callable[..., Awaitable[Response]]:
    @wraps(listing)
    async def export(who: Principal, query: ListQuery, **values: Any) -> Response:
        most = query.limit if "limit" in query.model_fields_set else MOST_LINES
        rows, end, cursor = list[Any](), time.monotonic() + _SECONDS, query.cursor
        while True:
            part = {"limit": min(_PAGE, most - len(rows)), "cursor": cursor}
            found = await listing(who=who, query=query.model_copy(update=part), **values)
            rows += [plain(item) for item in seen(found.items, who)]
            cursor = found.cursor or ""
            if not cursor or len(rows) >= most or time.monotonic() > end:
                break
        name = f"{noun}-first-{len(rows)}" if cursor else noun
        headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
        headers |= {"Nonet-Cursor": cursor} if cursor else {}
        kind = "text/csv" if form == "csv" else "application/jsonl"
        return Response(write(rows).encode("utf-8", "replace"), 200, headers, kind)

    return export


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Write rows with a line of headings; what is no text or number is JSON.

    >>> as_csv([{"id": "a", "error": "=1+1", "labels": {"run": 7}, "due": None, "attempt": -1}])
    'id,error,labels,due,attempt\r\na,\'=1+1,"{""run"": 7}",,-1\r\n'
    """
    text = io.StringIO()
    writer = csv.writer(text)
    for row in rows[:1]:
        writer.writerow(row)
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return json.dumps(value) if isinstance(value, dict | list | bool) else value


def as_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Write each row as JSON in a line of its own.

    >>> as_lines([{"id": "a"}, {"id": "b"}])
    '{"id": "a"}\n{"id": "b"}\n'
    """
    return "".join(f"{json.dumps(row)}\n" for row in rows)
