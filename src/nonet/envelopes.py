"""Messages of tasks: what a submission sends, and what a worker reads of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from nonet.errors import InvalidArgumentsError, NonetError, UnknownTaskError
from nonet.execution import running_context
from nonet.live import LiveConfig
from nonet.message import VERSION, Envelope, encode, is_id, open_envelope, pack
from nonet.registry import Registry, TaskClass
from nonet.signing import Signer
from nonet.stores.broker import Submission
from nonet.task import BaseTask, Priority, Size, task_locks, vo_of


class Envelopes:
    """Makes submissions of tasks, and reads envelopes, with the settings of this process.

    Args:
        registry: task names and classes.
        live_config: what the configuration says of the classes instead.
        signer: signs and verifies the envelopes.
        message_limit: longest envelope, in bytes, its signature included.
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
        *,
        at_time: datetime | None = None,
        id: str | None = None,
        labels: Mapping[str, Any] | None = None,
        child_of: str = "",
        callback_of: str = "",
    ) -> Submission:
        """Everything about a submission that can be checked before Redis is asked.

        Raises:
            RegistrationError: the class is not registered.
            InvalidArgumentsError: arguments, labels, locks or id do not fit.
        """
        task_class = self._registry.of(task)
        id = _checked_id(task_class, id) if id is not None else uuid.uuid4().hex
        labels = labels or {}
        running = running_context()
        content = Envelope(
            version=VERSION,
            id=id,
            name=task_class.name,
            args=task_class.arguments.pack(task),
            labels=_packed_labels(task_class, labels),
            submitted=time.time(),
            parent=running.id if running else "",
            group=callback_of,
        )
        try:
            envelope = self._signer.signed(encode(content))
        except TypeError as error:
            raise InvalidArgumentsError(task_class.name, [str(error)]) from None
        if len(envelope) > self._message_limit:
            problem = (
                f"the message has {len(envelope)} bytes, the limit is {self._message_limit} "
                "(NONET_MESSAGE_LIMIT); pass a reference to large data instead"
            )
            raise InvalidArgumentsError(task_class.name, [problem])
        return Submission(
            id=id,
            name=task_class.name,
            stream=self._stream(task_class, task, labels),
            envelope=envelope,
            locks=self._locks(task_class, task, labels),
            due_us=_microseconds(at_time) if at_time else 0,
            group=child_of,
        )

    def prepare_again(
        self,
        name: str,
        args: Mapping[str, Any],
        *,
        id: str,
        labels: Mapping[str, Any],
        callback_of: str = "",
    ) -> Submission:
        """`prepare` for arguments that were submitted before, as a worker would read them.

        Raises:
            UnknownTaskError: the class is not registered.
            InvalidArgumentsError: its class refuses them.
        """
        task_class = self._registry.find(name)
        if task_class is None:
            raise UnknownTaskError(name, [item.name for item in self._registry])
        try:
            task = task_class.arguments.build(args)
        except NonetError:
            raise
        except Exception as error:  # the author's constructor refuses them
            problem = f"{type(error).__name__}: {error}"
            raise InvalidArgumentsError(task_class.name, [problem]) from error
        return self.prepare(task, id=id, labels=labels, callback_of=callback_of)

    def read(self, id: str, data: bytes) -> Envelope:
        """The envelope of task `id`, as a worker with the settings of this process reads it.

        Raises:
            MalformedMessageError: a worker would put it into the quarantine.
        """
        return open_envelope(data, id, self._signer, limit_bytes=self._message_limit)

    def read_again(self, id: str, data: bytes) -> Envelope:
        """As `read`, for who makes the envelope anew (`prepare_again`).

        Raises:
            MalformedMessageError: as in `read`; or it is signed, and this process has no key to
                verify it with.
        """
        self._signer.check_key(data)
        return self.read(id, data)

    def _stream(self, task_class: TaskClass, task: BaseTask, labels: Mapping[str, Any]) -> str:
        overrides = self._live_config.overrides
        own_priority, own_size = overrides.stream(task_class, vo_of(task, labels))
        try:
            priority = Priority(labels.get("priority", own_priority))
            size = Size(labels.get("size", own_size))
        except ValueError as error:
            raise InvalidArgumentsError(task_class.name, [f"label: {error}"]) from None
        return f"{priority}:{size}"

    def _locks(self, task_class: TaskClass, task: BaseTask, labels: Mapping[str, Any]) -> str:
        try:
            lines = task_locks(task, task_class.name, labels)
            if len(lines) > self._message_limit:
                raise ValueError(
                    f"they take {len(lines)} bytes, the limit is {self._message_limit} "
                    "(NONET_MESSAGE_LIMIT)"
                )
        except ValueError as error:
            raise InvalidArgumentsError(task_class.name, [f"execution_locks: {error}"]) from None
        return lines


def _checked_id(task_class: TaskClass, id: str) -> str:
    if not is_id(id):
        problem = f"id {id!r:.200} must be 1 to 128 printable ASCII characters without blanks"
        raise InvalidArgumentsError(task_class.name, [problem])
    return str(id)


def _packed_labels(task_class: TaskClass, labels: Mapping[str, Any]) -> dict[str, Any]:
    if not all(isinstance(name, str) and name.isprintable() for name in labels):
        raise InvalidArgumentsError(task_class.name, ["labels: names must be printable text"])
    try:
        return {name: pack(value) for name, value in labels.items()}
    except TypeError as error:
        raise InvalidArgumentsError(task_class.name, [f"labels: {error}"]) from None


def _microseconds(instant: datetime) -> int:
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return round(instant.timestamp() * 1_000_000)
