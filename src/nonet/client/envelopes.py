"""Create the message of a submission, and read messages of tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from nonet.base.errors import InvalidArgumentsError, NonetError, UnknownTaskError
from nonet.base.ids import new_id
from nonet.base.streams import Priority, Size
from nonet.client.live import LiveConfig
from nonet.messages.message import VERSION, Envelope, encode, is_id, open_envelope, pack
from nonet.messages.repetition import Repeat
from nonet.messages.signing import Signer
from nonet.messages.terms import StartBy, start_by_problem, start_by_term
from nonet.stores.queue.submissions import Submission
from nonet.tasks.execution import running_context
from nonet.tasks.registry import Registry, TaskClass
from nonet.tasks.task import FROM_CLASS, PLAIN, BaseTask, FromClass, Options, task_locks, vo_of
from nonet.tasks.unique import Unique, unique_lock, unique_term

_Named = TypeVar("_Named", bound=StrEnum)


class Envelopes:
    """Creates submissions and reads messages with the settings of this process.

    Args:
        registry: the task classes.
        live_config: the published configuration, which overrides attributes of classes.
        signer: signs and verifies messages.
        message_limit: longest message in bytes, including its signature.
    """

    def __init__(
        self, registry: Registry, live_config: LiveConfig, signer: Signer, *, message_limit: int
    ) -> None:
        self._registry = registry
        self._live_config = live_config
        self._signer = signer
        self._message_limit = message_limit

    def prepare(
        self,
        task: BaseTask,
        options: Options = PLAIN,
        *,
        child_of: str = "",
        callback_of: str = "",
        trace: str = "",
        repeat: Repeat | None = None,
    ) -> Submission:
        """Validate a task and create its submission, without asking Redis.

        Args:
            options: the options of the submission; its transaction is ignored here.
            child_of, callback_of: the group that the task is a child or callback of.
            trace: the value of `nonet.telemetry.tracing.sending`.
            repeat: the repeat of a dead letter, if it is one; it determines the id.

        Raises:
            RegistrationError: the class is not registered.
            InvalidArgumentsError: an argument, label, lock, id or time is invalid.
        """
        task_class, labels = self._registry.of(task), options.labels or _NO_LABELS
        at_time = options.at_time
        if at_time is not None and not isinstance(at_time, datetime):
            raise InvalidArgumentsError(task_class.name, [_bad_time(at_time)])
        content = self._content(task_class, task, options, callback_of, trace, repeat)
        envelope = self._sealed(content)
        vo, group = vo_of(task, labels), child_of or callback_of
        locks, terms = self._demands(task_class, task, options, content, group)
        if repeat is not None:
            terms = _lines(terms, repeat.term)
        stream = self._stream(task_class, vo, labels)
        due = 0 if at_time is None else _microseconds(at_time)
        return Submission(
            content.id, task_class.name, stream, envelope, locks, due, child_of, terms
        )

    def _content(
        self,
        task_class: TaskClass,
        task: BaseTask,
        options: Options,
        callback_of: str,
        trace: str,
        repeat: Repeat | None,
    ) -> Envelope:
        """First step: create the envelope, which the worker reads."""
        id = repeat.id if repeat is not None else options.id
        running, labels = running_context(), options.labels
        return Envelope(
            VERSION,
            _checked_id(task_class, id) if id is not None else new_id(),
            task_class.name,
            task_class.arguments.pack(task),
            _packed_labels(task_class, labels) if labels else {},
            time.time(),
            running.id if running else "",
            callback_of,
            task_class.cls.min_version or "",
            trace,
            repeat.row if repeat is not None else 0,
        )

    def _sealed(self, content: Envelope) -> bytes:
        """Second step: encode and sign the envelope."""
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
        self, task_class: TaskClass, task: BaseTask, options: Options, content: Envelope, group: str
    ) -> tuple[str, str]:
        """Third step: encode the locks and terms as lines for the scripts."""
        cls, labels = task_class.cls, options.labels or _NO_LABELS
        locks, terms = "", ""
        if vo_of(task, labels) or cls.execution_locks is not BaseTask.execution_locks:
            locks = self._locks(task_class, task, labels)
        deadline = cls.start_by if options.start_by is FROM_CLASS else options.start_by
        if deadline is not None:
            terms = self._start_by(task_class, task, labels, deadline, options.at_time)
        wanted = cls.unique if options.unique is FROM_CLASS else options.unique
        if wanted is not None:
            key = _unique_key(task_class, task, wanted, content, in_group=group)
            locks = _lines(locks, unique_lock(wanted, key))
            terms = _lines(terms, unique_term(wanted, key))
        if content.parent:  # ceilings reserve room for submissions of running tasks: lib/ceilings
            terms = _lines(terms, f"by|{content.parent}")
        return locks, terms

    def prepare_again(
        self,
        name: str,
        args: Mapping[str, Any],
        repeat: Repeat,
        *,
        labels: Mapping[str, Any],
        callback_of: str = "",
        at_time: datetime | None = None,
    ) -> Submission:
        """Prepare a submission from a class name and stored arguments; see `prepare`.

        Args:
            at_time: when the task starts; the `start_by` of its class counts from then.

        Raises:
            UnknownTaskError: the class is not registered.
            InvalidArgumentsError: the class refuses the arguments.
        """
        task_class = self._registry.find(name)
        if task_class is None:
            raise UnknownTaskError(name, [item.name for item in self._registry])
        try:
            task = task_class.arguments.build(args)
        except NonetError:
            raise
        except Exception as error:  # the author's constructor can raise anything
            problem = f"{type(error).__name__}: {error}"
            raise InvalidArgumentsError(task_class.name, [problem]) from error
        options = Options(labels=labels, at_time=at_time, start_by=_deadline(task_class, at_time))
        return self.prepare(task, options, repeat=repeat, callback_of=callback_of)

    def read(self, id: str, data: bytes) -> Envelope:
        """Decode the message of task `id`, as a worker with these settings would.

        Raises:
            MalformedMessageError: a worker would quarantine the message.
        """
        return open_envelope(data, id, self._signer, limit_bytes=self._message_limit)

    def read_again(self, id: str, data: bytes) -> Envelope:
        """Decode a message that will be created anew with `prepare_again`.

        Raises:
            MalformedMessageError: as for `read`, or the message is signed and this process has no
                key to verify it.
        """
        self._signer.check_key(data)
        return self.read(id, data)

    def _stream(self, task_class: TaskClass, vo: str, labels: Mapping[str, Any]) -> str:
        own = self._live_config.overrides.stream(task_class, vo)
        if not labels and (stream := _STREAMS.get(own)):
            return stream
        try:
            priority = _one_of(Priority, labels.get("priority", own[0]))
            size = _one_of(Size, labels.get("size", own[1]))
        except ValueError as error:
            raise InvalidArgumentsError(task_class.name, [f"label: {error}"]) from None
        return _STREAMS[priority, size]

    def _start_by(
        self,
        task_class: TaskClass,
        task: BaseTask,
        labels: Mapping[str, Any],
        wanted: StartBy,
        at_time: datetime | None,
    ) -> str:
        """Return the term for the deadline."""
        problem = start_by_problem(wanted)
        if not problem and at_time is not None and _instant_of(wanted) <= _aware(at_time):
            problem = (
                f"{wanted!r}, counted from now, ends before at_time ({at_time:%Y-%m-%d %H:%M:%S}), "
                "so the task would never run: pass a later start_by, or None"
            )
        if problem:
            raise InvalidArgumentsError(task_class.name, [f"start_by: {problem}"])
        effective = self._live_config.overrides.effective(task_class, vo_of(task, labels))
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
            raise InvalidArgumentsError(task_class.name, [f"execution_locks: {error}"]) from None
        return lines


_NO_LABELS: Mapping[str, Any] = {}
_STREAMS = {(priority, size): f"{priority}:{size}" for priority in Priority for size in Size}


def _one_of(names: type[_Named], value: Any) -> _Named:
    try:
        return names(value)
    except ValueError:
        values = ", ".join(repr(str(name)) for name in names)
        raise ValueError(f"{value!r:.100} is not a valid {names.__name__} ({values})") from None


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


def _bad_time(at_time: object) -> str:
    return (
        f"at_time: {at_time!r:.100} must be a datetime, aware or naive in UTC, such as "
        "datetime.now(UTC) + timedelta(seconds=10)"
    )


def _unique_key(
    task_class: TaskClass, task: BaseTask, unique: Unique, content: Envelope, in_group: str
) -> str:
    problem = ""
    if not isinstance(unique, Unique):
        problem = f"is {unique!r:.100}, but must be a nonet.Unique, as Unique.until_done(), or None"
    elif task_class.cls.durable:
        problem = "a durable task is kept in SQL before Redis can check its key"
    elif in_group:
        problem = (
            "a group waits for its own tasks, so its children and callback cannot be merged with "
            "another task: use a class without unique in the group"
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


def _aware(instant: datetime) -> datetime:
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _instant_of(start_by: StartBy) -> datetime:
    """Return the deadline of a task that is submitted now."""
    if isinstance(start_by, datetime):
        return _aware(start_by)
    span = start_by if isinstance(start_by, timedelta) else timedelta(seconds=start_by)
    return datetime.now(UTC) + span


def _deadline(task_class: TaskClass, at_time: datetime | None) -> StartBy | FromClass:
    """Return the `start_by` of a task whose class counts it from `at_time`."""
    span = task_class.cls.start_by
    if span is None or at_time is None:
        return FROM_CLASS
    length = span if isinstance(span, timedelta) else timedelta(seconds=span)
    return length + max(_aware(at_time) - datetime.now(UTC), timedelta())


def _microseconds(instant: datetime) -> int:
    return round(_aware(instant).timestamp() * 1_000_000)
