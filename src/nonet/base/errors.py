"""Every error that Nonet raises on purpose.

    NonetError
    ├── ConfigurationError            a setting or the central configuration is wrong (exit 2)
    ├── RegistrationError             a task class or lock type cannot be registered (exit 2)
    ├── UnknownTaskError              no registered class has this name, or several (exit 2)
    ├── InvalidArgumentsError         the arguments do not fit the task's constructor (exit 2)
    ├── MalformedMessageError         bytes that are no envelope of ours
    ├── DependencyError               a parameter of ``execute`` cannot be provided
    ├── ServerUnreachableError        Redis or SQL does not answer (exit 3)
    │   └── NotConfirmedError         too few replicas of Redis have it
    ├── BrokerFullError               Redis has no memory for another task
    ├── AdmissionRejected             there are as many tasks as a ceiling allows (exit 1)
    ├── NotFoundError                 no such task, group or dead letter (exit 4)
    ├── ConflictError                 the thing is in a state that forbids the request (exit 1)
    ├── NotBoundError                 ``.schedule()`` outside ``async with Nonet…``
    ├── UnableToAcquireLockError      a declared lock is held by somebody else
    ├── DeadlockError                 a task awaits one that needs its own locks
    ├── LimitImpossible               a limiter allows less than one execution counts
    ├── TaskTimeoutError              this attempt took longer than its class may
    ├── TaskCrashed                   the process of this attempt ended under it
    │   ├── MemoryLimitExceeded       it had more memory than it may
    │   └── CpuLimitExceeded          it had more CPU time than it may
    ├── LeaseLostError                this attempt no longer owns its delivery or locks
    ├── StopRetrying                  raised by authors: fail now, ask no policy
    ├── TaskRetryRequested            raised by authors: fail this attempt, ask the policy
    └── ResultError                   raised by ``handle.result()``
        ├── TaskFailed                the task ended ``dead``
        ├── TaskCancelled             the task ended ``cancelled``: it was not wanted any more
        ├── TaskExpired               the task ended ``expired``: nobody started it in time
        └── ResultUnavailable         the task is unknown, or its result is gone or unreadable

A message names the thing, the reason and, where there is one, the next step.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import partial
from signal import Signals
from typing import Any

from nonet.base.amounts import format_bytes


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


def unknown_argument(name: str, known: Sequence[str], of: str) -> str:
    """That a constructor has no such argument; `of` is its class.

    >>> unknown_argument("pth", ["path"], "Clean")
    "unknown argument 'pth', known are path. Did you mean path?"
    """
    if not known:
        return f"unknown argument {name!r}, {of} has none"
    return f"unknown argument {name!r}, known are {', '.join(known)}.{suggestion(name, known)}"


def hint_of_task(name: str, known: Iterable[str]) -> str:
    """A sentence to append to an error about an unknown task: the nearest ones, or all, or how."""
    known = sorted(known)
    return suggestion(name, known) or listed_tasks(known) or NEXT_STEP_NO_TASK


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
_SERVER = re.compile(rf"{_SCHEME}([^@/?#]*@)?{_HOST}(,{_HOST})*([/?#][^@]*)?", re.DOTALL)
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


_MOST_LISTED = 8


class UnknownTaskError(NonetError):
    """No registered task class has this name, or several have.

    Args:
        name: the name that was asked for.
        known: full names of all registered classes.
        matching: full names of several classes of this bare name.
        reason: why a class of this name is none of them.
    """

    def __init__(
        self,
        name: str,
        known: Iterable[str] = (),
        *,
        matching: Iterable[str] = (),
        reason: str = "",
    ) -> None:
        known, matching = sorted(known), sorted(matching)
        problem = f"unknown task {name!r}.{hint_of_task(name, known)}"
        if matching:
            problem = f"task name {name!r} is ambiguous: write {' or '.join(matching)}"
        elif reason:
            problem = f"unknown task {name!r}: {reason}"
        super().__init__(problem)
        self.name = name


def listed_tasks(known: Sequence[str]) -> str:
    """A sentence to append to an error: which tasks are known, or some of them; or nothing.

    >>> listed_tasks(["Add"])
    ' Known are Add: those of installed packages and of modules in NONET_TASKS or --tasks.'
    """
    if not known:
        return ""
    more = len(known) - _MOST_LISTED
    rest = f" and {more} more" if more > 0 else ""
    names = ", ".join(known[:_MOST_LISTED]) + rest
    return (
        f" Known are {names}: those of installed packages and of modules in NONET_TASKS or --tasks."
    )


class InvalidArgumentsError(NonetError):
    """The arguments do not fit the task's constructor, or cannot travel.

    Attributes:
        task: name of the class.
        problems: one sentence for each thing that does not fit.
    """

    def __init__(self, task: str, problems: list[str]) -> None:
        super().__init__(f"{task}: " + "; ".join(problems))
        self.task = task
        self.problems = problems


class MalformedMessageError(NonetError):
    """These bytes are no envelope of ours, or exceed a limit."""


class DependencyError(NonetError):
    """A parameter of ``execute`` cannot be provided, or what came does not fit its annotation."""


class ServerUnreachableError(NonetError):
    """Redis or the SQL server does not answer."""


class NotConfirmedError(ServerUnreachableError):
    """Fewer replicas of Redis than ``NONET_CONFIRM_REPLICAS`` have what was written, in time.

    It was written, and may be lost if the master fails now.

    Args:
        what: what was not confirmed.
        replicas: how many should have it.

    Attributes:
        ids: the tasks that it is about: submitted again with these ids they stay the same tasks.
    """

    def __init__(self, what: str, replicas: int, ids: Sequence[str] = ()) -> None:
        again = ", and try again"
        if ids:
            shown = ", ".join(ids[:_MOST_LISTED]) + (" …" if len(ids) > _MOST_LISTED else "")
            again = f", and submit again with the same id ({shown}): it stays the same task"
        super().__init__(
            f"{what}: not confirmed by {replicas} replica{'s' if replicas > 1 else ''} of Redis in "
            f"time (NONET_CONFIRM_REPLICAS); look at the replicas (INFO replication){again}"
        )
        self.ids: tuple[str, ...] = tuple(ids)


class BrokerFullError(NonetError):
    """Redis has no memory for another task: nothing was submitted; what runs goes on."""


_SCOPES = {"namespace": "the namespace", "stream": "stream", "task": "class"}


class AdmissionRejected(NonetError):
    """There are as many tasks as a ceiling of the configuration (``ceilings``) allows.

    Raised inside ``execute`` it hands the task back for `retry_after`, without using an attempt.

    Attributes:
        scope: ``namespace``, ``stream:PRIORITY:SIZE`` or ``task:CATEGORY:CLASS``.
        active: tasks of the scope that have not ended.
        ceiling: how many it may have.
        retry_after: seconds after which it is worth while to submit again, at least 1: by the pace
            at which tasks of the scope have ended during the last minutes.
        wanted: tasks of the scope that were to be submitted together.
        accepted: tasks of the same call that were submitted before those (``submit_many``).

    Example:
        try:
            await Add(1, 2).schedule()
        except AdmissionRejected as error:
            print(f"{error.brief}: try again in {error.retry_after:g} s")
    """

    def __init__(
        self,
        active: int,
        ceiling: int,
        retry_after: float,
        *,
        scope: str = "namespace",
        wanted: int = 1,
        accepted: int = 0,
    ) -> None:
        kind, _, of = scope.partition(":")
        subject = f"{_SCOPES.get(kind, kind)} {of}".strip()
        what = "the task was" if wanted == 1 else f"{wanted} tasks were"
        why = f"{what} not submitted: {subject} has {active} of at most {ceiling} tasks"
        after = f"; try again in {retry_after:g} s, or raise the ceiling (ceilings in NONET_CONFIG)"
        if wanted > ceiling:
            after = "; submit fewer at a time, or raise the ceiling (ceilings in NONET_CONFIG)"
        before = f"; {accepted} tasks of the same call were submitted before" if accepted else ""
        super().__init__(why + before + after)
        self.brief: str = f"{subject} has {active} of at most {ceiling} tasks"
        self.scope = scope
        self.active = active
        self.ceiling = ceiling
        self.retry_after = retry_after
        self.wanted = wanted
        self.accepted = accepted

    def after(self, others: int) -> AdmissionRejected:
        """This, of a call in which other tasks were submitted before; for the framework.

        Args:
            others: how many.
        """
        rest: dict[str, Any] = {"scope": self.scope, "wanted": self.wanted}
        accepted = self.accepted + others
        return AdmissionRejected(
            self.active, self.ceiling, self.retry_after, accepted=accepted, **rest
        )

    def __reduce__(self) -> tuple[Any, ...]:
        rest: dict[str, Any] = {
            "scope": self.scope,
            "wanted": self.wanted,
            "accepted": self.accepted,
        }
        make = partial(AdmissionRejected, self.active, self.ceiling, self.retry_after, **rest)
        return make, ()


class NotFoundError(NonetError):
    """No such task, group or dead letter."""


class ConflictError(NonetError):
    """The thing is in a state that forbids the request."""


class NotBoundError(NonetError, RuntimeError):
    """Something needs an open application, and none is: open one by ``async with Nonet…``.

    It is a ``RuntimeError``, too.
    """


class UnableToAcquireLockError(NonetError):
    """A declared lock is held by somebody else.

    Raised inside ``execute`` it hands the task back without using an attempt.

    Example:
        try:
            async with app.hold(MutexLock(LockedObjectType.JOB, 7), wait=2):
                print("nobody else works on job 7 now")
        except UnableToAcquireLockError as error:
            print(error)
    """


class DeadlockError(NonetError):
    """A task was to be awaited that can go on only after the one that awaits it has ended."""


class LimitImpossible(NonetError):
    """One execution counts for more than the limiter ever allows."""


NEXT_STEP_IMPOSSIBLE = "lower n_items or raise the limit ('task-run limits list'), then try again"


class TaskTimeoutError(NonetError, TimeoutError):
    """An attempt took longer than ``soft_timeout`` or ``hard_timeout`` of its class.

    It is a failed attempt: the retry policy gets this exception. It is a ``TimeoutError``, too.
    """


class TaskCrashed(NonetError):
    """The process of an attempt ended before the attempt did.

    It is a failed attempt: the retry policy gets this exception. After a few crashes of one task
    (whatever its policy says) it is dead, reason ``crash``.

    Args:
        message: replaces the text that is made of the rest.

    Attributes:
        signal: number of the signal that killed the process; None: none did.
        exit_code: with which it exited; None: it was killed, or nobody knows.
        limit: which limit it exceeded: ``memory``, ``cpu``, or empty: none.
        allowed: that limit, in bytes or seconds; None: none.
    """

    _limit = ""

    def __init__(
        self,
        message: str = "",
        *,
        signal: int | None = None,
        exit_code: int | None = None,
        limit: str = "",
        allowed: float | None = None,
    ) -> None:
        limit = limit or self._limit
        super().__init__(message or _crash_text(signal, exit_code, limit, allowed))
        self.signal = signal
        self.exit_code = exit_code
        self.limit = limit
        self.allowed = allowed


class MemoryLimitExceeded(TaskCrashed):
    """The attempt had more memory than ``memory_limit`` of its class, and was killed for it."""

    _limit = "memory"


class CpuLimitExceeded(TaskCrashed):
    """The attempt had more CPU time than ``cpu_limit`` of its class, and was killed for it."""

    _limit = "cpu"


def _crash_text(
    signal: int | None, exit_code: int | None, limit: str, allowed: float | None
) -> str:
    if limit == "memory":
        size = "" if allowed is None else f" of {format_bytes(int(allowed))}"
        return f"its process had more memory than its limit{size}"
    if limit == "cpu":
        seconds = "" if allowed is None else f" of {allowed:g} s"
        return f"its process had more CPU time than its limit{seconds}"
    if signal is not None:
        return f"its process was killed by signal {signal_name(signal)}"
    if exit_code is not None:
        return f"its process exited with code {exit_code}"
    return "its process ended, nobody knows how"


def signal_name(signal: int) -> str:
    """Number and name of a signal, and who sends it where that helps.

    >>> signal_name(11), signal_name(63)
    ('11 (SIGSEGV)', '63')
    """
    if signal == Signals.SIGKILL:
        return "9 (SIGKILL): by the kernel if memory was short, or by somebody"
    try:
        return f"{signal} ({Signals(signal).name})"
    except ValueError:
        return str(signal)


class LeaseLostError(NonetError):
    """This attempt no longer owns its delivery or one of its locks: nothing of it will be settled.

    `TaskContext.ensure_lease` raises it. Let it pass: somebody else has the task.
    """


class StopRetrying(NonetError):
    """Raise it in ``execute`` to fail for good, whatever the retry policy says.

    Example:
        class Download(BaseTask):
            retry_policy = ExponentialBackoff(max_retries=3)

            async def execute(self) -> None:
                raise StopRetrying("the file is gone: trying again does not bring it back")
    """


class TaskRetryRequested(NonetError):
    """Raise it in ``execute`` to fail this attempt and ask the retry policy.

    Example:
        class Poll(BaseTask):
            retry_policy = ExponentialBackoff(base_delay_seconds=60, max_retries=10)

            async def execute(self) -> None:
                raise TaskRetryRequested("the job has not ended yet")
    """


class ResultError(NonetError):
    """Base of what `Handle.result` raises when there is no result to return.

    Example:
        try:
            print(await handle.result(timeout=30))
        except ResultError as error:
            print(error)  # names the task, and how it ended
    """


class TaskFailed(ResultError):
    """The task ended ``dead``.

    Args:
        message: for people.

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


class TaskExpired(ResultError):
    """The task ended ``expired``: it was not started by its `start_by`, and never ran."""


class ResultUnavailable(ResultError):
    """The task is unknown, or its result is gone or could not be stored."""
