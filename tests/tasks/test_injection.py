"""Dependencies of ``execute``: who provides a parameter, and what happens at the end of an attempt.

Annotations are real objects here (no ``from __future__ import annotations``), because most
dependencies are local to their test; string annotations have tests of their own.
"""

import asyncio
import contextlib
import contextvars
import functools
import importlib
import re
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import fastapi
import pytest
from hypothesis import given, strategies as st
from tasks.conftest import Install
from waits import WAIT_SECONDS

from nonet import BaseTask, Nonet
from nonet.base.errors import DependencyError, RegistrationError
from nonet.config.settings import plain_settings
from nonet.tasks.injection import (
    DependencyRegistry,
    Depends,
    Injector,
    load_entry_points,
    register_dependency,
)

if TYPE_CHECKING:
    from decimal import Decimal


async def provided(injector: Injector, function: Callable[..., Any], **values: Any) -> Any:
    """What one attempt would pass to ``function``."""
    async with injector.open(function, **values) as arguments:
        return arguments


class FileDB:
    def __init__(self) -> None:
        self.name = "files"

    @classmethod
    def session(cls) -> str:
        return f"session of {cls.__name__}"

    def own_session(self) -> str:
        return f"session of {self.name}"

    async def __call__(self) -> str:
        return f"called {self.name}"


# -- What can be a dependency ------------------------------------------------------------------


def plain() -> str:
    return "plain"


async def coroutine() -> str:
    return "coroutine"


def generator() -> Iterator[str]:
    yield "generator"


async def async_generator() -> AsyncIterator[str]:
    yield "async generator"


@functools.lru_cache
def cached() -> str:
    return "cached"


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def suffixed(text: Annotated[str, Depends(plain)], *, suffix: str) -> str:
    return text + suffix


@pytest.mark.parametrize(
    ("dependency", "value"),
    [
        (plain, "plain"),
        (coroutine, "coroutine"),
        (generator, "generator"),
        (async_generator, "async generator"),
        (contextlib.contextmanager(generator), "generator"),
        (contextlib.asynccontextmanager(async_generator), "async generator"),
        (decorated(plain), "plain"),
        (decorated(coroutine), "coroutine"),
        (decorated(async_generator), "async generator"),
        (cached, "cached"),
        (dict, {}),
        (FileDB.session, "session of FileDB"),
        (FileDB().own_session, "session of files"),
        (FileDB(), "called files"),
        (functools.partial(suffixed, suffix="!"), "plain!"),
        (functools.partial(functools.partial(suffixed, suffix="!"), text="my"), "my!"),
        (lambda: coroutine(), "coroutine"),
    ],
)
async def test_each_kind_of_callable_is_a_dependency(
    injector: Injector, dependency: Callable[..., Any], value: object
) -> None:
    """Functions, generators, context managers, classes, methods, objects and partials provide."""

    def execute(x: Annotated[object, Depends(dependency)]) -> None: ...

    assert injector.check(execute) == []
    assert await provided(injector, execute) == {"x": value}


async def test_a_class_is_built_with_its_own_dependencies(injector: Injector) -> None:
    @dataclass
    class Service:
        text: Annotated[str, Depends(plain)]
        size: int = 3

    def execute(service: Annotated[Service, Depends()]) -> None: ...

    assert await provided(injector, execute) == {"service": Service("plain", 3)}


async def test_the_marker_may_be_a_default(injector: Injector) -> None:
    def execute(
        x: str = Depends(plain),
        y: "Decimal" = Depends(plain),  # noqa: B008  # FastAPI's style; the name is unknown here
    ) -> None: ...

    assert await provided(injector, execute) == {"x": "plain", "y": "plain"}


class Foreign:
    def __init__(self, dependency: Callable[..., Any] | None = None) -> None:
        self.dependency = dependency


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[str, Depends(coroutine), Depends(plain)],
        Annotated[str, Depends(plain), Foreign(coroutine)],
        Annotated[str, Foreign(coroutine), Depends(plain)],
        Annotated[str, Foreign(coroutine), Foreign(plain)],
        Annotated[str, Foreign(coroutine), "a remark", fastapi.Depends(plain)],
    ],
)
async def test_the_last_marker_wins_and_ours_before_a_foreign_one(
    injector: Injector, annotation: Any
) -> None:
    """Of several markers the last counts; a foreign one only without a marker of Nonet."""

    def execute(x: annotation) -> None: ...

    assert await provided(injector, execute) == {"x": "plain"}


def test_a_senseless_marker_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="must be callable"):
        Depends(plain())  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ValueError, match="'attempt' or 'process'"):
        Depends(plain, scope="request")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ValueError, match="contradicts"):
        Depends(plain, use_cache=False, scope="process")


# -- Caching and scopes ------------------------------------------------------------------------


async def test_a_dependency_is_called_once_per_attempt(injector: Injector) -> None:
    def fresh() -> object:
        return object()

    def nested(x: Annotated[object, Depends(fresh)]) -> object:
        return x

    def execute(
        a: Annotated[object, Depends(nested)],
        b: Annotated[object, Depends(fresh)],
        c: Annotated[object, Depends(fresh, use_cache=False)],
    ) -> None: ...

    first, second = await provided(injector, execute), await provided(injector, execute)
    assert first["a"] is first["b"]
    assert first["c"] is not first["b"]
    assert first["a"] is not second["a"]


async def test_bound_methods_of_two_objects_are_two_dependencies(injector: Injector) -> None:
    one, two = FileDB(), FileDB()
    two.name = "others"

    def execute(
        a: Annotated[str, Depends(one.own_session)], b: Annotated[str, Depends(two.own_session)]
    ) -> None: ...

    assert await provided(injector, execute) == {"a": "session of files", "b": "session of others"}


async def test_a_process_scoped_dependency_is_created_once_in_a_race() -> None:
    """Fifty attempts at once share one engine; shutdown closes it after what depends on it."""
    log: list[str] = []

    async def engine() -> AsyncIterator[object]:
        log.append("open engine")
        await asyncio.sleep(0)
        yield object()
        log.append("close engine")

    def pool(engine: Annotated[object, Depends(engine, scope="process")]) -> Iterator[object]:
        log.append("open pool")
        yield engine
        log.append("close pool")

    def session(pool: Annotated[object, Depends(pool, scope="process")]) -> object:
        return pool

    def execute(s: Annotated[object, Depends(session)]) -> None: ...

    async with Injector() as injector:
        results = await asyncio.gather(*(provided(injector, execute) for _ in range(50)))
        assert len({id(result["s"]) for result in results}) == 1
        assert log == ["open engine", "open pool"]
    assert log[2:] == ["close pool", "close engine"]
    with pytest.raises(DependencyError, match="after the injector closed"):
        await provided(injector, execute)
    await injector.aclose()


async def test_a_cancelled_attempt_does_not_cancel_a_shared_dependency(injector: Injector) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def engine() -> str:
        asked.set()
        await go.wait()
        return "engine"

    def execute(e: Annotated[str, Depends(engine, scope="process")]) -> None: ...

    first = asyncio.create_task(provided(injector, execute))
    await asked.wait()
    second = asyncio.create_task(provided(injector, execute))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go.set()
    assert await second == {"e": "engine"}


async def test_a_process_scoped_failure_is_tried_again(injector: Injector) -> None:
    calls = []

    async def engine() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("not yet")
        return "engine"

    def execute(e: Annotated[str, Depends(engine, scope="process")]) -> None: ...

    with pytest.raises(ConnectionError):
        await provided(injector, execute)
    assert await provided(injector, execute) == {"e": "engine"}


async def test_a_process_scoped_dependency_sees_no_context_of_an_attempt() -> None:
    current = contextvars.ContextVar("current", default="process")

    def engine() -> str:
        return current.get()

    def execute(e: Annotated[str, Depends(engine, scope="process")]) -> None: ...

    async with Injector() as injector:
        current.set("attempt")
        assert await provided(injector, execute) == {"e": "process"}


async def test_a_process_scoped_dependency_may_hold_a_task_group(injector: Injector) -> None:
    """It is left in the task that entered it, so structured concurrency works inside."""

    async def group() -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as group:
            yield group

    def execute(g: Annotated[asyncio.TaskGroup, Depends(group, scope="process")]) -> None: ...

    async def attempt() -> asyncio.Task[str]:
        arguments = await provided(injector, execute)
        return arguments["g"].create_task(coroutine())  # type: ignore[no-any-return]

    assert await (await asyncio.create_task(attempt())) == "coroutine"
    await injector.aclose()


# -- Where things run --------------------------------------------------------------------------


async def test_sync_functions_run_in_a_thread_with_the_context(injector: Injector) -> None:
    loop_thread, seen = threading.get_ident(), contextvars.ContextVar[str]("seen")
    released = threading.Event()

    def blocking() -> tuple[str, bool]:
        assert released.wait(WAIT_SECONDS)  # set by the loop, which therefore runs
        return seen.get(), threading.get_ident() != loop_thread

    def steps(b: Annotated[object, Depends(blocking)]) -> Iterator[tuple[str, bool]]:
        yield seen.get(), threading.get_ident() != loop_thread

    class Direct:
        def __init__(self) -> None:
            self.thread = threading.get_ident()

    def execute(
        b: Annotated[object, Depends(blocking)],
        s: Annotated[object, Depends(steps)],
        d: Annotated[Direct, Depends()],
    ) -> None: ...

    seen.set("mine")
    attempt = asyncio.create_task(provided(injector, execute))
    asyncio.get_running_loop().call_soon(released.set)
    result = await attempt
    assert result["b"] == result["s"] == ("mine", True)
    assert result["d"].thread == loop_thread


async def test_the_context_set_by_an_async_generator_reaches_the_body(injector: Injector) -> None:
    current = contextvars.ContextVar("current", default="")

    async def user() -> AsyncIterator[str]:
        token = current.set("alice")
        yield "alice"
        current.reset(token)

    def execute(u: Annotated[str, Depends(user)]) -> None: ...

    async with injector.open(execute):
        assert current.get() == "alice"
    assert current.get() == ""


# -- Providers by class, overrides, values -----------------------------------------------------


class BaseDB:
    @classmethod
    async def session(cls) -> AsyncIterator["BaseDB"]:
        yield cls()


class JobDB(BaseDB): ...


class SpecialDB(JobDB): ...


async def test_a_registered_base_serves_its_subclasses(global_registry: DependencyRegistry) -> None:
    asked: list[type] = []

    def by_class(cls: type) -> Callable[..., Any]:
        asked.append(cls)
        return cls

    register_dependency(BaseDB, lambda cls: cls.session)
    register_dependency(SpecialDB, by_class)

    def nested(special: SpecialDB) -> str:
        return f"nested {type(special).__name__}"

    def execute(
        jobs: JobDB,
        base: Annotated[BaseDB, Depends()],
        special: SpecialDB | None,
        x: Annotated[str, Depends(nested)],
        absent: JobDB | None = None,
    ) -> None: ...

    async with Injector() as injector:
        result = await provided(injector, execute)
    assert result.pop("x") == "nested SpecialDB"
    assert {name: type(value) for name, value in result.items()} == {
        "jobs": JobDB,
        "base": BaseDB,
        "special": SpecialDB,
    }
    assert asked == [SpecialDB]


def first_provider(cls: type) -> type:
    return cls


def second_provider(cls: type) -> type:
    return cls


def test_two_providers_of_one_base_are_refused_by_name() -> None:
    registry = DependencyRegistry()
    registry.register(BaseDB, first_provider)
    with pytest.raises(RegistrationError, match=r"BaseDB .*first_.*test_injection.*second_"):
        registry.register(BaseDB, second_provider)


async def test_a_later_registration_is_noticed(injector: Injector) -> None:
    def execute(db: JobDB) -> None: ...

    assert injector.check(execute)
    injector.registry.register(BaseDB, lambda cls: cls.session)
    assert isinstance((await provided(injector, execute))["db"], JobDB)


def test_entry_points_register_once(
    global_registry: DependencyRegistry, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
        from nonet.tasks.injection import register_dependency
        class DB: ...
        def setup(): register_dependency(DB, lambda cls: cls)
        def broken(): raise KeyError('nope')
    """
    for prefix in ("nonet", "myext"):
        module = f"{prefix}_deps"
        good, bad = f"[{prefix}.dependencies]", f"[broken-{prefix}.dependencies]"
        install(module, source, f"{good}\ndb = {module}:setup\n{bad}\ndb = {module}:broken\n")
    for _ in range(2):
        load_entry_points(["nonet", "myext"])
    for prefix in ("nonet", "myext"):
        db = sys.modules[f"{prefix}_deps"].DB
        assert global_registry.find(db) is db
        monkeypatch.delitem(sys.modules, f"{prefix}_deps")
    with pytest.raises(RegistrationError, match=r"'db' of broken-myext\.dependencies .*nope"):
        load_entry_points(["broken-myext"])


async def test_overrides_are_live_and_reach_any_depth() -> None:
    overrides: dict[Callable[..., Any], Callable[..., Any]] = {}

    def nested(x: Annotated[str, Depends(plain)]) -> str:
        return f"nested {x}"

    def fake(c: Annotated[str, Depends(coroutine)]) -> str:
        return f"fake {c}"

    def execute(x: Annotated[str, Depends(nested)]) -> None: ...

    async with Injector(overrides) as injector:
        assert await provided(injector, execute) == {"x": "nested plain"}
        overrides[plain] = fake
        assert await provided(injector, execute) == {"x": "nested fake coroutine"}
        overrides.clear()
        assert await provided(injector, execute) == {"x": "nested plain"}
        overrides[plain] = "no function"  # type: ignore[assignment]  # the mistake under test
        assert injector.check(execute) == ["parameter x of nested: str object is not callable"]


async def test_a_registered_class_can_be_overridden_by_its_provider() -> None:
    registry = DependencyRegistry()
    registry.register(BaseDB, lambda cls: cls.session)

    def execute(db: JobDB) -> None: ...

    async with Injector({JobDB.session: plain}, registry) as injector:
        assert await provided(injector, execute) == {"db": "plain"}


async def test_values_of_an_attempt_are_injected_by_exact_type(injector: Injector) -> None:
    class Context: ...

    class Special(Context): ...

    def nested(context: Context) -> Context:
        return context

    def execute(
        n: Annotated[Context, Depends(nested)],
        direct: Context,
        maybe: Context | None = None,
        special: Special | None = None,
    ) -> None: ...

    context = Context()
    result = await provided(injector, execute, values={Context: context})
    assert result == {"n": context, "direct": context, "maybe": context}
    assert injector.check(execute, {Context}) == []
    assert len(injector.check(execute)) == 2
    other = Context()
    assert (await provided(injector, execute, values={Context: other}))["n"] is other


# -- Mistakes are sentences --------------------------------------------------------------------


class RemoveFile:
    def execute(  # type: ignore[no-untyped-def]  # the mistake under test
        self, lfn: str, untyped, size: int = 3, *args: str, **kwargs: str
    ) -> None: ...

    def modern(
        self,
        db: "Decimal",
        other: "FileDB.nothing",  # type: ignore[name-defined]  # the mistake under test
        hidden: "Annotated[Decimal | None, Depends(plain)]" = None,
        keep: "Decimal | None" = None,
    ) -> None: ...

    def positional(self, x: Annotated[str, Depends(plain)], /) -> None: ...

    def resolved(self, db: "Annotated[FileDB | None, Depends()]") -> None: ...


def test_every_parameter_without_provider_is_named(injector: Injector) -> None:
    advice = "annotate it with Annotated[..., Depends(...)]"
    expected = [
        f"parameter lfn of RemoveFile.execute: nothing provides str; {advice}",
        f"parameter untyped of RemoveFile.execute: it has no annotation; {advice}",
    ]
    for function in (RemoveFile.execute, RemoveFile().execute):
        found = injector.check(function)
        assert [problem[: len(start)] for problem, start in zip(found, expected, strict=True)] == (
            expected
        )


def test_problems_name_the_task_with_its_category(injector: Injector) -> None:
    class Needs(BaseTask):
        async def execute(self, what: int) -> None: ...

    app = Nonet(plain_settings(), load_tasks=False)
    app.registry.add(Needs, "mine")
    (problem,) = app.dependency_problems(injector)
    assert problem.startswith("mine:Needs: parameter what of Needs.execute: nothing provides int")


async def test_open_refuses_before_anything_is_opened(injector: Injector) -> None:
    called: list[int] = []

    def execute(a: Annotated[None, Depends(lambda: called.append(1))], b: str) -> None: ...

    with pytest.raises(DependencyError, match="parameter b of execute: nothing provides str"):
        injector.open(execute)
    assert called == []


@contextlib.asynccontextmanager
async def wrapped_with_strings(x: "Annotated[str, Depends(plain)]") -> AsyncIterator[str]:
    yield x


async def test_string_annotations_are_read_in_the_module_of_the_function(
    injector: Injector,
) -> None:
    """Not in the module of a decorator, as contextlib."""

    def execute(x: Annotated[str, Depends(wrapped_with_strings)]) -> None: ...

    assert await provided(injector, execute) == {"x": "plain"}
    assert injector.check(RemoveFile.resolved) == []
    assert isinstance((await provided(injector, RemoveFile().resolved))["db"], FileDB)


async def test_strings_of_a_class_are_read_in_the_modules_of_its_bases(
    injector: Injector, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = """
        from dataclasses import dataclass
        from typing import Annotated
        from nonet.tasks.injection import Depends
        @dataclass
        class Parent:
            text: Annotated[str, Depends(lambda: 'text')]
    """
    install("nonet_parent", parent, header="from __future__ import annotations\n")
    install(
        "nonet_child", "import nonet_parent\n@dataclass\nclass Child(nonet_parent.Parent): ...\n"
    )
    child: Any = importlib.import_module("nonet_child").Child

    def execute(x: Annotated[object, Depends(child)]) -> None: ...

    assert await provided(injector, execute) == {"x": child("text")}
    monkeypatch.delitem(sys.modules, "nonet_child")
    monkeypatch.delitem(sys.modules, "nonet_parent")


def test_an_annotation_for_type_checkers_only_is_named(injector: Injector) -> None:
    first, second, third = injector.check(RemoveFile.modern)
    assert "parameter db of RemoveFile.modern" in first
    assert "Decimal cannot be resolved" in first and "TYPE_CHECKING" in first
    assert "parameter other of RemoveFile.modern" in second and "nothing" in second
    assert "parameter hidden of RemoveFile.modern" in third and "Decimal cannot" in third


@dataclass
class Pages:
    size: int

    def __call__(self) -> int:
        return self.size


def unhashable(x: Annotated[int, Depends(Pages(3))]) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (RemoveFile.positional, "parameter x of RemoveFile.positional: it is positional-only"),
        (unhashable, "Pages object is not hashable.*frozen"),
    ],
)
def test_a_parameter_that_cannot_be_injected_is_refused(
    injector: Injector, function: Callable[..., Any], problem: str
) -> None:
    (found,) = injector.check(function)
    assert re.search(problem, found)


def test_a_cycle_is_named(injector: Injector) -> None:
    def chicken(x: Annotated[str, Depends(plain)]) -> None: ...

    def egg(x: Annotated[str, Depends(chicken)]) -> None: ...

    def execute(x: Annotated[str, Depends(egg)]) -> None: ...

    assert injector.check(execute) == []
    injector.overrides[plain] = egg
    (problem,) = injector.check(execute)
    assert "parameter x of chicken" in problem and "egg → chicken → egg" in problem


def test_a_process_scoped_dependency_cannot_depend_on_an_attempt(injector: Injector) -> None:
    def engine(
        a: Annotated[str, Depends(plain)],
        b: Annotated[str, fastapi.Depends(coroutine)],
        c: FileDB,
        d: Annotated[str, Depends(cached, scope="process")],
    ) -> None: ...

    def execute(e: Annotated[None, Depends(engine, scope="process")]) -> None: ...

    problems = injector.check(execute, {FileDB})
    assert len(problems) == 3
    for problem, name in zip(problems, ("plain", "coroutine", "FileDB"), strict=True):
        assert "of engine" in problem and "process-scoped" in problem and name in problem


# -- The end of an attempt ---------------------------------------------------------------------


class Boom(Exception): ...


class Worse(Exception): ...


@pytest.mark.parametrize("error", [Boom, StopIteration, StopAsyncIteration, asyncio.CancelledError])
async def test_the_exception_of_the_body_leaves_the_block_as_it_is(
    injector: Injector, error: type[BaseException]
) -> None:
    """The same object, without a frame of the teardown, although a generator swallows it."""

    def swallows() -> Iterator[str]:
        with contextlib.suppress(BaseException):
            yield "inner"

    async def passes_on() -> AsyncIterator[str]:
        yield "outer"

    def execute(
        o: Annotated[str, Depends(passes_on)], i: Annotated[str, Depends(swallows)]
    ) -> None: ...

    original = error("body")
    with pytest.raises(error) as caught:
        async with injector.open(execute):
            raise original
    assert caught.value is original
    assert len(traceback.extract_tb(original.__traceback__)) == 1


@pytest.mark.parametrize("swallow", [True, False])
async def test_cancelling_a_commit_rolls_the_others_back(injector: Injector, swallow: bool) -> None:
    log: list[str] = []
    committing = asyncio.Event()

    async def outer() -> AsyncIterator[None]:
        try:
            yield
            log.append("commit outer")
        except asyncio.CancelledError:
            log.append("rollback outer")
            raise

    async def inner(o: Annotated[None, Depends(outer)]) -> AsyncIterator[None]:
        yield
        try:
            committing.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("cancelled inner")
            if not swallow:
                raise

    def execute(i: Annotated[None, Depends(inner)]) -> None: ...

    task = asyncio.create_task(provided(injector, execute))
    await committing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["cancelled inner", "rollback outer"]


async def test_a_timeout_inside_a_teardown_is_no_cancellation(injector: Injector) -> None:
    async def session() -> AsyncIterator[str]:
        yield "session"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

    def execute(s: Annotated[str, Depends(session)]) -> None: ...

    assert await provided(injector, execute) == {"s": "session"}


@pytest.mark.parametrize("step", ["opening", "closing"])
async def test_a_cancelled_attempt_waits_for_its_thread(injector: Injector, step: str) -> None:
    log: list[str] = []
    blocked, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        loop.call_soon_threadsafe(blocked.set)
        assert release.wait(WAIT_SECONDS)

    def session() -> Iterator[str]:
        try:
            if step == "opening":
                block()
            yield "session"
            block()
            log.append("committed")
        finally:
            log.append("closed")

    def execute(s: Annotated[str, Depends(session)]) -> None: ...

    task = asyncio.create_task(provided(injector, execute))
    await blocked.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done() and not log
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == (["closed"] if step == "opening" else ["committed", "closed"])


def twice() -> Iterator[int]:
    yield 1
    yield 2


async def async_twice() -> AsyncIterator[int]:
    with contextlib.suppress(Boom):
        yield 1
    yield 2


def never() -> Iterator[int]:
    yield from ()


async def async_never() -> AsyncIterator[int]:
    return
    yield


@pytest.mark.parametrize("body_fails", [True, False])
@pytest.mark.parametrize("dependency", [twice, async_twice, contextlib.contextmanager(twice)])
async def test_a_generator_that_yields_twice_is_refused(
    injector: Injector, dependency: Callable[..., Any], body_fails: bool
) -> None:
    """A second yield is a DependencyError that names the generator; the error of a body wins."""

    def execute(x: Annotated[int, Depends(dependency)]) -> None: ...

    swallows = dependency is async_twice
    with pytest.raises(DependencyError if swallows or not body_fails else Boom) as caught:
        async with injector.open(execute):
            if body_fails:
                raise Boom
    if not body_fails:
        assert "twice yielded twice" in str(caught.value)


@pytest.mark.parametrize("dependency", [never, async_never])
async def test_a_generator_that_never_yields_is_refused(
    injector: Injector, dependency: Callable[..., Any]
) -> None:
    def execute(x: Annotated[int, Depends(dependency)]) -> None: ...

    with pytest.raises(DependencyError, match="never did not yield"):
        await provided(injector, execute)


@given(
    sync=st.lists(st.booleans(), min_size=1, max_size=6),
    swallowing=st.sets(st.integers(0, 5)),
    failing=st.tuples(st.sampled_from(["open", "close"]), st.integers(-1, 5)),
    body_fails=st.booleans(),
)
def test_dependencies_are_closed_in_reverse_order_whatever_fails(
    sync: list[bool], swallowing: set[int], failing: tuple[str, int], body_fails: bool
) -> None:
    """All are committed, or from the first failure on all are rolled back."""
    log: list[tuple[str, int]] = []

    def session(number: int, previous: Callable[..., Any], sync: bool) -> Callable[..., Any]:
        def note(what: str) -> None:
            log.append((what, number))
            if failing == ("close", number):
                raise Worse

        def steps(before: Annotated[int, Depends(previous)]) -> Iterator[int]:
            if failing == ("open", number):
                raise Worse
            log.append(("open", number))
            try:
                yield number
            except (Boom, Worse):
                note("rollback")
                if number not in swallowing:
                    raise
            else:
                note("commit")

        async def async_steps(before: Annotated[int, Depends(previous)]) -> AsyncIterator[int]:
            with contextlib.contextmanager(steps)(before):
                yield number

        return steps if sync else async_steps

    dependency: Callable[..., Any] = lambda: -1  # noqa: E731  # a start for the chain
    for number, is_sync in enumerate(sync):
        dependency = session(number, dependency, is_sync)

    def execute(x: Annotated[int, Depends(dependency)]) -> None: ...

    async def attempt() -> None:
        async with Injector() as injector, injector.open(execute):
            if body_fails:
                raise Boom

    opens = failing[1] if failing[0] == "open" and 0 <= failing[1] < len(sync) else len(sync)
    failure = Worse if opens < len(sync) else Boom if body_fails else None
    ends = []
    for number in reversed(range(opens)):
        ends.append(("rollback" if failure else "commit", number))
        failure = Worse if failing == ("close", number) else failure
    with pytest.raises(failure) if failure else contextlib.nullcontext():
        asyncio.run(attempt())
    assert log == [("open", n) for n in range(opens)] + ends


# -- Cost -------------------------------------------------------------------------


async def test_teardowns_do_not_queue_behind_setups() -> None:
    """Many attempts that wait in threads for what others hold all end: a small pool of places."""
    places = threading.BoundedSemaphore(3)

    def place() -> Iterator[int]:
        places.acquire()
        yield 1
        places.release()

    async def execute(one: Annotated[int, Depends(place)]) -> None: ...

    async with Injector() as injector:

        async def attempt() -> None:
            async with injector.open(execute):
                await asyncio.sleep(0)

        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(*(attempt() for _ in range(60)))
