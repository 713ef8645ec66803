"""Which page of the dashboard shows a thing. Pure."""

from __future__ import annotations

import re
from urllib.parse import quote

from nonet.base.streams import Size

PLAIN = ":@,~"
"""Characters that are not quoted in paths. A slash is, because names may have ``/../``."""

_FOLDERS = {
    "task": "tasks",
    "class": "classes",
    "lock": "locks",
    "limiter": "locks",
    "pipeline": "pipelines",
    "workflow": "workflows",
}


def page_of(kind: str, what: str, cause: str = "", *, has_letters: bool = False) -> str:
    """Return the path of the page about a task or a finding; ``/`` if it has no page of its own.

    Args:
        cause: of the finding. For failures of a class with one cause, which `fingerprint_of` made,
            the page lists them.
        has_letters: they are dead letters.

    >>> page_of("lock", "lock:mutex:customer:c0"), page_of("scheduler", "leader")
    ('/locks/lock:mutex:customer:c0', '/')
    >>> page_of("class", "a:B", "a:B 9e7ff739af7d1835", has_letters=True)
    '/dead-letters?cluster=9e7ff739af7d1835&task=a:B'
    """
    if kind == "pause":
        kind, _, what = what.replace("task:", "class:", 1).partition(":")
    name = quote(what, safe=PLAIN)
    if kind == "class" and (failures := re.fullmatch(r".* ([0-9a-f]{16})", cause)):
        if has_letters:
            return f"/dead-letters?cluster={failures[1]}&task={name}"
        return f"/history?state=dead&state=expired&since=1h&task={name}"
    if kind == "worker" and ":" in what:
        kind = "class"
    elif kind == "worker" and "@" in what:
        return f"/workers/{name}"
    match kind, what:
        case "stream", "quarantine":
            return "/quarantine"
        case "stream", _:
            return f"/streams/{what.replace(':', '/')}"
        case "worker", "deaths":
            return "/events?kind=worker-lost"
        case "worker" | "queue", _:
            return f"/workers?size={what}" if what in list(Size) else "/workers"
        case "workflow", "building" | "resuming":
            return f"/workflows?state={what}"
        case "class", "rare failures":
            return "/history?state=dead"
        case "tenant", _:
            return "/tenants"
        case "schedule", _:
            return f"/schedules?task={name}"
        case "sql", "dead letters":
            return "/dead-letters"
    return f"/{_FOLDERS[kind]}/{name}" if kind in _FOLDERS else "/"
