"""Create the message of a submission, and read messages of tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from nonet.base.errors import (
    ConfigurationError,
    InvalidArgumentsError,
    NonetError,
    UnknownTaskError,
)
from nonet.base.ids import new_id, reserved_problem
from nonet.base.messages.documents import are_encrypted, decrypted_arguments, encrypted_arguments
from nonet.base.messages.encryption import NO_KEYS, SETTING, Cipher
from nonet.base.messages.formats import FORMAT
from nonet.base.messages.message import Envelope, encode, is_id, open_envelope, pack, references
from nonet.base.messages.repetition import Repeat
from nonet.base.messages.signing import Signer
from nonet.base.messages.terms import (
    StartBy,
    delay_problem,
    is_naive,
    microseconds,
    span_of,
    start_by_problem,
    start_by_term,
    unix_microseconds,
)
from nonet.base.streams import Priority, Size
from nonet.client.live import LiveConfig
from nonet.config.overrides import CLASS
from nonet.rules.fairness import inherited_labels, tenant_of
from nonet.stores.queue.submissions import Submission
from nonet.tasks.arguments import Arguments
from nonet.tasks.carried import carried_problem, carried_texts
from nonet.tasks.execution import running_context
from nonet.tasks.middleware import Middlewares, OutgoingTask
from nonet.tasks.registry import Registry, TaskClass
from nonet.tasks.secrecy import secrets_in
from nonet.tasks.steps import EVENT
from nonet.tasks.task import (
    FROM_CLASS,
    NO_OPTIONS,
    BaseTask,
    FromClass,
    Given,
    Options,
    task_locks,
    vo_of,
)
from nonet.tasks.unique import Unique, UniqueMode, unique_lock, unique_term
from nonet.tasks.workflows import packed_values
from nonet.telemetry.running_middleware import open_submission

if TYPE_CHECKING:
    from nonet.tasks.schedules import TaskScheduleBase

_Named = TypeVar("_Named", bound=StrEnum)


class _Unloaded(BaseTask):
    """Stands for a class that this process has not loaded."""

    def execute(self) -> None:
        """Only workers run its tasks."""


class Unloaded(Given[Any]):
    """A task of a class that this process has not loaded.

    Args:
        name: full name of the class.
        values: its arguments by name.
    """

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.task_class = _stand_in(name)
        super().__init__(self.task_class.cls, values)


@lru_cache(maxsize=1000)
def _stand_in(name: str) -> TaskClass:
    cls = type(name.rpartition(":")[2], (_Unloaded,), {})
    return TaskClass(name, cls, "", Arguments(cls, name))


def _is_unloaded(task_class: TaskClass) -> bool:
    return issubclass(task_class.cls, _Unloaded)


class Envelopes:
    """Creates submissions and reads messages with the settings of this process.

    Args:
        registry: the task classes.
        live_config: the published configuration, which overrides attributes of classes.
        signer: signs and verifies messages.
        message_limit: longest message in bytes, including its signature.
        middlewares: runs around submissions.
        cipher: encrypts and decrypts arguments; None: nothing is encrypted, as nothing is stored.
    """

    def __init__(
        self,
        registry: Registry,
        live_config: LiveConfig,
        signer: Signer,
        *,
        message_limit: int,
        middlewares: Middlewares | None = None,
        cipher: Cipher | None = NO_KEYS,
    ) -> None:
        self._registry = registry
        self._live_config = live_config
        self._signer = signer
        self._cipher = cipher
        self._message_limit = message_limit
        self._middlewares = middlewares or Middlewares()

    def prepare(
        self,
        task: BaseTask | Given[Any],
        options: Options = NO_OPTIONS,
        *,
        child_of: str = "",
        callback_of: str = "",
        trace: str = "",
        repeat: Repeat | None = None,
        is_step: bool = False,
        schedule: TaskScheduleBase | None = None,
    ) -> Submission:
        """Validate a task and create its submission, without asking Redis.

        Args:
            options: the options of the submission; its transaction is ignored here.
            child_of, callback_of: the group that the task is a child or callback of.
            trace: the value of `nonet.telemetry.tracing.sending`.
            repeat: the repeat of a dead letter, if it is one; it determines the id.
            is_step: it is a step of a workflow.
            schedule: the schedule of its periodic entry, for middleware.

        The caller chose the id in `options`, unless one of the arguments from `child_of` on is
        given. An id that a caller chose must not look like Nonet's own.

        Raises:
            RegistrationError: the class is not registered.
            InvalidArgumentsError: an argument, label, lock, id or time is invalid, or a value that
                travels with it is too long.
            ConfigurationError: the class is encrypted, and this process has no key.
        """
        is_derived = repeat or child_of or callback_of or is_step or schedule is not None
        task_class = self._class_of(task)
        if options.id is not None and not is_derived:
            _check_own_id(task_class, options.id)
        if self._middlewares.around_submit:
            options = self._around(task_class, options, repeat, schedule)
        options = self._in_context(task_class, task, options, is_new=repeat is None)
        labels = options.labels or _NO_LABELS
        wanted = task_class.cls.unique if options.unique is FROM_CLASS else options.unique
        waits = options.delay is not None or options.at_time is not None
        if isinstance(wanted, Unique) and wanted.mode is UniqueMode.KEEP_LATEST and not waits:
            options = replace(options, delay=wanted.seconds or None)
        due = _due(task_class, options)
        content = self._content(task_class, task, options, callback_of, trace, repeat, is_step)
        vo, group = vo_of(task, labels), child_of or callback_of or is_step
        locks, terms = self._demands(task_class, task, options, content, vo, group)
        if repeat is not None:
            terms = _lines(terms, repeat.term)
        stream = self._stream(task_class, vo, labels)
        if tenant := tenant_of(self._live_config.tenants_by, task_class.name, vo, labels):
            terms = _lines(terms, f"tenant|{tenant}")
        envelope, name = self._sealed(task_class, content), task_class.name
        return Submission(content.id, name, stream, envelope, locks, due, child_of, terms)

    def prepare_event(
        self, id: str, event: str, timeout: float | timedelta | None, trace: str, tenant: str
    ) -> Submission:
        """Prepare a step without code, which waits for an event; no worker ever gets it.

        Args:
            tenant: term of the tenant of its workflow, or empty.
        """
        running, name = running_context(), f"{EVENT}{event}"
        parent = running.id if running else ""
        content = Envelope(FORMAT, id, name, {}, {}, time.time(), parent, "", "", trace, 0, True)
        terms = "" if timeout is None else start_by_term(timeout, keep=False)
        stream = f"{Priority.NORMAL}:{Size.SMALL}"
        envelope = self._signer.signed(encode(content))
        return Submission(id, name, stream, envelope, terms=_lines(terms, tenant))

    def _class_of(self, task: BaseTask | Given[Any]) -> TaskClass:
        registry = self._registry
        if isinstance(task, Unloaded):
            return task.task_class
        return registry.of_class(task.cls) if isinstance(task, Given) else registry.of(task)

    def _around(
        self,
        task_class: TaskClass,
        options: Options,
        repeat: Repeat | None,
        schedule: TaskScheduleBase | None,
    ) -> Options:
        """Run the first part of middleware; it may add labels, and set context that travels."""
        running, labels = running_context(), dict(options.labels or _NO_LABELS)
        given = options.id if repeat is None else repeat.id
        id = new_id() if given is None else given
        task = OutgoingTask(
            id,
            task_class.name,
            task_class.cls,
            labels,
            options.at_time,
            parent=running.id if running else "",
            schedule=schedule,
        )
        open_submission(self._middlewares, task)
        return replace(options, id=id, labels=labels)

    def _in_context(
        self, task_class: TaskClass, task: object, options: Options, *, is_new: bool
    ) -> Options:
        """Add the labels that come from the context; explicit labels take precedence.

        They are the carried context variables and, in a running task, the labels of its tenant.

        Args:
            is_new: False for a repeat, which keeps its tenant.
        """
        running, texts = running_context() if is_new else None, carried_texts()
        if running is None and not texts:
            return options
        if problem := carried_problem(texts):
            raise InvalidArgumentsError(task_class.name, [problem])
        found: dict[str, Any] = {}
        if running is not None:
            by = self._live_config.tenants_by
            found = inherited_labels(by, running.vo, running.labels)
            if getattr(task, "vo", None):  # its attribute `vo` gives its tenant
                found.pop("vo", None)
        found |= texts
        return replace(options, labels={**found, **(options.labels or {})}) if found else options

    def _content(
        self,
        task_class: TaskClass,
        task: BaseTask | Given[Any],
        options: Options,
        callback_of: str,
        trace: str,
        repeat: Repeat | None,
        is_step: bool,
    ) -> Envelope:
        """First step: create the envelope, which the worker reads."""
        id = repeat.id if repeat is not None else options.id
        running, labels = running_context(), options.labels
        return Envelope(
            FORMAT,
            _checked_id(task_class, id) if id is not None else new_id(),
            task_class.name,
            _packed_arguments(task_class, task),
            _packed_labels(task_class, labels) if labels else {},
            time.time(),
            running.id if running else "",
            callback_of,
            task_class.cls.min_version or "",
            trace,
            repeat.row if repeat is not None else 0,
            is_step,
        )

    def _sealed(self, task_class: TaskClass, content: Envelope) -> bytes:
        """Third step: encrypt, encode and sign the envelope."""
        cipher = self._cipher
        if cipher is not None and (
            task_class.cls.encrypted
            or cipher.everything
            or (cipher.keys and _is_unloaded(task_class))
        ):
            content = _encrypted(content, cipher)
        try:
            envelope = self._signer.signed(encode(content))
        except TypeError as error:
            raise InvalidArgumentsError(content.name, [str(error)]) from None
        if len(envelope) > self._message_limit:
            problem = (
                f"the message has {len(envelope)} bytes, the limit is {self._message_limit} "
                "(NONET_MESSAGE_LIMIT); pass a reference to large data instead"
            )
            raise InvalidArgumentsError(content.name, [problem])
        return envelope

    def _demands(
        self,
        task_class: TaskClass,
        task: BaseTask | Given[Any],
        options: Options,
        content: Envelope,
        vo: str,
        group: str | bool,
    ) -> tuple[str, str]:
        """Second step: encode the locks and terms as lines for the scripts.

        If arguments are results of other steps, the worker computes the locks.

        Args:
            vo: the VO of the task, or empty.
            group: whether the task belongs to a group or a workflow.
        """
        cls, labels = task_class.cls, options.labels or _NO_LABELS
        locks, terms = "", ""
        is_own = cls.execution_locks is not BaseTask.execution_locks
        if (is_own or vo) and not isinstance(task, Given):
            locks = self._locks(task_class, task, labels)
        deadline = cls.start_by if options.start_by is FROM_CLASS else options.start_by
        if deadline is not None:
            terms = self._start_by(task_class, vo, deadline, options)
        wanted = cls.unique if options.unique is FROM_CLASS else options.unique
        if wanted is not None:
            key = _unique_key(task_class, task, wanted, content, in_group=group)
            locks = _lines(locks, unique_lock(wanted, key))
            terms = _lines(terms, unique_term(wanted, key))
        # Ceilings reserve room for submissions of running tasks: lib/ceilings.
        if content.parent and not content.is_step:
            terms = _lines(terms, f"by|{content.parent}")
        return locks, terms

    def prepare_again(
        self,
        name: str,
        args: Mapping[str, Any],
        repeat: Repeat,
        *,
        labels: Mapping[str, Any],
        changes: Mapping[str, Any] | None = None,
        callback_of: str = "",
        at_time: datetime | None = None,
    ) -> Submission:
        """Prepare a submission from a class name and stored arguments; see `prepare`.

        Args:
            changes: arguments in place of stored ones; see `changed_arguments`.
            at_time: when the task starts; the `start_by` of its class counts from then.

        Raises:
            UnknownTaskError: the class is not registered.
            InvalidArgumentsError: the class refuses the arguments.
        """
        task_class = self._registry.find(name)
        if task_class is None:
            raise UnknownTaskError(name, [item.name for item in self._registry])
        args = changed_arguments(task_class, args, changes or {})
        if any(references(dict(args))):
            problem = (
                "arguments are results of other steps of its workflow: run it again with "
                "'task-run workflows resume', or submit a new task"
            )
            raise InvalidArgumentsError(task_class.name, [problem])
        try:
            task = task_class.arguments.build(args)
        except NonetError:
            raise
        except Exception as error:  # the author's constructor can raise anything
            problem = f"{type(error).__name__}: {error}"
            raise InvalidArgumentsError(task_class.name, [problem]) from error
        options = Options(labels=labels, at_time=at_time, start_by=_deadline(task_class, at_time))
        return self.prepare(task, options, repeat=repeat, callback_of=callback_of)

    def stored(self, task: BaseTask, id: str, labels: Mapping[str, Any]) -> bytes:
        """Encode a task that `read_again` reads, to submit it at other times under other ids.

        Raises:
            NonetError: as `prepare`.
        """
        task_class = self._class_of(task)
        self._locks(task_class, task, labels)
        options = Options(id=id, labels=labels)
        content = self._content(task_class, task, options, "", "", None, is_step=False)
        return self._sealed(task_class, content)

    def read(self, id: str, data: bytes) -> Envelope:
        """Decode the message of task `id`, as a worker with these settings would.

        Its arguments stay encrypted, see `decrypted`.

        Raises:
            MalformedMessageError: a worker would quarantine the message.
        """
        return open_envelope(data, id, self._signer, limit_bytes=self._message_limit)

    def decrypted(self, envelope: Envelope) -> Envelope:
        """Return an envelope whose arguments are decrypted.

        Raises:
            MissingKeyError: this process has no key for them.
            MalformedMessageError: they were changed, or belong to another task.
        """
        if not are_encrypted(envelope.args):
            return envelope
        args = decrypted_arguments(envelope.args, envelope.id, self._cipher or NO_KEYS)
        return replace(envelope, args=args)

    def read_again(self, id: str, data: bytes) -> Envelope:
        """Decode a message that will be created anew with `prepare_again`.

        Raises:
            MalformedMessageError: as for `read`, or the message is signed or encrypted and this
                process has no key to verify or decrypt it.
        """
        self._signer.check_key(data)
        return self.decrypted(self.read(id, data))

    def _stream(self, task_class: TaskClass, vo: str, labels: Mapping[str, Any]) -> str:
        own = self._live_config.overrides.stream(task_class, vo)
        if not labels and (stream := _STREAMS.get(own)) and not _is_unloaded(task_class):
            return stream
        try:
            priority = _one_of(Priority, labels.get("priority", own[0]))
            size = _one_of(Size, labels.get("size", own[1]))
        except ValueError as error:
            raise InvalidArgumentsError(task_class.name, [f"label: {error}"]) from None
        if _is_unloaded(task_class) and "size" not in labels:
            effective = self._live_config.overrides.effective(task_class, vo)
            if effective.origins["size"] == CLASS:
                problem = (
                    "its class is not loaded here, so its size is unknown: pass labels={'size': …},"
                    " or set the size of the class in the configuration"
                )
                raise InvalidArgumentsError(task_class.name, [problem])
        return _STREAMS[priority, size]

    def _start_by(self, task_class: TaskClass, vo: str, wanted: StartBy, options: Options) -> str:
        """Return the term for the deadline."""
        problem = start_by_problem(wanted) or _start_problem(wanted, options)
        if problem:
            raise InvalidArgumentsError(task_class.name, [f"start_by: {problem}"])
        effective = self._live_config.overrides.effective(task_class, vo)
        return start_by_term(wanted, keep=effective.dlq_eligible)

    def _locks(self, task_class: TaskClass, task: BaseTask, labels: Mapping[str, Any]) -> str:
        try:
            lines = task_locks(task, task_class.name, labels)
            if len(lines) > self._message_limit:
                raise ValueError(
                    f"the locks take {len(lines)} bytes, the limit is {self._message_limit} "
                    "(NONET_MESSAGE_LIMIT)"
                )
        except ValueError as error:
            raise InvalidArgumentsError(task_class.name, [f"locks: {error}"]) from None
        return lines


NO_SECRET_IS_KEPT = "give this secret again: a task with changes does not keep it"
_NO_LABELS: Mapping[str, Any] = {}
_STREAMS = {(priority, size): f"{priority}:{size}" for priority in Priority for size in Size}


def _one_of(names: type[_Named], value: Any) -> _Named:
    try:
        return names(value)
    except ValueError:
        values = ", ".join(repr(str(name)) for name in names)
        raise ValueError(f"{value!r:.100} is not a valid {names.__name__} ({values})") from None


def changed_arguments(
    task_class: TaskClass, stored: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return stored arguments with some replaced.

    A changed task does not keep secrets: its author may be unable to read them, and could send them
    to a host of their own.

    Raises:
        InvalidArgumentsError: a secret is stored, and the changes do not replace it.
    """
    kept = secrets_in(stored, task_class.cls) - changes.keys() if changes else ()
    if kept:
        problems = [f"{name}: {NO_SECRET_IS_KEPT}" for name in sorted(kept)]
        raise InvalidArgumentsError(task_class.name, problems)
    return {**stored, **changes}


def _packed_arguments(task_class: TaskClass, task: BaseTask | Given[Any]) -> dict[str, Any]:
    if not isinstance(task, Given):
        return task_class.arguments.pack(task)
    try:
        return {name: pack(value) for name, value in packed_values(task.values).items()}
    except (TypeError, ValueError) as error:
        raise InvalidArgumentsError(task_class.name, [str(error)]) from None


def _encrypted(content: Envelope, cipher: Cipher) -> Envelope:
    if not cipher.keys:
        raise ConfigurationError(
            f"{content.name} is encrypted, but this process has no key: set {SETTING}=ID:KEY, with "
            "a KEY of 'openssl rand -base64 32'"
        )
    args = encrypted_arguments(content.args, content.id, cipher)
    return replace(content, args=args)


def _lines(first: str, second: str) -> str:
    return f"{first}\n{second}" if first and second else first or second


def _checked_id(task_class: TaskClass, id: str) -> str:
    if not isinstance(id, str):
        problem = f"id: {id!r:.200} must be text: pass str({id!r:.200})"
        raise InvalidArgumentsError(task_class.name, [problem])
    if not is_id(id):
        problem = f"id {id!r:.200} must be 1 to 128 printable ASCII characters without blanks"
        raise InvalidArgumentsError(task_class.name, [problem])
    return str(id)


def _check_own_id(task_class: TaskClass, id: str) -> None:
    if problem := reserved_problem(_checked_id(task_class, id)):
        raise InvalidArgumentsError(task_class.name, [problem])


def _due(task_class: TaskClass, options: Options) -> int:
    """Return the earliest start as `Submission.due_us`."""
    at_time, delay = options.at_time, options.delay
    problem = _time_problem(at_time) if at_time is not None else ""
    if delay is not None:
        problem = f"delay: {wrong}" if (wrong := delay_problem(delay)) else problem
        if at_time is not None:
            problem = problem or "pass at_time or delay, not both"
    if problem:
        raise InvalidArgumentsError(task_class.name, [problem])
    if delay is not None:
        return -microseconds(delay)
    return 0 if at_time is None else unix_microseconds(at_time)


def _time_problem(at_time: object) -> str:
    """Return what is wrong with an ``at_time``; empty if it is valid."""
    aware = "pass an aware datetime, such as datetime.now(UTC) + timedelta(hours=1), or delay=3600"
    if not isinstance(at_time, datetime):
        return f"at_time: {at_time!r:.100} must be a datetime: {aware}"
    return f"at_time: {at_time!r} has no time zone: {aware}" if is_naive(at_time) else ""


def _start_problem(start_by: StartBy, options: Options) -> str:
    """Return why a task could never start: it may not start before its deadline; else empty."""
    now = datetime.now(UTC)
    if options.delay is not None:
        start, name = now + span_of(options.delay), f"delay ({options.delay!r})"
    elif options.at_time is not None:
        start, name = options.at_time, f"at_time ({options.at_time:%Y-%m-%d %H:%M:%S})"
    else:
        return ""
    end = start_by if isinstance(start_by, datetime) else now + span_of(start_by)
    if start < end:
        return ""
    return (
        f"{start_by!r}, counted from now, ends before {name}, so the task would never run: pass a "
        "later start_by, or None"
    )


def _unique_key(
    task_class: TaskClass, task: Any, unique: Unique, content: Envelope, in_group: str | bool
) -> str:
    problem = ""
    if not isinstance(unique, Unique):
        problem = f"is {unique!r:.100}, but must be a nonet.Unique, as Unique.until_done(), or None"
    elif task_class.cls.durable:
        problem = "a durable task is kept in SQL before Redis can check its key"
    elif in_group:
        problem = (
            "a group or workflow waits for its own tasks, so they cannot be merged with another "
            "task: pass unique=None, or use a class without unique in it"
        )
    try:
        if not problem:
            return unique.key_of(task, task_class.name, content.args)
    except Exception as error:  # the author's key function can raise anything
        problem = (
            str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        )
    raise InvalidArgumentsError(task_class.name, [f"unique: {problem}"])


def _packed_labels(task_class: TaskClass, labels: Mapping[str, Any]) -> dict[str, Any]:
    if not all(isinstance(name, str) and name.isprintable() for name in labels):
        raise InvalidArgumentsError(task_class.name, ["labels: names must be printable text"])
    try:
        return {name: pack(value) for name, value in labels.items()}
    except TypeError as error:
        raise InvalidArgumentsError(task_class.name, [f"labels: {error}"]) from None


def _deadline(task_class: TaskClass, at_time: datetime | None) -> StartBy | FromClass:
    """Return the `start_by` of a task whose class counts it from `at_time`."""
    span = task_class.cls.start_by
    if span is None or at_time is None or is_naive(at_time):  # `prepare` refuses the latter
        return FROM_CLASS
    return span_of(span) + max(at_time - datetime.now(UTC), timedelta())
