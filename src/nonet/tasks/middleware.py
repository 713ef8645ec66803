"""`Middleware`: code around each submission and around each attempt, and how to register it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from nonet.base.errors import RegistrationError
from nonet.base.streams import Priority, Size
from nonet.tasks.entry_points import entries, load
from nonet.tasks.execution import TaskContext
from nonet.tasks.secrecy import masked_arguments
from nonet.tasks.task import BaseTask

if TYPE_CHECKING:
    from nonet.tasks.schedules import TaskScheduleBase


class OutgoingTask:
    """A task that is being submitted, as `Middleware.around_submit` sees it.

    Attributes:
        id: the id that it will have, unless it is merged with another task by its unique key.
        name: full task name, ``category:Class``.
        task_class: the class.
        labels: its labels. Middleware may add some before it yields; those are sent.
        at_time: earliest start; None: now.
        parent: id of the task that submits it, or empty.
        schedule: the schedule of its periodic entry, if a scheduler submits it.

    Example:
        class AddHost(Middleware):
            def around_submit(self, task: OutgoingTask) -> Iterator[None]:
                task.labels.setdefault("host", socket.gethostname())
                yield
    """

    def __init__(
        self,
        id: str,
        name: str,
        task_class: type[BaseTask],
        labels: dict[str, Any],
        at_time: datetime | None = None,
        parent: str = "",
        schedule: TaskScheduleBase | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.task_class = task_class
        self.labels = labels
        self.at_time = at_time
        self.parent = parent
        self.schedule = schedule

    def __repr__(self) -> str:
        return f"OutgoingTask({self.name} {self.id})"


class RunningTask:
    """One attempt of a task, as `Middleware.around_attempt` sees it.

    Attributes:
        id: id of the task, the same in every attempt.
        name: full task name, ``category:Class``.
        task_class: the class.
        attempt: number of this attempt, from 1.
        labels: labels of the submission.
        priority, size: the stream from which it was fetched.
        parent: id of the task that submitted it, or empty.
        submitted: when it was first submitted, by the clock of its submitter, aware.
        outcome: None while the attempt runs. Then how it is about to be settled: ``done``;
            ``retry`` (failed, will be tried again); ``crash`` (the same, its process died);
            ``dead``; ``cancelled``; ``back`` (handed back, no attempt used) or ``lost`` (void).
        error: the exception of a failed attempt, or None.
        is_expected: whether the class declares `error` as expected.
        retry_in: time until the next attempt, if `outcome` is ``retry`` or ``crash``.

    Args:
        context, arguments: the sources of `id`, `labels` and `arguments`; Nonet passes them.

    Example:
        class LogFailures(Middleware):
            async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
                try:
                    yield
                finally:
                    if task.error is not None:
                        print(task.name, task.attempt, task.outcome, task.retry_in)
    """

    def __init__(
        self,
        context: TaskContext,
        task_class: type[BaseTask],
        arguments: Mapping[str, Any],
        priority: Priority,
        size: Size,
        parent: str,
        submitted: datetime,
    ) -> None:
        self._context = context
        self._made_of = arguments
        self.id: str = context.id
        self.name: str = context.name
        self.attempt: int = context.attempt
        self.labels: Mapping[str, Any] = context.labels
        self.task_class = task_class
        self.priority = priority
        self.size = size
        self.parent = parent
        self.submitted = submitted
        self.outcome: str | None = None
        self.error: BaseException | None = None
        self.is_expected: bool = False
        self.retry_in: timedelta | None = None

    def __repr__(self) -> str:
        return f"RunningTask({self.name} {self.id}, attempt {self.attempt})"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name; secret ones are masked."""
        return masked_arguments(self._made_of, self.task_class)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values of secret arguments, to be masked in texts that leave the process."""
        return tuple(self._context.secrets)


class Middleware:
    """Base class of code that runs around submissions and attempts: override what you need.

    Its methods are generators with one ``yield``. Several middlewares nest: the one with the lowest
    `order` is the outermost. An exception in a middleware is logged, counted
    (``nonet_middleware_errors_total``) and changes nothing else: the task is submitted, runs and is
    settled as without the middleware. So put what a task needs into a dependency instead.

    Class attributes:
        order: position; of two with the same order, the one registered first is outside.

    Example:
        class Timing(Middleware):
            async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
                began = time.monotonic()
                try:
                    yield
                finally:
                    print(task.name, task.outcome, time.monotonic() - began)

        register_middleware(Timing())
    """

    order: ClassVar[int] = 0

    def around_submit(self, task: OutgoingTask) -> Iterator[None]:
        """Run around a submission, in the process that submits. Must not wait or block.

        The code before ``yield`` runs before the task is encoded; it may add labels. The code after
        it runs when Redis, or SQL for a durable class, has accepted the task. If the submission
        fails, its exception is raised at the ``yield``. A task of ``after_commit()`` is accepted in
        the settle, after this method has ended.

        Args:
            task: the submission.

        Example:
            class CountSubmissions(Middleware):
                def around_submit(self, task: OutgoingTask) -> Iterator[None]:
                    yield
                    print("accepted", task.name)
        """
        yield

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        """Run around an attempt, in the process that executes it: the worker or a child process.

        The code before ``yield`` runs before the task is built and its dependencies are opened.
        Context variables that it sets are visible to them. The code after it runs when the outcome
        is known and before it is settled. The exception of a failed attempt is raised at the
        ``yield``; handling it there has no effect.

        If a child process died, the worker runs the whole method afterwards, with the crash as the
        exception.

        Each of the two parts may take up to 5 s. Then it is cancelled, and counts as failed.

        Args:
            task: the attempt.

        Example:
            class Announce(Middleware):
                async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
                    print("begins", task.name)
                    yield
                    print("ends", task.outcome)
        """
        yield

    def around_thread(self, task: RunningTask) -> Iterator[None]:
        """Run around an ``execute`` that is a plain function, in the thread that runs it.

        For resources that belong to a thread, such as database connections. Its time counts as time
        of the task. An exception of ``execute`` is raised at the ``yield``.

        Args:
            task: the attempt.

        Example:
            class CloseConnections(Middleware):
                def around_thread(self, task: RunningTask) -> Iterator[None]:
                    try:
                        yield
                    finally:
                        print("close the connections of", threading.current_thread().name)
        """
        yield

    async def close(self) -> None:
        """Release what the middleware holds, when its application closes; takes up to 5 s.

        Each worker, child process, scheduler and program calls it once.
        """


_Make = Callable[..., Middleware]


class Recipe(msgspec.Struct, frozen=True, array_like=True):
    """How a child process makes a middleware that its worker uses; plain data.

    Attributes:
        module, name: the class or function to call.
        args, options: its arguments.
    """

    module: str
    name: str
    args: list[Any]
    options: dict[str, Any]

    def make(self) -> Middleware:
        """Import and call what it names.

        Raises:
            RegistrationError: it makes no middleware.
        """
        made: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            made = getattr(made, part)
        return checked(made(*self.args, **self.options))


def recipe_of(
    make: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
) -> Recipe | None:
    """Return how a child process makes ``make(*args, **options)``; None if it cannot."""
    module, name = getattr(make, "__module__", ""), getattr(make, "__qualname__", "<none>")
    if module in ("", "__main__") or "<" in name:
        return None
    made = Recipe(module, name, list(args), dict(options))
    try:
        # Other types would arrive as text or lists.
        is_data = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Recipe) == made
    except (TypeError, ValueError, msgspec.MsgspecError):
        return None
    return made if is_data else None


_registered: list[Middleware] = []


def register_middleware(middleware: Middleware) -> None:
    """Use a middleware in every application that is opened in this process from now on.

    Call it at the top level of a module with tasks: daemons, child processes and programs that
    submit load that module. A package names it as an entry point ``nonet.middleware`` instead;
    `nonet.Nonet.use` adds one to a single application.

    Args:
        middleware: the middleware; registering it a second time changes nothing.

    Raises:
        RegistrationError: it is not an instance of a subclass of `Middleware`, or one of its
            methods is not a generator.

    Example:
        class Announce(Middleware):
            async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
                print("begins", task.name, task.id)
                yield

        register_middleware(Announce())
    """
    checked(middleware)
    if not any(item is middleware for item in _registered):
        _registered.append(middleware)


def checked(made: object) -> Middleware:
    """Return `made` if it is a middleware that can be used.

    Raises:
        RegistrationError: it is not.
    """
    if not isinstance(made, Middleware):
        what = f"{made.__name__} is a class" if isinstance(made, type) else f"{made!r:.100}"
        raise RegistrationError(
            f"middleware: {what}: give an instance of a subclass of nonet.Middleware"
        )
    name = type(made).__qualname__
    for method in (made.around_submit, made.around_thread):
        if not inspect.isgeneratorfunction(inspect.unwrap(method)):
            raise RegistrationError(
                f"middleware {name}: {method.__name__} must be a def with one yield"
            )
    if not inspect.isasyncgenfunction(inspect.unwrap(made.around_attempt)):
        raise RegistrationError(
            f"middleware {name}: around_attempt must be an async def with one yield"
        )
    return made


def installed_middleware(prefixes: Iterable[str]) -> list[Middleware]:
    """All middleware of entry points, by name.

    An entry point names an instance, or a class or function that makes one.

    Args:
        prefixes: prefixes of the entry point groups ``<prefix>.middleware``.

    Raises:
        RegistrationError: an entry point cannot be loaded, or is no middleware.
    """
    found: list[Middleware] = []
    for entry in entries(prefixes, "middleware"):
        named = load(entry, f"middleware {entry.name!r}")
        if not isinstance(named, Middleware):
            try:
                named = named()
            except Exception as error:
                title = f"entry point {entry.name!r} of {entry.group} ({entry.value})"
                raise RegistrationError(f"{title} failed: {error}") from error
        found.append(checked(named))
    return found


def registered_middleware() -> list[Middleware]:
    """All middleware of `register_middleware`."""
    return list(_registered)


class Middlewares:
    """The middlewares of one application, outermost first.

    Attributes:
        around_submit: the middlewares that do anything around a submission.
        around_attempt: the middlewares that do anything around an attempt.
        around_thread: the middlewares that do anything around an attempt in a thread.
        recipes: for the middlewares of `add` that child processes can make.
        left_out: names of the middlewares of `add` that child processes cannot make.
        are_around_submit: whether any in this process does anything around a submission.
    """

    are_around_submit: ClassVar[bool] = False

    def __init__(self) -> None:
        self._all: list[Middleware] = []
        self.around_submit: tuple[Middleware, ...] = ()
        self.around_attempt: tuple[Middleware, ...] = ()
        self.around_thread: tuple[Middleware, ...] = ()
        self.recipes: list[Recipe] = []
        self.left_out: list[str] = []

    def __iter__(self) -> Iterator[Middleware]:
        return iter(self._all)

    def extend(self, found: Iterable[Middleware]) -> None:
        """Add middlewares inside others of the same order; do not add a middleware twice."""
        known = set(map(id, self._all))  # middlewares that are dataclasses may be equal
        self._all += [item for item in found if id(item) not in known]
        self._all.sort(key=lambda item: item.order)
        plain = Middleware
        self.around_submit = tuple(
            item for item in self._all if type(item).around_submit is not plain.around_submit
        )
        self.around_attempt = tuple(
            item for item in self._all if type(item).around_attempt is not plain.around_attempt
        )
        self.around_thread = tuple(
            item for item in self._all if type(item).around_thread is not plain.around_thread
        )
        if self.around_submit:
            Middlewares.are_around_submit = True

    def add(self, make: _Make, args: tuple[Any, ...], options: Mapping[str, Any]) -> Middleware:
        """Make a middleware and add it, here and in child processes if they can make it.

        Raises:
            RegistrationError: `make` makes no middleware.
        """
        made = checked(make(*args, **options))
        self.extend([made])
        if (recipe := recipe_of(make, args, options)) is not None:
            self.recipes.append(recipe)
        else:
            self.left_out.append(type(made).__qualname__)
        return made
