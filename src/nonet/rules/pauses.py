"""The pauses of operators: everything, a stream, a task class or a pipeline. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nonet.base.errors import ConfigurationError, suggestion
from nonet.base.streams import Priority, Size

EVERYTHING = "all"
_KINDS = ("stream", "task", "pipeline")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PIPELINE = re.compile(r"[\w.-]{1,60}")
_NAME = re.compile(r"([^\W\d]\w*:)?[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of some tasks.

    Attributes:
        what: ``all``, ``stream:PRIORITY:SIZE``, ``task:NAME`` or ``pipeline:NAME``.
        since: start of the pause.
        who: the operator, ``user@host pid``.
        reason: for people; may be empty.
    """

    what: str
    since: datetime
    who: str
    reason: str = ""

    @property
    def words(self) -> str:
        """What is paused, for people."""
        return in_words(self.what)

    def encode(self) -> str:
        """Return the value in Redis: ``at (µs)|who|reason``."""
        return f"{(self.since - _EPOCH) // timedelta(microseconds=1)}|{self.who}|{self.reason}"

    @classmethod
    def decode(cls, what: str, value: str) -> Pause:
        """Parse what `encode` made.

        >>> found = Pause.decode("task:Audit", "0|ann@host 7|a | b")
        >>> found.since.year, found.who, found.reason
        (1970, 'ann@host 7', 'a | b')

        Raises:
            ValueError: no operator can pause this.
        """
        if what != EVERYTHING and what.partition(":")[0] not in _KINDS:
            raise ValueError(what)
        at, who, reason = [*value.split("|", 2), "", ""][:3]
        since = _EPOCH + timedelta(microseconds=int(at) if at.isdecimal() else 0)
        return cls(what, since, who, reason)


def one_line(who: str, reason: str) -> tuple[str, str]:
    """Clean operator and reason for `Pause.encode`: no line breaks, and no ``|`` in the operator.

    >>> one_line("ann|x@host 7", "disk full |\\n soon")
    ('ann/x@host 7', 'disk full | soon')
    """
    return " ".join(who.replace("|", "/").split()), " ".join(reason.split())


def in_words(what: str) -> str:
    """Return what is paused, for people.

    >>> in_words("all"), in_words("stream:normal:small"), in_words("task:Audit")
    ('everything', 'stream normal:small', 'task Audit')
    """
    return "everything" if what == EVERYTHING else what.replace(":", " ", 1)


def as_option(what: str) -> str:
    """Return the option of ``task-run pause`` and ``resume`` for it.

    >>> as_option("all"), as_option("stream:normal:small"), as_option("task:Audit")
    ('--all', '--stream normal:small', '--task Audit')
    """
    return "--all" if what == EVERYTHING else "--" + what.replace(":", " ", 1)


def in_full(pause: Pause) -> str:
    """Describe a pause.

    >>> in_full(Pause.decode("all", "0|me@host|tape"))
    'everything is paused since 1970-01-01 00:00:00Z by me@host: tape'
    """
    reason = f": {pause.reason}" if pause.reason else ""
    return (
        f"{in_words(pause.what)} is paused since {pause.since:%Y-%m-%d %H:%M:%SZ} "
        f"by {pause.who}{reason}"
    )


def streams(pattern: str) -> list[str]:
    """Expand a pattern ``PRIORITY:SIZE``, in which either part may be ``*``.

    Raises:
        ConfigurationError: the priority or size does not exist.

    >>> streams("background:*")
    ['stream:background:small', 'stream:background:medium', 'stream:background:large']
    """
    priority, _, size = pattern.partition(":")
    for written, known in ((priority, list(Priority)), (size, list(Size))):
        if written not in ("*", *known):
            raise ConfigurationError(
                f"--stream {pattern}: expected PRIORITY:SIZE, for example background:small or "
                f"*:large; {written or 'nothing'!r} is not one of {', '.join(known)}."
                + suggestion(written, known)
            )
    return [
        f"stream:{one}:{other}"
        for one in (Priority if priority == "*" else [priority])
        for other in (Size if size == "*" else [size])
    ]


def task(name: str) -> str:
    """Return `Pause.what` for a task class, by its full or bare name.

    Raises:
        ConfigurationError: the name is malformed.

    >>> task("files:RemoveFile")
    'task:files:RemoveFile'
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"--task {name!r} must be CATEGORY:CLASS, or a bare class name")
    return f"task:{name}"


def meant_by(wanted: Sequence[str], pauses: Sequence[Pause]) -> list[str]:
    """Return the pauses to end; full and bare names of a class are equivalent.

    >>> found = [Pause.decode(f"task:{name}", "0|ann") for name in ("mail:Send", "Audit")]
    >>> meant_by(["task:Send", "task:files:Audit", "task:a:Send", "all"], found)
    ['task:Send', 'task:mail:Send', 'task:files:Audit', 'task:Audit', 'task:a:Send', 'all']
    """
    found = list[str]()
    for what in wanted:
        found.append(what)
        kind, _, name = what.partition(":")
        bare = name.rpartition(":")[2]
        if kind == "task":
            same = [it.what for it in pauses if it.what.rpartition(":")[2] == bare]
            found += [it for it in same if it.count(":") == 1 or name == bare]
    return list(dict.fromkeys(found))


def pipeline(name: str) -> str:
    """Return `Pause.what` for a pipeline.

    Raises:
        ConfigurationError: the name is malformed.

    >>> pipeline("volumes")
    'pipeline:volumes'
    """
    if not _PIPELINE.fullmatch(name):
        raise ConfigurationError(f"--pipeline {name!r} is not the name of a pipeline")
    return f"pipeline:{name}"


def of_pipeline(pauses: Sequence[Pause], name: str) -> Pause | None:
    """Return the pause that keeps a pipeline from fetching rows, or None."""
    wanted = (EVERYTHING, f"pipeline:{name}")
    return next((pause for pause in pauses if pause.what in wanted), None)


def of_task(pauses: Sequence[Pause], stream: str, name: str) -> Pause | None:
    """Return the most general pause that keeps a task from starting, or None."""
    by_what = {pause.what: pause for pause in pauses}
    bare = name.rpartition(":")[2]
    for what in (EVERYTHING, f"stream:{stream}", f"task:{name}", f"task:{bare}"):
        if what in by_what:
            return by_what[what]
    return None
