"""What is injected is an instance of what its parameter is annotated with, or refused."""

import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Protocol, TypedDict, TypeVar, runtime_checkable
from unittest.mock import AsyncMock

import pytest

from nonet import BaseTask
from nonet.base.errors import DependencyError
from nonet.tasks.injection import DependencyRegistry, Depends, Injector
from nonet.testing import run_inline


class Config:
    """What a task wants."""


class LocalConfig(Config):
    """A kind of it."""


class ConfigSource:
    """What reads it; as in DiracX, daemons are meant to replace `create`."""

    @classmethod
    def create(cls) -> "ConfigSource":
        return cls()


class Fake:
    """An instance of no annotated class."""


async def given_to(injector: Injector, annotation: Any, dependency: Callable[..., Any]) -> Any:
    def execute(x: Annotated[annotation, Depends(dependency)]) -> None: ...

    async with injector.open(execute) as arguments:
        return arguments["x"]


class Optimise(BaseTask):
    async def execute(self, config: Annotated[Config, Depends(ConfigSource.create)]) -> str:
        return type(config).__name__


async def test_a_value_of_another_class_is_refused_by_name() -> None:
    """Task, parameter, annotation, what came and the next step are in the error."""
    with pytest.raises(
        DependencyError,
        match=r"Optimise: parameter config of Optimise.execute is annotated with Config, but "
        r"ConfigSource.create returned an instance of ConfigSource; .* override_dependency",
    ):
        await run_inline(Optimise())


async def test_a_refused_value_rolls_back_what_was_opened(injector: Injector) -> None:
    log: list[str] = []

    async def session() -> AsyncIterator[Config]:
        try:
            yield Config()
        except DependencyError:
            log.append("rolled back")
            raise

    def nested(
        good: Annotated[Config, Depends(session)],
        bad: Annotated[Config, Depends(ConfigSource.create)],
    ) -> Config:
        log.append("called")
        return good

    with pytest.raises(DependencyError, match=r"parameter bad of nested .* with Config, but"):
        await given_to(injector, Config, nested)
    assert log == ["rolled back"]


async def test_the_value_of_a_registered_provider_is_checked(injector: Injector) -> None:
    injector.registry.register(Config, lambda cls: Fake)

    def execute(config: Config) -> None: ...

    with pytest.raises(DependencyError, match="but Fake returned an instance of Fake"):
        async with injector.open(execute):
            pass


@pytest.mark.parametrize("double", [Fake, AsyncMock, lambda: None])
async def test_an_override_is_not_checked(double: Callable[..., Any]) -> None:
    """A test or an application may inject any double."""
    registry = DependencyRegistry()
    registry.register(Config, lambda cls: cls)

    def execute(
        by_class: Config, by_call: Annotated[Config, Depends(ConfigSource.create)]
    ) -> None: ...

    overrides = {Config: double, ConfigSource.create: double}
    async with Injector(overrides, registry) as injector, injector.open(execute) as arguments:
        assert not any(isinstance(value, Config) for value in arguments.values())


@runtime_checkable
class Closes(Protocol):
    def close(self) -> None: ...


class Door:
    def close(self) -> None: ...


class Counts(Protocol):
    def count(self) -> int: ...


class Row(TypedDict):
    id: int


Item = TypeVar("Item")
UserId = NewType("UserId", int)


class Repository(typing.Generic[Item]): ...


class Users(Repository[str]): ...


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (Config, [Config(), LocalConfig(), AsyncMock(spec=Config)], [None, Config, Fake()]),
        (Config | None, [Config(), None], [Fake(), 0]),
        (typing.Optional[Config], [Config(), None], [Fake()]),  # noqa: UP045  # the older spelling
        (Config | Path, [Config(), Path()], [None, Fake()]),
        (Annotated[Config, "a remark"], [Config()], [Fake()]),
        (Annotated[Config | None, "a remark"], [Config(), None], [Fake()]),
        (Annotated[Config, "a remark"] | dict[str, int] | None, [Config(), {}, None], [Fake()]),
        (Annotated[Config | Any, "a remark"] | None, [Config(), Fake()], []),
        (dict[str, int], [{}, {"a": "not looked at"}], [[], None]),
        (Mapping[str, int], [{}], [[]]),
        (Callable[[], int], [len], [3]),
        (Repository[int], [Repository(), Users()], [Fake()]),
        (type[Config], [Config], [Config()]),
        (float, [1.5, 1], ["1"]),
        (complex, [1j, 1.5, 1], [None]),
        (bool, [True], [1]),
        (object, [None, Fake()], []),
        # Not known, or not used: whatever comes.
        (Any, [None, Fake()], []),
        (Item, [None, Fake()], []),
        (UserId, [1, "x"], []),
        (Literal["a"], ["a", "b"], []),
        (Row, [{"id": 1}, Fake()], []),
        (Closes, [Door()], [Fake()]),
        (Counts, [[], Fake()], []),
        (Counts | None, [None, Fake()], []),
        (Config | UserId, [Config(), Fake()], []),
        (None, [None, Fake()], []),
    ],
)
async def test_a_value_must_be_an_instance_of_its_annotation(
    injector: Injector, annotation: Any, good: list[object], bad: list[object]
) -> None:
    """Classes, unions and the class of a generic are looked at; what cannot be known is not."""
    for value in good:
        assert await given_to(injector, annotation, lambda v=value: v) is value
    for value in bad:
        with pytest.raises(DependencyError, match="parameter x of execute is annotated with"):
            await given_to(injector, annotation, lambda v=value: v)


async def test_the_yielded_value_is_checked(injector: Injector) -> None:
    def steps() -> Iterator[Config]:
        yield Config()

    def forgetful() -> Iterator[None]:
        yield

    def unannotated(x=Depends(Fake)) -> None: ...  # type: ignore[no-untyped-def] # noqa: B008

    assert isinstance(await given_to(injector, Config, steps), Config)
    with pytest.raises(DependencyError, match="but forgetful returned None"):
        await given_to(injector, Config, forgetful)
    async with injector.open(unannotated) as arguments:
        assert isinstance(arguments["x"], Fake)
