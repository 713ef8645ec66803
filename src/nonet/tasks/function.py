"""``@task``: makes a task class of a function, where writing a class would be too much."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from nonet.base.errors import suggestion
from nonet.base.streams import Priority, Size
from nonet.tasks.class_checks import OTHER_NAMES
from nonet.tasks.injection import is_injected
from nonet.tasks.locks import BaseLock, encode_locks
from nonet.tasks.retry import RetryPolicyBase
from nonet.tasks.schedules import TaskScheduleBase
from nonet.tasks.task import BaseTask, Isolation, PeriodicBaseTask
from nonet.tasks.unique import Unique

P = ParamSpec("P")
T = TypeVar("T")

# Not Callable[..., …], with which pyright cannot infer the parameters of a lambda.
LocksOf = (
    Callable[[Any], Iterable[BaseLock]]
    | Callable[[Any, Any], Iterable[BaseLock]]
    | Callable[[Any, Any, Any], Iterable[BaseLock]]
    | Callable[[Any, Any, Any, Any], Iterable[BaseLock]]
)
"""Returns the locks of a task; its parameters are some of the arguments of the task, by name."""


class TaskAttributes(TypedDict, total=False):
    """The options of `task`: class attributes of `BaseTask`, and two more."""

    priority: Priority
    size: Size
    retry_policy: RetryPolicyBase
    expected: tuple[type[BaseException], ...]
    dlq_eligible: bool
    soft_timeout: float | None
    hard_timeout: float | None
    isolation: Isolation | None
    memory_limit: int | str | None
    cpu_limit: float | None
    start_by: float | timedelta | None
    unique: Unique | None
    durable: bool
    encrypted: bool
    log_lines: int
    on_commit: bool
    min_version: str | None
    locks: LocksOf | Iterable[BaseLock]
    schedule: TaskScheduleBase


class FunctionTask(BaseTask, Generic[P, T]):
    """Base of the classes that `task` makes of functions.

    Its arguments are the arguments of the function that are not injected. They are attributes, too,
    unless the class has an attribute of that name.

    Example:
        @task
        async def double(number: int) -> int:
            return 2 * number

        assert issubclass(double, FunctionTask)
        assert await double(4).execute() == 8
    """

    # The signatures of the function: complete, and without injected parameters.
    _whole: ClassVar[inspect.Signature]
    _signature: ClassVar[inspect.Signature]

    if TYPE_CHECKING:
        _call: tuple[tuple[Any, ...], dict[str, Any]]

        def __init__(self, *args: P.args, **kwargs: P.kwargs) -> None: ...

        def execute(self, *args: Any, **kwargs: Any) -> T:
            """Call the function with the arguments of this task and the injected ones."""
            raise NotImplementedError

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self._arguments.items())
        return f"{type(self).__name__}({arguments})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionTask) or type(self) is not type(other):
            return NotImplemented
        return self._arguments == other._arguments

    @property
    def _arguments(self) -> Mapping[str, Any]:
        args, kwargs = self._call
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments


@overload
def task(function: Callable[P, T], /) -> type[FunctionTask[P, T]]: ...


@overload
def task(
    **options: Unpack[TaskAttributes],
) -> Callable[[Callable[P, T]], type[FunctionTask[P, T]]]: ...


def task(function: Any = None, /, **options: Unpack[TaskAttributes]) -> Any:
    """Make a task class of a function; its arguments are the arguments of the task.

    The class is used like any other: ``add(1, 2).schedule()`` submits a task, and the name of the
    class is the name of the function. Parameters that are marked with `nonet.Depends`, in their
    annotation or as their default, are injected, and are not arguments. In a unit test call
    ``add(1, 2).execute()``, which awaits or returns what the function does; injected parameters are
    passed to it.

    Args:
        function: ``async def``, or ``def``, which runs in a thread.
        options: class attributes of `nonet.BaseTask` by name, as ``priority``, ``size`` and
            ``retry_policy``; and the following two.
        locks: locks of the task, besides the default ones: a list, or a function that returns one.
            Its parameters are some of the task's, by name.
        schedule: makes a periodic task, which the scheduler submits.

    Raises:
        TypeError: it is not a function, or an option is unknown.

    Example:
        @task(size=Size.SMALL, locks=lambda path: [MutexLock("job", path)])
        async def resize(path: str, width: int = 800, db: FileDB = Depends(FileDB)) -> int:
            return width

        handle = await resize("/a.png", width=640).schedule(delay=60)
        assert await resize("/a.png").execute(db=FileDB()) == 800
    """
    if function is None:
        return functools.partial(_class_of, options=options)
    return _class_of(function, options)


def _class_of(function: Any, options: TaskAttributes) -> type[FunctionTask[..., Any]]:
    """Make the class."""
    _check(function, options)
    attributes: dict[str, Any] = {**options}
    locks, schedule = attributes.pop("locks", None), attributes.pop("schedule", None)
    whole = inspect.signature(function)
    injected = [each for each in whole.parameters.values() if is_injected(function, each)]
    names = {each.name for each in injected}
    own = [each for name, each in whole.parameters.items() if name not in names]
    body: dict[str, Any] = {
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
        "__init__": _init(function, own),
        "execute": _execute(function, injected),
        "_whole": whole,
        "_signature": whole.replace(parameters=own),
        **attributes,
    }
    if locks is not None:
        body["execution_locks"] = _execution_locks(function, locks, {each.name for each in own})
    if schedule is None:
        return type(function.__name__, (FunctionTask,), body)
    return type(function.__name__, (FunctionTask, PeriodicBaseTask), body | {"_schedule": schedule})


def _check(function: Any, options: TaskAttributes) -> None:
    """Refuse an object of which no class can be made.

    Raises:
        TypeError: it is not a function, or an option is unknown.
    """
    if not inspect.isfunction(function) or not function.__name__.isidentifier():
        what = "a class: derive it from BaseTask" if inspect.isclass(function) else "not a function"
        raise TypeError(f"@task: {function!r:.200} is {what}")
    if "self" in inspect.signature(function).parameters:
        raise TypeError(
            f"@task: {function.__qualname__} has a parameter self: use a function of a module, "
            "without self, and context() in it"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"@task: {function.__qualname__} is a generator: return the result instead of "
            "yielding it"
        )
    for name in options.keys() - TaskAttributes.__optional_keys__:
        known = TaskAttributes.__optional_keys__
        hint = suggestion(name, known) or f" There are {', '.join(sorted(known))}"
        if name in OTHER_NAMES:
            hint = f" Write {OTHER_NAMES[name]}"
        raise TypeError(f"@task: {function.__qualname__}: there is no option {name!r}.{hint}")


class _AnyFunctionTask(FunctionTask[..., Any], PeriodicBaseTask):
    """Has the attributes of every class that is made here, which no argument hides."""


_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _init(function: Any, own: list[inspect.Parameter]) -> Callable[..., None]:
    """Make the constructor, whose signature tells Nonet the arguments."""
    signature = inspect.Signature(own)
    names = [each.name for each in own if not hasattr(_AnyFunctionTask, each.name)]

    def __init__(self: FunctionTask[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(*args, **kwargs)  # now, and not in a worker
        except TypeError as error:
            hint = ""
            if "missing" in str(error):
                hint = (
                    f"; for the result of a step before write {function.__name__}.given(…=PREVIOUS)"
                )
            raise TypeError(f"{function.__qualname__}(): {error}{hint}") from None
        bound.apply_defaults()
        for name in names:
            self.__dict__[name] = bound.arguments[name]

    return _disguised(__init__, function, [_SELF, *own])


def _execute(function: Any, injected: list[inspect.Parameter]) -> Callable[..., Any]:
    """Make ``execute``, whose parameters are injected."""
    names = [each.name for each in injected]

    def call(self: FunctionTask[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        named = {**dict(zip(names, given, strict=False)), **named}
        args, kwargs = self._call
        if not args:  # as in a worker
            return function(**kwargs, **named)
        values = {**self._signature.bind(*args, **kwargs).arguments, **named}
        bound = inspect.BoundArguments(self._whole, OrderedDict(values))
        return function(*bound.args, **bound.kwargs)

    async def execute_async(self: FunctionTask[..., Any], *given: Any, **named: Any) -> Any:
        return await call(self, given, named)

    def execute(self: FunctionTask[..., Any], *given: Any, **named: Any) -> Any:
        return call(self, given, named)

    made = execute_async if inspect.iscoroutinefunction(function) else execute
    return _disguised(made, function, [_SELF, *injected])


def _disguised(
    method: Any, function: Any, parameters: list[inspect.Parameter]
) -> Callable[..., Any]:
    """Give a method some parameters of a function, and their annotations."""
    functools.update_wrapper(method, function)  # annotations use names of its module
    method.__name__ = method.__code__.co_name.removesuffix("_async")
    method.__qualname__ = f"{function.__qualname__}.{method.__name__}"
    method.__signature__ = inspect.signature(function).replace(parameters=parameters)
    kept = [each.name for each in parameters] + ["return"] * (method.__name__ == "execute")
    annotations = inspect.get_annotations(function)
    method.__annotations__ = {name: annotations[name] for name in kept if name in annotations}
    made: Callable[..., Any] = method
    return made


def _execution_locks(function: Any, locks: Any, arguments: set[str]) -> property:
    """Make the property that declares the locks.

    Raises:
        TypeError: a parameter of `locks` is not an argument of the task, or it is one lock.
        ValueError: a lock is declared wrongly.
    """
    if isinstance(locks, BaseLock):
        raise TypeError(f"@task: {function.__qualname__}: locks is one lock: put it into a list")
    names = list(inspect.signature(locks).parameters) if callable(locks) else []
    for unknown in set(names) - arguments:
        raise TypeError(
            f"@task: {function.__qualname__}: locks takes {unknown}, which is not an argument of "
            f"the task: it has {', '.join(sorted(arguments)) or 'none'}"
        )
    more: list[BaseLock] = [] if callable(locks) else list(locks)
    encode_locks(more)  # raises for a wrong one

    def execution_locks(self: FunctionTask[..., Any]) -> list[BaseLock]:
        declared = super(FunctionTask, self).execution_locks
        if not callable(locks):
            return [*declared, *more]
        values = self._arguments
        return [*declared, *locks(**{name: values[name] for name in names})]

    if callable(locks):
        execution_locks.__wrapped__ = locks  # type: ignore[attr-defined]  # its code names lock types
    return property(execution_locks)
