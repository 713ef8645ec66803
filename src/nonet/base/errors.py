"""The exceptions of Nonet, and helpers for their messages.

    NonetError
    ├── ConfigurationError            a setting or the central configuration is wrong (exit 2)
    ├── RegistrationError             a task class or lock type cannot be registered (exit 2)
    ├── UnknownTaskError              no registered class has this name, or several have (exit 2)
    ├── InvalidArgumentsError         the arguments do not fit the task's constructor (exit 2)
    ├── MalformedMessageError         a message is not a valid envelope
    ├── DependencyError               a parameter of ``execute`` cannot be provided
    ├── ServerUnreachableError        Redis or SQL does not answer (exit 3)
    │   └── NotConfirmedError         too few replicas of Redis confirmed a write
    ├── BrokerFullError               Redis has no memory for another task
    ├── AdmissionRejected             a ceiling on the number of tasks is reached (exit 1)
    ├── NotFoundError                 no such task, group or dead letter (exit 4)
    ├── ConflictError                 the thing is in a state that forbids the request (exit 1)
    ├── NotBoundError                 ``.schedule()`` outside ``async with Nonet…``
    ├── UnableToAcquireLockError      another owner holds a declared lock
    │   └── RowsBusy                  a pipeline or another program has the row
    ├── DeadlockError                 a task awaits one that needs its own locks
    ├── LimitImpossible               one execution needs more than a limiter ever allows
    ├── TaskTimeoutError              this attempt exceeded its timeout
    ├── TaskCrashed                   the process of this attempt died
    │   ├── MemoryLimitExceeded       it exceeded its memory limit
    │   └── CpuLimitExceeded          it exceeded its CPU limit
    ├── LeaseLostError                this attempt no longer owns its delivery or locks
    ├── StopRetrying                  raised by tasks: fail for good, without retries
    ├── TaskRetryRequested            raised by tasks: fail this attempt, then retry by the policy
    └── ResultError                   raised by ``handle.result()``
        ├── TaskFailed                the task ended ``dead``
        ├── TaskCancelled             the task ended ``cancelled``
        ├── TaskExpired               the task ended ``expired``: no worker started it in time
        └── ResultUnavailable         the task is unknown, or its result is gone or unreadable

Every message names the subject and the reason, and the next step if there is one.
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
    """Return up to three known names that are similar to ``name``, best first.

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
    """Describe an argument that the constructor of class `of` does not have.

    >>> unknown_argument("pth", ["path"], "Clean")
    "unknown argument 'pth', known are path. Did you mean path?"
    """
    if not known:
        return f"unknown argument {name!r}, {of} has none"
    return f"unknown argument {name!r}, known are {', '.join(known)}.{suggestion(name, known)}"


def hint_of_task(name: str, known: Iterable[str]) -> str:
    """Return a sentence for an error about an unknown task: similar names, else all names."""
    known = sorted(known)
    return suggestion(name, known) or listed_tasks(known) or NEXT_STEP_NO_TASK


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean …?`` to append to an error, or an empty string."""
    hits = nearest(name, known)
    return f" Did you mean {' or '.join(hits)}?" if hits else ""


def listed(problems: Iterable[str]) -> str:
    """Return the first problems in one line; a request may contain a million of them.

    >>> listed(["a: is missing", "b: " + "x" * 1000])[:40], listed(map(str, range(12)))
    ('a: is missing; b: xxxxxxxxxxxxxxxxxxxxxx', '0; 1; 2; 3; 4; 5; 6; 7; 8; 9; and 2 more')
    """
    texts = [
        text if len(text) <= _LONGEST_PROBLEM else f"{text[:_LONGEST_PROBLEM]}…"
        for text in problems
    ]
    more = len(texts) - _MOST_PROBLEMS
    return "; ".join([*texts[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])])


_MOST_PROBLEMS, _LONGEST_PROBLEM = 10, 300


def masked(url: str) -> str:
    """Return `url` without its password, for messages and log lines.

    If `url_problem` rejects the URL, only its scheme is kept: any other part may be a password.

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
# These have no host, so no part of the path or query can be mistaken for one.
_LOCAL = re.compile(r"(sqlite|unix)[a-z+]*://([/?#].*)?", re.DOTALL)


def url_problem(url: str) -> str:
    """Return why `url` is invalid or ambiguous as the URL of a server; empty if it is fine.

    With an unencoded ``@`` or ``/`` in the password, part of the password looks like the host. This
    part would appear in messages, and a name server would log it.

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


def is_caught(error: BaseException, by: Iterable[type]) -> bool:
    """Return whether ``except`` with these classes would catch an error.

    Unlike ``isinstance()`` it runs no code of the error or of a metaclass.

    >>> is_caught(KeyError(), [LookupError]), is_caught(KeyError(), [])
    (True, False)
    """
    bases = type.__dict__["__mro__"].__get__(type(error))
    return any(base is caught for base in bases for caught in by)


class NonetError(Exception):
    """Base of all errors of this package.

    Attributes:
        brief: the reason alone, a short form of the message; may be empty.
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
        name: the requested name.
        known: full names of all registered classes.
        matching: full names of several classes of this bare name.
        reason: why the class with this name cannot be used.
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
    """Return a sentence for an error that lists the known tasks, at most eight; or nothing.

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
    """The arguments do not fit the task's constructor, or cannot be serialised.

    Attributes:
        task: name of the class.
        problems: one sentence for each problem.
    """

    def __init__(self, task: str, problems: list[str]) -> None:
        super().__init__(f"{task}: {listed(problems)}")
        self.task = task
        self.problems = problems


class MalformedMessageError(NonetError):
    """A message is not a valid envelope, or exceeds a limit."""


class DependencyError(NonetError):
    """A parameter of ``execute`` cannot be provided, or its value does not fit the annotation."""


class ServerUnreachableError(NonetError):
    """Redis or the SQL server does not answer, or refuses commands for now.

    Attributes:
        server: ``Redis`` if it is Redis; else empty.
        way_out: the problem and the command that ends it, without an address; may be empty.
    """

    server: str = ""
    way_out: str = ""


class NotConfirmedError(ServerUnreachableError):
    """Fewer than ``NONET_CONFIRM_REPLICAS`` replicas of Redis confirmed a write in time.

    The master has the write. If the master fails now, the write may be lost.

    Args:
        what: the write that was not confirmed.
        replicas: how many replicas should have confirmed it.

    Attributes:
        ids: the tasks of this write. Submitting them again with these ids makes no duplicates.
    """

    def __init__(self, what: str, replicas: int, ids: Sequence[str] = ()) -> None:
        again = ", and try again"
        if ids:
            shown = ", ".join(ids[:_MOST_LISTED]) + (" …" if len(ids) > _MOST_LISTED else "")
            again = f", and submit again with the same id ({shown}): it stays the same task"
        super().__init__(
            f"{what}: not confirmed by {replicas} replica{'s' if replicas > 1 else ''} of Redis in "
            f"time (NONET_CONFIRM_REPLICAS); check the replicas with INFO replication{again}"
        )
        self.ids: tuple[str, ...] = tuple(ids)


class BrokerFullError(NonetError):
    """Redis has no memory for another task. Nothing was submitted; running tasks continue."""


# Errors of a whole server: every other call would fail in the same way.
OF_THE_SERVER = (ServerUnreachableError, ConfigurationError, BrokerFullError)


# The name of a scope for people, and its use of the ceiling.
_SCOPES = {
    "namespace": ("the namespace", "{} of at most {} tasks"),
    "stream": ("stream", "{} of at most {} tasks"),
    "task": ("class", "{} of at most {} tasks"),
    "tenant": ("tenant", "{} of at most {} tasks"),
    "tenant-bytes": ("tenant", "{} of at most {} bytes in its tasks"),
    "tenant-rate": ("tenant", "{} new tasks within a second, of at most {}"),
}


class AdmissionRejected(NonetError):
    """A ceiling of the configuration (``ceilings``) is reached.

    If ``execute`` raises it, the task is requeued after `retry_after`, without using an attempt.

    Attributes:
        scope: ``namespace``, ``stream:PRIORITY:SIZE``, ``task:CATEGORY:CLASS``, ``tenant:NAME``,
            ``tenant-bytes:NAME`` or ``tenant-rate:NAME``.
        active: tasks of the scope that have not ended; for ``tenant-bytes`` the bytes of their
            messages, for ``tenant-rate`` the tasks submitted within the last second.
        ceiling: the most that the scope may have.
        retry_after: seconds to wait before submitting again, at least 1. It is estimated from how
            fast tasks of the scope ended in the last minutes, and from when delayed ones are due.
        wanted: number of tasks of this scope in the rejected submission.
        is_too_large: no retry helps: the submission alone is above the ceiling.
        accepted: number of tasks that the same call had submitted before (``submit_many``).

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
        is_too_large: bool = False,
    ) -> None:
        kind, _, of = scope.partition(":")
        subject, use = _SCOPES[kind]
        self.brief: str = f"{f'{subject} {of}'.strip()} has {use.format(active, ceiling)}"
        what = "the task was" if wanted == 1 else f"{wanted} tasks were"
        why = f"{what} not submitted: {self.brief}"
        after = f"; try again in {retry_after:g} s, or raise the ceiling (ceilings in NONET_CONFIG)"
        if is_too_large:
            after = "; submit fewer at a time, or raise the ceiling (ceilings in NONET_CONFIG)"
        before = f"; {accepted} tasks of the same call were submitted before" if accepted else ""
        super().__init__(why + before + after)
        self.scope = scope
        self.active = active
        self.ceiling = ceiling
        self.retry_after = retry_after
        self.wanted = wanted
        self.accepted = accepted
        self.is_too_large = is_too_large

    def after(self, others: int) -> AdmissionRejected:
        """Return this error with `others` more accepted tasks, for the framework."""
        return AdmissionRejected(
            self.active,
            self.ceiling,
            self.retry_after,
            **self._rest | {"accepted": self.accepted + others},
        )

    @property
    def _rest(self) -> dict[str, Any]:
        names = ("scope", "wanted", "accepted", "is_too_large")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(AdmissionRejected, self.active, self.ceiling, self.retry_after, **self._rest)
        return made, ()


class NotFoundError(NonetError):
    """No such task, group or dead letter."""


class ConflictError(NonetError):
    """The task, group or dead letter is in a state that forbids the request."""


class NotBoundError(NonetError, RuntimeError):
    """No application is open: open one with ``async with Nonet…``. Also a ``RuntimeError``."""


class UnableToAcquireLockError(NonetError):
    """A lock was not acquired because another owner holds it.

    If ``execute`` raises it, the task is requeued without using an attempt.

    Example:
        try:
            async with app.hold(MutexLock(LockedObjectType.JOB, 7), wait=2):
                print("job 7 is locked")
        except UnableToAcquireLockError as error:
            print(error)
    """


class RowsBusy(UnableToAcquireLockError):  # as AdmissionRejected
    """A row is leased by a pipeline or another program; FastAPI answers 409 with ``Retry-After``.

    Attributes:
        table: name of its table.
        key: its primary key.
        retry_after: seconds after which to try again.
    """

    retry_after: float = 5.0

    def __init__(self, table: str, key: Any) -> None:
        super().__init__(f"row {key} of table {table} is in use by another process: try again")
        self.table = table
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table, self.key)


class DeadlockError(NonetError):
    """Code waits for a task or a lock that it blocks itself, so the wait would never end."""


class LimitImpossible(NonetError):
    """One execution needs more than the limiter ever allows."""


NEXT_STEP_IMPOSSIBLE = "lower n_items or raise the limit ('task-run limits list'), then try again"


class TaskTimeoutError(NonetError, TimeoutError):
    """An attempt exceeded the ``soft_timeout`` or ``hard_timeout`` of its class.

    The attempt has failed, and the retry policy gets this exception. Also a ``TimeoutError``.
    """


class TaskCrashed(NonetError):
    """The process of an attempt ended before the attempt did.

    The attempt has failed, and the retry policy gets this exception. After
    ``NONET_CRASH_LIMIT`` crashes the task is dead with reason ``crash``, whatever its policy says.

    Args:
        message: replaces the default message.

    Attributes:
        signal: number of the signal that killed the process, or None.
        exit_code: exit code of the process; None if it was killed, or if the code is unknown.
        limit: which limit the process exceeded: ``memory``, ``cpu``, or empty.
        allowed: value of this limit in bytes or seconds, or None.
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
    """The attempt was killed because it exceeded the ``memory_limit`` of its class."""

    _limit = "memory"


class CpuLimitExceeded(TaskCrashed):
    """The attempt was killed because it exceeded the ``cpu_limit`` of its class."""

    _limit = "cpu"


def _crash_text(
    signal: int | None, exit_code: int | None, limit: str, allowed: float | None
) -> str:
    if limit == "memory":
        size = "" if allowed is None else f" of {format_bytes(int(allowed))}"
        return f"its process exceeded its memory limit{size}"
    if limit == "cpu":
        seconds = "" if allowed is None else f" of {allowed:g} s"
        return f"its process exceeded its CPU limit{seconds}"
    if signal is not None:
        return f"its process was killed by signal {signal_name(signal)}"
    if exit_code is not None:
        return f"its process exited with code {exit_code}"
    return "its process ended for an unknown reason"


def signal_name(signal: int) -> str:
    """Return number and name of a signal, and the likely sender of SIGKILL.

    >>> signal_name(11), signal_name(63)
    ('11 (SIGSEGV)', '63')
    """
    if signal == Signals.SIGKILL:
        return "9 (SIGKILL): by the kernel if memory was short, or by another process"
    try:
        return f"{signal} ({Signals(signal).name})"
    except ValueError:
        return str(signal)


class LeaseLostError(NonetError):
    """This attempt no longer owns its delivery or one of its locks, and its outcome is discarded.

    `TaskContext.ensure_lease` raises it. Do not catch it: another worker may run the task.
    """


class StopRetrying(NonetError):
    """Raise this in ``execute`` to fail for good, whatever the retry policy says.

    Example:
        class Download(BaseTask):
            retry_policy = ExponentialBackoff(max_retries=3)

            async def execute(self) -> None:
                raise StopRetrying("the file was deleted")
    """


class TaskRetryRequested(NonetError):
    """Raise this in ``execute`` to fail this attempt and let the retry policy decide.

    Example:
        class Poll(BaseTask):
            retry_policy = ExponentialBackoff(base_delay_seconds=60, max_retries=10)

            async def execute(self) -> None:
                raise TaskRetryRequested("the job has not ended yet")
    """


class ResultError(NonetError):
    """Base of the errors that `Handle.result` raises if there is no result to return.

    Example:
        try:
            print(await handle.result(timeout=30))
        except ResultError as error:
            print(error)  # names the task, and how it ended
    """


class TaskFailed(ResultError):
    """The task ended ``dead``.

    Args:
        message: the text of the error.

    Attributes:
        error_type: name of the exception class of the last attempt.
        reason: why the task is dead (``retries``, ``crash``, ``quarantined`` …).
        traceback: traceback of the last attempt, as `TaskStatus.traceback`.
    """

    def __init__(
        self, message: str, *, error_type: str = "", reason: str = "", traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.reason = reason
        self.traceback = traceback


class TaskCancelled(ResultError):
    """The task ended ``cancelled``."""


class TaskExpired(ResultError):
    """The task ended ``expired``: no worker started it before its `start_by`, and it never ran."""


class ResultUnavailable(ResultError):
    """The task is unknown, or its result is gone or could not be stored."""
