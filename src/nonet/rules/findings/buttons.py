"""The button of a page that does what a command does. Pure."""

from __future__ import annotations

import shlex
from urllib.parse import quote, urlencode

from msgspec import Struct

from nonet.rules.page_paths import PLAIN
from nonet.rules.pauses import EVERYTHING
from nonet.rules.permissions import Action


class Button(Struct, frozen=True):
    """A button beside a command.

    Attributes:
        text: what it says; with an ellipsis it first asks, or shows what would change.
        action: the permission that it needs.
        path: of the form that it sends, or of the page that it opens.
        fields: of the form; None: it opens a page.
        asks: the question before it is sent; empty: it asks nothing, because it can be undone.
    """

    text: str
    action: Action
    path: str
    fields: dict[str, str] | None = None
    asks: str = ""


def button_of(command: str) -> Button | None:
    """Return the button that does what a suggested command does; None: a page cannot do it.

    >>> button_of("task-run resume --stream normal:small").fields
    {'what': 'stream:normal:small'}
    >>> button_of("task-run limits unset limiter:conc:job:7").path, button_of("task-scheduler")
    ('/limits/unset', None)
    """
    match [word for word in shlex.split(command) if word != "--"]:
        case ["task-run", "resume", option, *name]:
            what = ":".join([option.removeprefix("--"), *name]) if name else EVERYTHING
            return Button("Resume", Action.PAUSE, "/pauses/resume", {"what": what})
        case ["task-run", "pause", "--task", name]:
            asks = f"No further task of {name} starts until it is resumed. Running ones continue."
            return Button("Pause …", Action.PAUSE, "/pauses/pause", {"what": f"task:{name}"}, asks)
        case ["task-run", "cancel", id]:
            asks = f"Task {id} does not run any further. If it runs, its worker ends it."
            return Button("Cancel …", Action.CANCEL, f"/tasks/{_quoted(id)}/cancel", {}, asks)
        case ["task-run", "limits", "unset", name]:
            return Button("Unset limit", Action.LIMIT, "/limits/unset", {"name": name})
        case ["task-run", "limits", "show", name]:
            return Button("Change …", Action.LIMIT, f"/limits/edit?{urlencode({'name': name})}")
        case ["task-run", "workflows", "resume", id]:
            return Button("Resume", Action.RESUBMIT, f"/workflows/{_quoted(id)}/resume", {})
        case ["task-run", "schedules", "resume", task]:
            query = urlencode({"task": task, "state": "paused"})
            return Button("Resume …", Action.PAUSE, f"/schedules?{query}")
        case ["task-run", "locks", "release", lock]:
            return Button("Release …", Action.RELEASE, f"/release/{_quoted(lock)}")
    return None


def _quoted(name: str) -> str:
    return quote(name, safe=PLAIN)
