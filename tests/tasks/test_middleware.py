"""Which middleware is accepted, in which order it nests, and what child processes make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from nonet import Middleware, OutgoingTask, RegistrationError, RunningTask, register_middleware
from nonet.tasks import entry_points, middleware
from nonet.tasks.middleware import Middlewares, checked, installed_middleware, recipe_of


class Named(Middleware):
    def __init__(self, name: str = "", order: int = 0) -> None:
        self.name = name
        self.order = order  # type: ignore[misc]  # one class in several places

    def around_submit(self, task: OutgoingTask) -> Iterator[None]:
        yield


class NoYield(Middleware):
    def around_submit(self, task: OutgoingTask) -> Any:
        return None


class NotAsync(Middleware):
    def around_attempt(self, task: RunningTask) -> Any:
        yield


class NoThread(Middleware):
    async def around_thread(self, task: RunningTask) -> Any:
        """It would have to be a plain function."""


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (Named, "Named is a class: give an instance of a subclass of nonet.Middleware"),
        (7, "7: give an instance"),
        (NoYield(), "NoYield: around_submit must be a def with one yield"),
        (NotAsync(), "NotAsync: around_attempt must be an async def with one yield"),
        (NoThread(), "NoThread: around_thread must be a def with one yield"),
    ],
)
def test_an_object_that_is_no_middleware_is_refused_when_registered(
    made: Any, problem: str
) -> None:
    with pytest.raises(RegistrationError, match=problem):
        register_middleware(made)


def test_the_lowest_order_is_outermost() -> None:
    found = Middlewares()
    found.extend([Named("a", 5), Named("b"), Named("c")])
    found.extend([Named("d"), Named("e", -1)])
    assert [item.name for item in found if isinstance(item, Named)] == ["e", "b", "c", "d", "a"]


def test_a_middleware_is_registered_once() -> None:
    one = Named()
    register_middleware(one)
    register_middleware(one)
    found = Middlewares()
    for _ in range(2):
        found.extend(middleware.registered_middleware())
    assert list(found) == [one]


def local() -> Callable[..., Middleware]:
    class Local(Middleware):
        """It has no name by which it could be imported."""

    return Local


@pytest.mark.parametrize(
    ("make", "args", "can_travel"),
    [
        (Named, ("a", 3), True),
        (Named, (["a", {"b": 1.5}],), True),
        (Named, (object(),), False),
        (Named, (("a", "b"),), False),  # it would arrive as a list
        (local(), (), False),
    ],
)
def test_a_recipe_needs_an_importable_class_and_plain_arguments(
    make: Any, args: tuple[Any, ...], can_travel: bool
) -> None:
    recipe = recipe_of(make, args, {})
    assert (recipe is not None) is can_travel


def test_a_recipe_makes_an_equal_middleware(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(checked, (), {})
    assert recipe is not None and recipe.module == "nonet.tasks.middleware"
    monkeypatch.setattr(middleware, "made_by_test", Named, raising=False)
    found = middleware.Recipe("nonet.tasks.middleware", "made_by_test", ["a"], {"order": 2}).make()
    assert isinstance(found, Named) and (found.name, found.order) == ("a", 2)


INSTANCE = Named("instance")


def fails() -> Middleware:
    raise OSError("no")


def test_entry_points_name_classes_functions_or_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, Any] = {"a": Named, "b": INSTANCE}
    entries = [EntryPoint(name, f"somewhere:{name}", "nonet.middleware") for name in "ba"]
    monkeypatch.setattr(entry_points, "installed", lambda: EntryPoints(entries))
    monkeypatch.setattr(EntryPoint, "load", lambda entry: named[entry.name])
    first, second = installed_middleware(["nonet"])
    assert isinstance(first, Named) and second is INSTANCE
    named["a"] = fails
    with pytest.raises(RegistrationError, match=r"entry point 'a' of nonet.middleware .* failed"):
        installed_middleware(["nonet"])
    named["a"] = int
    with pytest.raises(RegistrationError, match="0: give an instance"):
        installed_middleware(["nonet"])
