"""Render templates: filters, the navigation, and values that every page has."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context, select_autoescape
from jinja2.runtime import Context
from markupsafe import Markup, escape

from nonet.base.amounts import format_bytes
from nonet.base.plain import instant, plain
from nonet.operate.lists import MOST_LINES, Selection
from nonet.rules.page_paths import PLAIN
from nonet.rules.permissions import Action
from nonet.rules.viewing import seen
from nonet.web.access.requests import base_of, is_secure
from nonet.web.site import crossed, get_site

REFRESH = "Nonet-Refresh"
"""The header of a request by which an open page reads itself again."""
MESSAGE = "nonet_message"
"""The cookie with what the next page tells once: its browser has just changed something."""

# Control characters, lone surrogates, and what changes the direction or is invisible.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)
_ZONE = "nonet_zone"
_MARK = re.compile("<([a-z_]+)>")
_CELL = re.compile(r"<tr\b|<t[dh]\b")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ")
# A name breaks behind its separators; a part that is long breaks before capitals, or anywhere.
_JOINT = re.compile(r"(?<=[:/.@_=,])(?=\w)")
_LONG = re.compile(r"\w{18,}")
_INNER = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=\w{32})(?=\w)")
_TEMPLATES = Path(__file__).parent / "templates"


class Item(NamedTuple):
    """An entry of the navigation: the name of its route, its text, and the key that opens it."""

    route: str
    text: str
    key: str
    action: Action = Action.READ


NAVIGATION = (
    Item("overview", "Overview", "o"),
    Item("tasks", "Tasks", "t"),
    Item("classes", "Classes", "c"),
    Item("workers", "Workers", "w"),
    Item("locks", "Locks", "l"),
    Item("limits", "Limits", "i"),
    Item("tenants", "Tenants", "n"),
    Item("schedules", "Schedules", "s"),
    Item("pipelines", "Pipelines", "p"),
    Item("delayed", "Delayed", "y"),
    Item("groups", "Groups", "g"),
    Item("workflows", "Workflows", "f"),
    Item("dead_letters", "Dead letters", "d"),
    Item("quarantine", "Quarantine", "q"),
    Item("events", "Events", "e"),
    Item("audit", "Audit", "a", Action.AUDIT),
)
"""The pages that every page links to. A new page adds itself here."""


@pass_context
def when(context: Context, instant: datetime) -> str:
    """Show a time in the zone of the viewer, as all pages do."""
    return f"{instant.astimezone(context['zone']):%Y-%m-%d %H:%M:%S %Z}"


def exact(instant: datetime) -> str:
    """Show a time in UTC with milliseconds."""
    found = instant.astimezone(UTC)
    return f"{found:%Y-%m-%d %H:%M:%S}.{found.microsecond // 1000:03} UTC"


@pass_context
def timed(context: Context, text: str) -> Markup:
    """Show the times in a sentence as `when` does; rules write them in UTC, for terminals, too."""

    def shown(found: re.Match[str]) -> str:
        try:
            at = datetime.fromisoformat(found[0])
        except ValueError:  # no time, but a text of a task
            return found[0]
        title, text = exact(at), when(context, at)
        return f'<time datetime="{at.isoformat()}" title="{title}">{text}</time>'

    return Markup(_INSTANT.sub(shown, str(escape(text))))


def name_of_zone(zone: ZoneInfo) -> str:
    """Return the short name that a zone has now, such as CET."""
    return f"{datetime.now(zone):%Z}"


def labelled(rows: str, columns: Sequence[str]) -> Markup:
    """Name the column in each cell of a table: narrow screens show rows as cards, without heads.

    >>> labelled("<tr><th>a</th><td>1</td></tr>", ["Task", "#Attempts"])
    Markup('<tr><th>a</th><td data-label="Attempts">1</td></tr>')
    """
    names = iter(columns)

    def mark(found: re.Match[str]) -> str:
        nonlocal names
        if found[0] == "<tr":
            names = iter(columns)
            return found[0]
        label = escape(next(names, "").removeprefix("#"))
        return f'<td data-label="{label}"' if found[0] == "<td" else found[0]

    return Markup(_CELL.sub(mark, rows))


def breakable(text: str) -> Markup:
    """Let a name break between its parts, never inside of a word.

    >>> breakable("shop:SendMail, shop:SendReminderOfInvoice")
    Markup('shop:<wbr>SendMail, shop:<wbr>Send<wbr>Reminder<wbr>Of<wbr>Invoice')
    """
    wbr = Markup("<wbr>")
    parts = _JOINT.split(text)
    return wbr.join(wbr.join(_INNER.split(part)) if _LONG.search(part) else part for part in parts)


def duration(seconds: float | None) -> str:
    """Show a duration in its two largest units.

    >>> duration(0.0123), duration(5), duration(75), duration(7260), duration(90_000)
    ('12 ms', '5.0 s', '1 min 15 s', '2 h 1 min', '1 d 1 h')
    """
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for unit, size, small, smaller in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // smaller:.0f} {small}"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def amount(number: float) -> str:
    """Show a number with thin spaces between thousands.

    >>> amount(1234567)
    '1\\u202f234\\u202f567'
    """
    return f"{number:,.0f}".replace(",", "\u202f")


def figure(number: float) -> str:
    """Show a rate or a share, with two digits if it is small.

    >>> figure(0.0496), figure(12.3), figure(0)
    ('0.05', '12', '0')
    """
    return amount(number) if number >= 10 or not number else f"{number:.2g}"


def inert(value: Any) -> Any:
    r"""Escape characters of a text that would change how a page shows the text around them.

    Control characters and marks of the direction of writing come from the names and errors of
    tasks. The browser would obey them.

    >>> inert("caf\xe9\n\u202e\x1b"), inert(7)
    ('café\n\\u202e\\x1b', 7)
    """
    if not isinstance(value, str) or not _OBEYED.search(value):
        return value
    escaped = _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), value)
    return Markup(escaped) if isinstance(value, Markup) else escaped


def short(text: str, most: int = 200) -> str:
    """Return the first line of a text, cut to `most` characters."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= most else f"{line[: most - 1]}…"


def indented(value: Any) -> str:
    """Show arguments or a result as JSON."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False)


def linked(query: Selection, **changes: object) -> str:
    """Return the end of an address that asks for a query, with some fields changed.

    >>> from nonet.operate.lists import ListQuery
    >>> linked(ListQuery(limit=5), cursor="a")
    '?limit=5&cursor=a'
    """
    fields = {**query.model_dump(mode="json", exclude_defaults=True), **changes}
    given = {name: value for name, value in fields.items() if value not in ("", None)}
    return f"?{urlencode(given, doseq=True)}"


def filters(query: Selection) -> list[tuple[str, object]]:
    """Return the filters of a query as fields of a form."""
    fields = query.model_dump(mode="json", exclude_defaults=True, exclude={"limit", "cursor"})
    lists = {name: v if isinstance(v, list) else [v] for name, v in fields.items()}
    return [(name, value) for name, values in lists.items() for value in values]


@dataclass(frozen=True, slots=True)
class Message:
    """What the next page tells once, e.g. what a change did. `kind` is ``good`` or ``bad``."""

    text: str
    kind: str = "good"


def back(request: Request, path: str, text: str, kind: str = "good") -> RedirectResponse:
    """Redirect after a change to a page, which shows `text` once, and what crossed the change.

    Args:
        path: of the page, from the ``url`` of a template or `path_of`.
    """
    answer = RedirectResponse(path, 303)
    text += f" ({crossed.get()})" if crossed.get() else ""
    value = base64.urlsafe_b64encode(json.dumps([text[:1000], kind]).encode()).decode()
    answer.set_cookie(MESSAGE, value, max_age=30, **_attributes(request))
    return answer


def remember(request: Request, answer: Response, name: str, value: str) -> None:
    """Let a browser remember a choice for a year; an empty value forgets it."""
    seconds = 365 * 86_400 if value else 0
    answer.set_cookie(f"nonet_{name}", value, max_age=seconds, **_attributes(request))


def remembered(request: Request, name: str) -> str:
    """Return what a browser remembers, which may be made up; empty: nothing."""
    return request.cookies.get(f"nonet_{name}", "")


def _attributes(request: Request) -> dict[str, Any]:
    """Return those of the cookie of a message: other pages of this host do not get it."""
    settings = get_site(request).settings
    return {
        "path": base_of(request.scope) or "/",
        "secure": is_secure(request, settings),
        "httponly": True,
        "samesite": "strict",
    }


def path_of(request: Request, route: str, /, **parameters: Any) -> str:
    """Return the path of a route, below the path of the dashboard."""
    quoted = {
        name: quote(value, safe=PLAIN) if isinstance(value, str) and route != "static" else value
        for name, value in parameters.items()
    }
    base: str = request.scope.get("root_path", "")
    shape = _shape_of(request.app, route, *parameters)
    if shape is None:
        return f"{base}{request.app.url_path_for(route, **quoted)}"
    return base + _MARK.sub(lambda mark: str(quoted[mark[1]]), shape)


def _shape_of(app: FastAPI, *key: str) -> str | None:
    """Return the path of a route with marks for its parameters; None: it takes numbers.

    The framework would search all routes for each link of a long list.

    Args:
        key: the names of the route and of its parameters.
    """
    if not hasattr(app.state, "shapes"):
        app.state.shapes = {}
    shapes: dict[tuple[str, ...], str | None] = app.state.shapes
    if key not in shapes:
        marks = {name: f"<{name}>" for name in key[1:]}
        shapes[key] = None
        with suppress(ValueError):
            shapes[key] = str(app.url_path_for(key[0], **marks))
    return shapes[key]


def _messages_of(request: Request) -> list[Message]:
    try:
        text, kind = json.loads(base64.urlsafe_b64decode(request.cookies.get(MESSAGE, "")))
        return [Message(str(text), "bad" if kind == "bad" else "good")]
    except (ValueError, TypeError, RecursionError):  # there is none, or it is made up
        return []


def _zone_of(request: Request) -> ZoneInfo:
    """Return the time zone that the viewer has chosen; UTC if there is no such zone."""
    try:
        return ZoneInfo(request.cookies.get(_ZONE, "UTC"))
    except (KeyError, ValueError, OSError):
        return ZoneInfo("UTC")


def render(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Render a template for the caller of a request; answer 304 if the caller has the result.

    Templates have, besides `values`: ``request``, ``site``, ``who`` (the `Principal`), ``may``
    (takes the name of an action), ``url`` (takes the name of a route and its parameters),
    ``zone`` (in which the viewer wishes times), and ``navigation``.
    """
    site, who = get_site(request), getattr(request.state, "principal", None)
    base: str = request.scope.get("root_path", "")

    # An open page shows only some sections of the answer: leave the message to the next whole page.
    messages = [] if REFRESH in request.headers else _messages_of(request)

    def allowed(action: str) -> bool:
        return who is not None and who.may(Action(action)) and site.is_writable(Action(action))

    if who is not None:
        values = {name: seen(value, who) for name, value in values.items()}
    content = _environment.get_template(template).render(
        request=request,
        site=site,
        who=who,
        may=allowed,
        url=partial(path_of, request),
        base=base,
        zone=_zone_of(request),
        page=getattr(request.scope.get("route"), "name", ""),
        navigation=[item for item in NAVIGATION if allowed(item.action)],
        csrf=getattr(request.state, "csrf", ""),
        messages=messages,
        **{"status": status, **values},
    )
    # Weak, because a proxy that compresses pages would replace a strong one.
    etag = f'W/"{hashlib.sha256(content.encode()).hexdigest()[:32]}"'
    headers = {"Cache-Control": "no-store", "ETag": etag}
    if status == 200 and request.headers.get("If-None-Match") == etag:
        return Response(status_code=304, headers=headers)
    answer = HTMLResponse(content, status, headers)
    if messages:
        answer.delete_cookie(MESSAGE, **_attributes(request))
    return answer


_environment = Environment(
    loader=FileSystemLoader(_TEMPLATES),
    autoescape=select_autoescape(default=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=inert,
)
_environment.globals["most_lines"] = MOST_LINES
_environment.filters.update(
    when=when,
    exact=exact,
    timed=timed,
    name_of_zone=name_of_zone,
    labelled=labelled,
    breakable=breakable,
    short=short,
    linked=linked,
    filters=filters,
    instant=instant,
    duration=duration,
    amount=amount,
    figure=figure,
    indented=indented,
    bytes=format_bytes,
)
