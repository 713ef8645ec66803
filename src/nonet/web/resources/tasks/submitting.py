"""Submit the tasks of a request, which can safely be repeated with a key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from nonet.base.errors import InvalidArgumentsError, UnknownTaskError
from nonet.base.messages.message import MAX_ELEMENTS
from nonet.base.messages.repetition import Repeat, repeat_of_request
from nonet.client.submitting import bound
from nonet.operate.submitting import submit_each
from nonet.rules.permissions import Action, Principal
from nonet.tasks.carried import carried_names
from nonet.tasks.task import FROM_CLASS, BaseTask, Options
from nonet.tasks.unique import Unique
from nonet.web.routing import Body, ClassName, Id, Seconds, Text
from nonet.web.site import Site

_MOST_TASKS = 1000
_MOST_DAYS = 3653
_DEEPEST = 50


def _sendable(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse values that are too large or too deep for a message, and lone surrogates."""
    level: list[Any] = [value]
    number = 0
    for _ in range(_DEEPEST):
        number += sum(map(len, level))
        if number > MAX_ELEMENTS:
            raise ValueError(f"it has more than {MAX_ELEMENTS:,} elements")
        nested = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for items in nested for child in items if isinstance(child, dict | list)]
        if not level:
            json.dumps(value, ensure_ascii=False).encode()  # raises a ValueError
            return value
    raise ValueError(f"it is nested more than {_DEEPEST} levels deep")


def _reachable(at: datetime) -> datetime:
    if at.replace(tzinfo=None) > datetime.now() + timedelta(days=_MOST_DAYS):
        raise ValueError("it must be within the next ten years")
    return at if at.tzinfo else at.replace(tzinfo=UTC)


Values = Annotated[dict[str, JsonValue], AfterValidator(_sendable)]


class UniqueKey(Body):
    """Submit the task only if no other task holds the same key."""

    mode: Literal["until_start", "until_done", "for_seconds", "debounce", "keep_latest"] = Field(
        description="How long a task holds the key."
    )
    seconds: Annotated[float, Field(gt=0, le=_MOST_DAYS * 86400, allow_inf_nan=False)] | None = (
        Field(default=None, description="The duration of `for_seconds` or `debounce`.")
    )
    key: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None, description="The key; null: as the class defines, or class and arguments."
    )

    def made(self) -> Unique:
        """Return it as a value for `nonet.Nonet.submit`."""
        if (self.mode in ("for_seconds", "debounce")) != (self.seconds is not None):
            raise ValueError(
                "unique: give seconds with the modes for_seconds and debounce, and only there"
            )
        span = () if self.seconds is None else (self.seconds,)
        made: Unique = getattr(Unique, self.mode)(*span, self.key)
        return made


class NewTask(Body):
    """A task to submit."""

    task: ClassName = Field(
        description="Task class: its full name `category:Class`, or its bare name if it is unique."
    )
    arguments: Values = Field(default={}, description="The arguments of the class by name.")
    id: Id | None = Field(
        default=None,
        description="An id of your own: submitting it again returns the same task. Ids that look "
        "like Nonet's own are refused. Not together with an Idempotency-Key.",
    )
    at: Annotated[datetime, AfterValidator(_reachable)] | None = Field(
        default=None,
        description="Do not start before this time: ISO 8601, UTC unless it has an offset.",
    )
    delay: Seconds | None = Field(
        default=None, description="Do not start before this many seconds from now."
    )
    start_by: Annotated[float, Field(gt=0, le=_MOST_DAYS * 86400, allow_inf_nan=False)] | None = (
        Field(
            default=None,
            description="The task expires unless it starts within this many seconds; null: no "
            "deadline; left out: as the class defines.",
        )
    )
    labels: Values = Field(
        default={}, description="Free data. `priority` and `size` override the class."
    )
    unique: UniqueKey | None = Field(
        default=None,
        description="Which submissions count as the same task; null: only those with the same id; "
        "left out: as the class defines.",
    )

    def options(self) -> Options:
        """Return the options for the submission."""
        if self.at is not None and self.delay is not None:
            raise ValueError("give at or delay, not both")
        given = self.model_fields_set
        unique = self.unique.made() if self.unique else None
        return Options(
            at_time=self.at,
            delay=self.delay,
            id=self.id,
            labels=self.labels,
            start_by=self.start_by if "start_by" in given else FROM_CLASS,
            unique=unique if "unique" in given else FROM_CLASS,
        )


class Changes(Body):
    """How a task is submitted again."""

    changes: Values = Field(
        default={},
        description="Arguments by name that replace those it had. A task with changes keeps no "
        "secret: give it again.",
    )


class NewTasks(Body):
    """Tasks to submit together."""

    tasks: Annotated[list[NewTask], Field(min_length=1, max_length=_MOST_TASKS)]


class Submitted(BaseModel):
    """A task that was accepted."""

    id: str = Field(description="Id of the task, or of the other task that holds its unique key.")
    created: bool = Field(description="False if the task existed before.")


class SubmittedTasks(BaseModel):
    """Tasks that were accepted, in the order of the request."""

    tasks: list[Submitted]


async def made(
    site: Site, who: Principal, asked: Sequence[NewTask], key: str | None, body: BaseModel
) -> list[Submitted]:
    """Submit tasks on behalf of a caller.

    Args:
        key: the idempotency key of the request.
        body: of the request, which may not change if the key is sent again.

    Raises:
        ValueError: a task is invalid; nothing was submitted.
    """
    wanted: list[tuple[BaseTask, Options]] = []
    for number, item in enumerate(asked):
        try:
            task, options = _checked(site, item, key)
            if len(asked) > 1:  # to name the task that is invalid
                site.client.envelopes.prepare(task, options)
            wanted.append((task, options))
        except (InvalidArgumentsError, UnknownTaskError, ValueError) as error:
            if len(asked) == 1:
                raise
            raise ValueError(f"tasks.{number}: {error}; nothing was submitted") from None
    what = ", ".join(dict.fromkeys(type(task).__name__ for task, _ in wanted))
    async with site.changing(who, Action.SUBMIT, f"submit {len(wanted)} of {what:.200}"):
        repeats = _repeats(site, who, key, _digest(body), len(wanted))
        handles = await submit_each(site.client, wanted, repeats)
    return [Submitted(id=str(handle), created=handle.created) for handle in handles]


def _checked(site: Site, item: NewTask, key: str | None) -> tuple[BaseTask, Options]:
    if key is not None and item.id is not None:
        raise ValueError("id: leave it out, because the Idempotency-Key decides it")
    for name in carried_names().intersection(item.labels):
        raise ValueError(
            f"labels.{name}: the API may not set it, because tasks take it as their context "
            "(carry_context): leave it out"
        )
    task_class = site.registry.get(item.task)
    options = item.options()
    return bound(task_class, [], item.arguments), options


def _repeats(
    site: Site, who: Principal, key: str | None, digest: bytes, number: int
) -> list[Repeat]:
    if key is None:
        return []
    namespace = site.nonet.settings.namespace
    return [repeat_of_request(namespace, who.name, key, at, digest) for at in range(number)]


def _digest(body: BaseModel) -> bytes:
    """Return what two requests share exactly if they ask for the same."""
    content = body.model_dump(mode="json", exclude_unset=True)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
