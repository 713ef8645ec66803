"""Which page of the dashboard shows a thing. Pure."""

from __future__ import annotations

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


def page_of(kind: str, what: str) -> str:
    """Return the path of the page about a task or a finding; ``/`` if it has no page of its own.

    >>> page_of("lock", "lock:mutex:customer:c0"), page_of("scheduler", "leader")
    ('/locks/lock:mutex:customer:c0', '/')
    """
    if kind == "pause":
        kind, _, what = what.replace("task:", "class:", 1).partition(":")
    elif kind == "worker" and ":" in what:
        kind = "class"
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
            return "/schedules"
        case "sql", "dead letters":
            return "/dead-letters"
    return f"/{_FOLDERS[kind]}/{quote(what, safe=PLAIN)}" if kind in _FOLDERS else "/"
