"""Every error that Nonet raises on purpose.

    NonetError
    ├── ConfigurationError            a setting or the central configuration is wrong (exit 2)
    ├── RegistrationError             a task class or lock type cannot be registered (exit 2)
    ├── UnknownTaskError              no registered class has this name, or several (exit 2)
    ├── InvalidArgumentsError         the arguments do not fit the task's constructor (exit 2)
    ├── MalformedMessageError         bytes that are no envelope of ours
    ├── DependencyError               a parameter of ``execute`` cannot be provided
    ├── ServerUnreachableError        Redis or SQL does not answer (exit 3)
    ├── BrokerFullError               Redis has no memory for another task
    ├── NotFoundError                 no such task, group or dead letter (exit 4)
    ├── ConflictError                 the thing is in a state that forbids the request (exit 1)
    ├── NotBoundError                 ``.schedule()`` outside ``async with Nonet…``
    ├── UnableToAcquireLockError      a declared lock is held by somebody else
    ├── DeadlockError                 a task awaits one that needs its own locks
    ├── LimitImpossible               a limiter allows less than one execution counts
    ├── TaskTimeoutError              this attempt took longer than its class may
    ├── LeaseLostError                this attempt no longer owns its delivery or locks
    ├── StopRetrying                  raised by authors: fail now, ask no policy
    ├── TaskRetryRequested            raised by authors: fail this attempt, ask the policy
    └── ResultError                   raised by ``handle.result()``
        ├── TaskFailed                the task ended ``dead``
        ├── TaskCancelled             the task ended ``cancelled``: it was not wanted any more
        └── ResultUnavailable         the task is unknown, or its result is gone or unreadable

A message names the thing, the reason and, where there is one, the next step.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that look like ``name``, best first.

    >>> nearest("RemoveFle", ["files:RemoveFile", "files:Audit"])
    ['files:RemoveFile']
    """
    by_tail: dict[str, str] = {}
    for full in known:
        by_tail.setdefault(full.lower(), full)
        by_tail.setdefault(full.rpartition(":")[2].lower(), full)
    hits = difflib.get_close_matches(name.lower(), by_tail, n=6, cutoff=0.6)
    tail_hits = difflib.get_close_matches(name.rpartition(":")[2].lower(), by_tail, n=6, cutoff=0.6)
    return list(dict.fromkeys(by_tail[hit] for hit in [*hits, *tail_hits]))[:3]


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence to append to an error: `` Did you mean …?``, or nothing."""
    hits = nearest(name, known)
    return f" Did you mean {' or '.join(hits)}?" if hits else ""


def masked(url: str) -> str:
    """`url` without its password, fit for a message or a log line.

    Of a URL that `url_problem` refuses only the scheme is shown: the rest may be a password.

    >>> masked("redis://:s3cret@db.example:6379/0")
    'redis://:***@db.example:6379/0'
    >>> masked("mysql+aiomysql://nonet:s3:cret@db.example.org/nonet?passwd=x&ssl=1")
    'mysql+aiomysql://nonet:***@db.example.org/nonet?passwd=***&ssl=1'
    >>> masked("redis://:s3/cret@db.example"), masked("host=db password=s3cret")
    ('redis://…', '…')
    """
    if url_problem(url):
        scheme = re.match(_SCHEME, url)
        return f"{scheme[0] if scheme else ''}…"
    url = re.sub(r"(://[^:/?#@]*:)[^/?#@]*@", r"\1***@", url)
    return re.sub(r"([?&][^=&]*pass[^=&]*=)[^&]*", r"\1***", url)


_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"
_HOST = r"(\[[0-9A-Fa-f:.]+\]|[^:@/?#\[\]]*)(:[0-9]*)?"
_SERVER = re.compile(rf"{_SCHEME}([^@/?#]*@)?{_HOST}([/?#][^@]*)?", re.DOTALL)
# No host, so that nothing of a path or query can be one.
_LOCAL = re.compile(r"(sqlite|unix)[a-z+]*://([/?#].*)?", re.DOTALL)


def url_problem(url: str) -> str:
    """Why `url` is no URL of a server, or could be read in two ways; empty if it is fine.

    An ``@`` or ``/`` that was not percent-encoded makes a part of the password look like the
    host, which then stands in messages and in the log of a name server.

    >>> url_problem("redis://user:pass@db.example:6379/0"), url_problem("sqlite:////home/a@b.db")
    ('', '')
    >>> url_problem("redis://user:pa@ss@db.example").partition(";")[0]
    'it can be read in more than one way'
    """
    if _SERVER.fullmatch(url) or _LOCAL.fullmatch(url):
        return ""
    kind = "can be read in more than one way" if re.match(_SCHEME, url) else "is no URL"
    return (
        f"it {kind}; expected SCHEME://USER:PASSWORD@HOST:PORT/DATABASE: "
        "percent-encode the user and password ('@' is %40, '/' is %2F), write the port in digits"
    )


class NonetError(Exception):
    """Base of all errors of this package.

    Attributes:
        brief: the reason alone, for a place too small for the message; empty: use the message.
    """

    brief: str = ""


class ConfigurationError(NonetError):
    """A process setting or the central configuration is wrong."""


class RegistrationError(NonetError, ValueError):
    """A task class or a lock type cannot be registered."""


NEXT_STEP_NO_TASK = " No task is registered: install a package with tasks or pass --tasks MODULE."


class UnknownTaskError(NonetError):
    """No registered task class has this name, or several have.

    Args:
        known: full names of all registered classes.
        matching: full names of several classes of this bare name.
    """

    def __init__(
        self, name: str, known: Iterable[str] = (), *, matching: Iterable[str] = ()
    ) -> None:
        known, matching = list(known), sorted(matching)
        problem = f"unknown task {name!r}.{suggestion(name, known)}"
        if matching:
            problem = f"task name {name!r} is ambiguous: write {' or '.join(matching)}"
        elif not known:
            problem += NEXT_STEP_NO_TASK
        super().__init__(problem)
        self.name = name


class InvalidArgumentsError(NonetError):
    """The arguments do not fit the task's constructor, or cannot travel."""

    def __init__(self, task: str, problems: list[str]) -> None:
        super().__init__(f"{task}: " + "; ".join(problems))
        self.task = task
        self.problems = problems


class MalformedMessageError(NonetError):
    """These bytes are no envelope of ours, or exceed a limit."""


class DependencyError(NonetError):
    """A parameter of ``execute`` cannot be provided."""


class ServerUnreachableError(NonetError):
    """Redis or the SQL server does not answer."""


class BrokerFullError(NonetError):
    """Redis has no memory for another task: nothing was submitted; what runs goes on."""


class NotFoundError(NonetError):
    """No such task, group or dead letter."""


class ConflictError(NonetError):
    """The thing is in a state that forbids the request."""


class NotBoundError(NonetError):
    """``.schedule()`` was called where no application is open."""


class UnableToAcquireLockError(NonetError):
    """A declared lock is held by somebody else.

    Raised inside ``execute`` it hands the task back without using an attempt.
    """


class DeadlockError(NonetError):
    """A task was to be awaited that can go on only after the one that awaits it has ended."""


class LimitImpossible(NonetError):
    """One execution counts for more than the limiter ever allows."""


NEXT_STEP_IMPOSSIBLE = "lower n_items or raise the limit ('task-run limits list'), then try again"


class TaskTimeoutError(NonetError, TimeoutError):
    """An attempt took longer than ``soft_timeout`` or ``hard_timeout`` of its class.

    It is a failed attempt: the retry policy gets this exception.
    """


class LeaseLostError(NonetError):
    """This attempt no longer owns its delivery or one of its locks."""


class StopRetrying(NonetError):
    """Raise it in ``execute`` to fail for good, whatever the retry policy says."""


class TaskRetryRequested(NonetError):
    """Raise it in ``execute`` to fail this attempt and ask the retry policy."""


class ResultError(NonetError):
    """Base of what ``handle.result()`` raises when there is no result to return."""


class TaskFailed(ResultError):
    """The task ended ``dead``.

    Attributes:
        error_type: name of the exception class of the last attempt.
        reason: why it is dead (``retries``, ``crash``, ``quarantined`` …).
    """

    def __init__(self, message: str, *, error_type: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
        self.reason = reason


class TaskCancelled(ResultError):
    """The task ended ``cancelled``: it was not wanted any more."""


class ResultUnavailable(ResultError):
    """The task is unknown, or its result is gone or could not be stored."""
