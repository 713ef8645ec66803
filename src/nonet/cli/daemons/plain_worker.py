"""Start one worker from an ordinary command line without typer.

Typer and pydantic, with which it checks options, take 100 ms and 10 MB of a worker that needs
neither. `task-worker` documents the options, and reads every command line that is refused here:
help, mistakes, fleets, pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from nonet.base.streams import Size

# At least 1, at most what typer accepts, too.
_WHOLE = re.compile(r"[1-9][0-9]{0,3}")
_SECONDS = re.compile(r"[1-9][0-9]{0,5}(\.[0-9]{1,6})?")
_TEXT = re.compile(r"[^-].*")

_OPTIONS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "size": (re.compile("|".join(Size)), Size),
    "namespace": (_TEXT, str),
    "state_dir": (_TEXT, str),
    "grace": (_SECONDS, float),
    "metrics_port": (_WHOLE, int),
    "concurrency": (_WHOLE, int),
    "idle_exit": (_SECONDS, float),
    "max_lifetime": (_SECONDS, float),
    "fleet_line": (_WHOLE, int),
}
_SETTINGS = ("namespace", "state_dir", "grace", "metrics_port", "tasks")


def read(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the values of the options; None if typer has to read the command line.

    >>> read(["--size", "small", "--tasks=a,b", "--tasks", "c"])
    {'tasks': ('a', 'b', 'c'), 'size': <Size.SMALL: 'small'>}
    >>> read(["--size", "tiny"]), read(["--help"]), read(["--size"])
    (None, None, None)
    """
    found: dict[str, Any] = {"tasks": ()}
    left = iter(arguments)
    for argument in left:
        option, equals, value = argument.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if argument == "--debug":
            found["debug"] = True
            continue
        if not option.startswith("--") or "_" in option:
            return None
        value = value if equals else next(left, "")
        if name == "tasks" and _TEXT.fullmatch(value):
            found[name] += tuple(part.strip() for part in value.split(","))
            continue
        pattern, read_value = _OPTIONS.get(name, (None, str))
        if pattern is None or name in found or not pattern.fullmatch(value):
            return None
        found[name] = read_value(value)
    return found if "size" in found else None


def work(found: dict[str, Any]) -> None:
    """Run the worker of `read`, and end the process."""
    from nonet.cli.daemons import working  # slow, and typer may have to read the line

    size = found.pop("size")
    settings = {name: found.pop(name, None) or None for name in _SETTINGS}
    arguments = working.WorkerArguments(settings=settings, **found)
    working.run_worker(size, [], arguments)
