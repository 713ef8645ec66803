"""`Submitted`: tasks that were submitted, for the assertions of tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic

from typing_extensions import TypeVar

from nonet.base.errors import suggestion
from nonet.base.messages.terms import span_of
from nonet.client.envelopes import Envelopes
from nonet.stores.queue.submissions import Submission
from nonet.tasks.arguments import Arguments
from nonet.tasks.function import FunctionTask
from nonet.tasks.registry import TaskClass
from nonet.tasks.task import NO_OPTIONS, BaseTask, Given, Options

T = TypeVar("T", bound=BaseTask)
T_co = TypeVar("T_co", bound=BaseTask, covariant=True, default=BaseTask)

_MOST_SHOWN = 20
_LONGEST_VALUE = 80


@dataclass(frozen=True)
class Submitted(Generic[T_co]):
    """A task that was submitted; generic in its class.

    Attributes:
        id: id of the task.
        task: the submitted instance; of a step that waits for results, what `BaseTask.given`
            returned.
        at_time: earliest start; None: at once, or after `delay`.
        delay: time from the submission to the earliest start; None: none was given.
        labels: labels of the submission.

    Example:
        found = system.assert_submitted(Add)
        assert found[0].task.a == 1
    """

    id: str
    task: T_co
    at_time: datetime | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    delay: timedelta | None = None

    def __str__(self) -> str:
        later = f" at {self.at_time.isoformat()}" if self.at_time else ""
        later = f" after {self.delay}" if self.delay else later
        labels = f" labels={dict(self.labels)}" if self.labels else ""
        return f"{_shown(self.task)}{later}{labels}"


def submitted_of(id: str, task: BaseTask | Given[Any], options: Options) -> Submitted:
    """Describe a submission for a test."""
    given: Any = task  # a step that waits for results is no task yet
    delay = None if options.delay is None else span_of(options.delay)
    return Submitted(id, given, options.at_time, options.labels or {}, delay)


class RecordingEnvelopes(Envelopes):
    """Makes submissions, and records their tasks.

    Args:
        plain: the envelopes to extend.
        known: selects the ids that Redis knows.
    """

    def __init__(self, plain: Envelopes, known: Callable[[Sequence[str]], set[str]]) -> None:
        vars(self).update(vars(plain))
        self._known = known
        self._prepared: dict[str, Submitted] = {}
        self._submitted: set[str] = set()

    def prepare(
        self, task: BaseTask | Given[Any], options: Options = NO_OPTIONS, **origin: Any
    ) -> Submission:
        """See `Envelopes.prepare`."""
        made = super().prepare(task, options, **origin)
        # The same id is the same task: keep the first submission.
        self._prepared.setdefault(made.id, submitted_of(made.id, task, options))
        return made

    @property
    def prepared(self) -> int:
        """How many submissions were prepared, including those that were never sent."""
        return len(self._prepared)

    def submitted(self) -> list[Submitted]:
        """Return the tasks that Redis knows, or knew at an earlier call, oldest first.

        Redis does not know submissions of a failed attempt, or a callback that is not due yet.
        """
        self._submitted |= self._known([id for id in self._prepared if id not in self._submitted])
        return [item for id, item in self._prepared.items() if id in self._submitted]


def find(
    submitted: Sequence[Submitted], known: TaskClass, arguments: Mapping[str, Any]
) -> list[Submitted]:
    """Return the submissions of a class whose arguments have these values.

    Raises:
        TypeError: the class has no such argument.
    """
    for name in arguments:
        if name not in known.arguments.names:
            listed_names = ", ".join(known.arguments.names) or "none"
            names = suggestion(name, known.arguments.names) or f" It has {listed_names}."
            raise TypeError(f"{known.cls.__name__} has no argument {name!r}.{names}")
    return [
        item
        for item in submitted
        if _class(item.task) is known.cls
        and all(_value(item.task, name) == value for name, value in arguments.items())
    ]


def check_submitted(
    submitted: Sequence[Submitted],
    known: TaskClass,
    arguments: Mapping[str, Any],
    times: int | None,
) -> list[Submitted]:
    """Return submissions like `find`, and fail if their number is wrong.

    Args:
        times: expected number; None: at least one.
    """
    __tracebackhide__ = True
    found = find(submitted, known, arguments)
    if len(found) == times or (times is None and found):
        return found
    wanted = f"{known.cls.__name__}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
    expected = "at least once" if times is None else _times(times)
    text = f"{wanted} was submitted {_times(len(found))}, not {expected}"
    alike_first = sorted(submitted, key=lambda item: _class(item.task) is not known.cls)
    raise AssertionError(f"{text}\n{listed(alike_first)}")


def listed(submitted: Sequence[Submitted]) -> str:
    """List all submissions, equal ones in one line."""
    if not submitted:
        return "nothing was submitted"
    counted = Counter(map(str, submitted))
    lines = [
        f"  {line}" + (f" ({_times(number)})" if number > 1 else "")
        for line, number in list(counted.items())[:_MOST_SHOWN]
    ]
    if len(counted) > _MOST_SHOWN:
        lines.append(f"  … and {len(counted) - _MOST_SHOWN} others")
    return "these tasks were submitted:\n" + "\n".join(lines)


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _class(task: BaseTask | Given[Any]) -> type[BaseTask]:
    return task.cls if isinstance(task, Given) else type(task)


def _shown(task: BaseTask | Given[Any]) -> str:
    shown = ", ".join(f"{name}={_short(value)}" for name, value in _values(task).items())
    return f"{_class(task).__name__}({shown})"


def _value(task: BaseTask | Given[Any], name: str) -> Any:
    """An argument as an attribute of the task, or as it is serialized."""
    if isinstance(task, Given):
        return task.values.get(name)
    # An argument of a function may have the name of a class attribute, as `size` does.
    is_attribute = hasattr(task, name) and not isinstance(task, FunctionTask)
    return getattr(task, name) if is_attribute else _values(task)[name]


def _values(task: BaseTask | Given[Any]) -> Mapping[str, Any]:
    """The serialized arguments by name."""
    if isinstance(task, Given):
        return task.values
    serialized: Any = task.serialize()
    if isinstance(serialized, Mapping):
        return serialized
    return dict(zip(Arguments(type(task)).names, serialized, strict=False))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
