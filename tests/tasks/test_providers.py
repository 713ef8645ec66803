"""Providers that read ``Annotated``, and dependencies that are replaced where a process starts."""

import enum
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated

import fastapi
import pytest

from nonet import BaseTask, Nonet
from nonet.base.errors import RegistrationError
from nonet.config.settings import plain_settings
from nonet.tasks.injection import (
    DependencyRegistry,
    Depends,
    Injector,
    override_dependency,
    register_dependency,
)


class BaseDB:
    def __init__(self, how: str = "") -> None:
        self.how = how


class JobDB(BaseDB): ...


class OtherDB(BaseDB): ...


@dataclass(frozen=True)
class NoTransaction:
    """A marker of an author."""


@dataclass(frozen=True)
class Replica:
    number: int


@dataclass
class Loose:
    """Cannot be hashed."""


class Level(enum.IntEnum):
    LOW = 1


def opened(cls: type[BaseDB], metadata: tuple[object, ...]) -> Callable[[], BaseDB]:
    """A provider that reads metadata: what it was given can be seen in what it opens."""
    return lambda: cls(", ".join(map(repr, metadata)))


@pytest.fixture
async def injector() -> AsyncIterator[Injector]:
    """Whose registry serves databases by `opened`."""
    registry = DependencyRegistry()
    registry.register(BaseDB, opened)
    async with Injector(registry=registry) as injector:
        yield injector


# -- Metadata ----------------------------------------------------------------------------------


async def test_a_provider_sees_the_metadata_of_the_parameter(injector: Injector) -> None:
    def execute(
        plain: JobDB,
        marked: Annotated[JobDB, NoTransaction()],
        both: Annotated[JobDB, NoTransaction(), Replica(2)],
        with_depends: Annotated[JobDB, NoTransaction(), Depends()],
        foreign: Annotated[JobDB, Replica(3), fastapi.Depends()],
        inside: Annotated[JobDB, Replica(4)] | None,
        nested: Annotated[Annotated[JobDB, Replica(5)], NoTransaction()],
    ) -> None: ...

    async with injector.open(execute) as arguments:
        assert {name: db.how for name, db in arguments.items()} == {
            "plain": "",
            "marked": "NoTransaction()",
            "both": "NoTransaction(), Replica(number=2)",
            "with_depends": "NoTransaction()",
            "foreign": "Replica(number=3)",
            "inside": "Replica(number=4)",
            "nested": "Replica(number=5), NoTransaction()",
        }
        # Equal metadata are one dependency, which is opened once in an attempt.
        assert arguments["marked"] is arguments["with_depends"]


def test_equal_class_and_metadata_are_one_dependency(injector: Injector) -> None:
    """Values that are equal, but of other types, are others."""
    marks: list[object] = [NoTransaction(), Replica(1), Replica(2), 1, True, Level.LOW, "1"]
    cases = [(cls, (mark,)) for cls in (JobDB, OtherDB) for mark in marks]
    found = [injector.registry.find(*case) for case in [*cases, (JobDB, tuple(marks)), (JobDB, ())]]
    assert len(set(found)) == len(found)
    assert injector.registry.find(JobDB, (Replica(1),)) is found[1]


async def test_a_provider_without_metadata_is_called_once_a_class(injector: Injector) -> None:
    asked: list[type] = []

    def by_class(cls: type) -> type:
        asked.append(cls)
        return cls

    injector.registry.register(JobDB, by_class)

    def execute(
        plain: JobDB, marked: Annotated[JobDB, NoTransaction()], loose: Annotated[JobDB, Loose()]
    ) -> None: ...

    async with injector.open(execute) as arguments:
        assert arguments["plain"] is arguments["marked"] is arguments["loose"]
    assert asked == [JobDB]


def test_unhashable_metadata_are_refused(injector: Injector) -> None:
    def execute(db: Annotated[JobDB, Loose()]) -> None: ...

    (problem,) = injector.check(execute)
    assert "parameter db of execute: the metadata" in problem and "make it frozen" in problem


def test_a_provider_that_fails_is_named(injector: Injector) -> None:
    """Its error is a problem of the parameter, and it is asked again later."""
    missing = ["DIRACX_DB_URL_OTHERDB"]

    def by_url(cls: type) -> type:
        if missing:
            raise LookupError(f"set {missing[0]}")
        return cls

    injector.registry.register(OtherDB, by_url)

    def execute(db: OtherDB) -> None: ...

    (problem,) = injector.check(execute)
    assert problem.startswith("parameter db of execute: the provider by_url (module ")
    assert problem.endswith("failed for OtherDB: LookupError: set DIRACX_DB_URL_OTHERDB")
    missing.clear()
    assert injector.check(execute) == []


# -- Replaced where a process starts -----------------------------------------------------------


class Source:
    @classmethod
    def create(cls) -> str:
        raise NotImplementedError("a daemon replaces it")


def read() -> str:
    return "as it is read"


async def test_an_override_of_the_process_replaces_a_dependency_at_any_depth(
    global_registry: DependencyRegistry,
) -> None:
    def nested(text: Annotated[str, Depends(Source.create)]) -> str:
        return f"nested {text}"

    class Needs(BaseTask):
        async def execute(self, text: Annotated[str, fastapi.Depends(nested)]) -> None: ...

    app = Nonet(plain_settings(), load_tasks=False)
    async with app.injector() as injector:
        override_dependency(Source.create, read)
        async with injector.open(Needs().execute) as arguments:
            assert arguments == {"text": "nested as it is read"}
        app.dependency_overrides[Source.create] = lambda: "a double"
        async with injector.open(Needs().execute) as arguments:
            assert arguments == {"text": "nested a double"}
        app.dependency_overrides.clear()
        app.dependency_overrides[read] = lambda: "a double of the replacement"
        async with injector.open(Needs().execute) as arguments:
            assert arguments == {"text": "nested a double of the replacement"}


async def test_an_override_of_a_class_replaces_its_provider(
    global_registry: DependencyRegistry,
) -> None:
    def by_url(cls: type) -> type:
        raise LookupError("no URL")

    register_dependency(BaseDB, by_url)
    override_dependency(JobDB, lambda: JobDB("replaced"))

    def execute(db: JobDB, marked: Annotated[JobDB, NoTransaction()]) -> None: ...

    async with Injector() as injector, injector.open(execute) as arguments:
        assert arguments["db"].how == "replaced"
        assert arguments["marked"] is arguments["db"]
    double = Injector({JobDB: lambda: "a double"})
    async with double, double.open(execute) as arguments:
        assert arguments["db"] == "a double"


def test_a_second_override_is_refused_by_name(global_registry: DependencyRegistry) -> None:
    override_dependency(Source.create, read)
    with pytest.raises(RegistrationError, match=r"Source.create .* read \(.*_providers.*opened"):
        override_dependency(Source.create, opened)
    with pytest.raises(TypeError, match="pass two functions or other callables"):
        override_dependency(Source.create, "text")  # type: ignore[arg-type]  # the mistake
