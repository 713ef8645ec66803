"""What was submitted, and how tests ask for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic

from typing_extensions import TypeVar

from nonet.base.errors import suggestion
from nonet.client.envelopes import Envelopes
from nonet.stores.queue.submissions import Submission
from nonet.tasks.arguments import Arguments
from nonet.tasks.registry import TaskClass
from nonet.tasks.task import PLAIN, BaseTask, Options

T = TypeVar("T", bound=BaseTask)
T_co = TypeVar("T_co", bound=BaseTask, covariant=True, default=BaseTask)

_MOST_SHOWN = 20
_LONGEST_VALUE = 80


@dataclass(frozen=True)
class Submitted(Generic[T_co]):
    """One task that was submitted; generic in its class.

    Attributes:
        id: of the task.
        task: the very instance.
        at_time: when it is to run at the earliest; None: at once.
        labels: of the submission.

    Example:
        found = system.assert_submitted(Add)
        assert found[0].task.a == 1
    """

    id: str
    task: T_co
    at_time: datetime | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        later = f" at {self.at_time.isoformat()}" if self.at_time else ""
        labels = f" labels={dict(self.labels)}" if self.labels else ""
        return f"{_shown(self.task)}{later}{labels}"


def said_of(id: str, task: BaseTask, options: Options) -> Submitted:
    """What a test is told of a submission."""
    return Submitted(id, task, options.at_time, options.labels or {})


class RecordingEnvelopes(Envelopes):
    """Makes submissions, and remembers of which tasks.

    Args:
        plain: what makes them.
        known: of some ids, those that Redis knows.
    """

    def __init__(self, plain: Envelopes, known: Callable[[Sequence[str]], set[str]]) -> None:
        vars(self).update(vars(plain))
        self._known = known
        self._prepared: dict[str, Submitted] = {}
        self._submitted: set[str] = set()

    def prepare(self, task: BaseTask, options: Options = PLAIN, **origin: Any) -> Submission:
        """See `Envelopes.prepare`."""
        made = super().prepare(task, options, **origin)
        # An id that was submitted before is the same task.
        self._prepared.setdefault(made.id, said_of(made.id, task, options))
        return made

    @property
    def prepared(self) -> int:
        """How many submissions were made, whatever became of them."""
        return len(self._prepared)

    def submitted(self) -> list[Submitted]:
        """Those of the tasks that Redis knows, or did when it was asked before; oldest first.

        What was prepared by an attempt that failed, or as a callback that is not due, is unknown.
        """
        self._submitted |= self._known([id for id in self._prepared if id not in self._submitted])
        return [item for id, item in self._prepared.items() if id in self._submitted]


def find(
    submitted: Sequence[Submitted], known: TaskClass, arguments: Mapping[str, Any]
) -> list[Submitted]:
    """Those of a class whose arguments have these values.

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
        if type(item.task) is known.cls
        and all(_value(item.task, name) == value for name, value in arguments.items())
    ]


def check_submitted(
    submitted: Sequence[Submitted],
    known: TaskClass,
    arguments: Mapping[str, Any],
    times: int | None,
) -> list[Submitted]:
    """What `find` gives; fails with all that was submitted if that is not so many.

    Args:
        times: None: at least one.
    """
    __tracebackhide__ = True
    found = find(submitted, known, arguments)
    if len(found) == times or (times is None and found):
        return found
    wanted = f"{known.cls.__name__}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
    expected = "at least once" if times is None else _times(times)
    text = f"{wanted} was submitted {_times(len(found))}, not {expected}"
    alike_first = sorted(submitted, key=lambda item: type(item.task) is not known.cls)
    raise AssertionError(f"{text}\n{listed(alike_first)}")


def listed(submitted: Sequence[Submitted]) -> str:
    """All that was submitted, one line for equal ones."""
    if not submitted:
        return "nothing was submitted"
    counted = Counter(map(str, submitted))
    lines = [
        f"  {line}" + (f" ({_times(number)})" if number > 1 else "")
        for line, number in list(counted.items())[:_MOST_SHOWN]
    ]
    if len(counted) > _MOST_SHOWN:
        lines.append(f"  … and {len(counted) - _MOST_SHOWN} others")
    return "submitted were:\n" + "\n".join(lines)


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _shown(task: BaseTask) -> str:
    shown = ", ".join(f"{name}={_short(value)}" for name, value in _values(task).items())
    return f"{type(task).__name__}({shown})"


def _value(task: BaseTask, name: str) -> Any:
    """An argument as the task keeps it, else as it travels."""
    return getattr(task, name) if hasattr(task, name) else _values(task)[name]


def _values(task: BaseTask) -> Mapping[str, Any]:
    """The arguments by name, as they travel."""
    travelling: Any = task.serialize()
    if isinstance(travelling, Mapping):
        return travelling
    return dict(zip(Arguments(type(task)).names, travelling, strict=False))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
