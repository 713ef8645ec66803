"""Dependency injection for ``execute``: `Depends`, providers by class, and the `Injector`.

    class RemoveFile(BaseTask):
        async def execute(self, db: Annotated[FileDB, Depends(FileDB.session)]) -> int: ...

A dependency is a function, a generator (it yields the value; the code after ``yield`` is the
teardown), a class or a callable object, sync or async. It may have dependencies of its own.
FastAPI's ``Depends`` objects work too, without importing FastAPI, so that routes and tasks can
share functions. Each dependency is called once per attempt, or with ``scope="process"`` once per
process.

A function is compiled once into a `Recipe`: the steps in the order in which they are opened, each
naming the earlier steps that its arguments come from. Compiling finds all mistakes before anything
is executed; opening an attempt walks the list.

    providers   what authors write: Depends, registered classes, entry points
    recipes     compiles signatures into steps and problems; executes nothing
    lifetimes   calling, teardown, threads, the process scope
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext

from nonet.base.errors import DependencyError
from nonet.base.forks import ending_copies
from nonet.tasks.injection.lifetimes import ProcessScope, make
from nonet.tasks.injection.providers import (
    REGISTRY,
    Dependency,
    DependencyRegistry,
    Depends,
    Provider,
    Scope,
    load_entry_points,
    override_dependency,
    register_dependency,
)
from nonet.tasks.injection.recipes import Kind, Recipe, compile_recipe, is_injected

__all__ = [
    "REGISTRY",
    "Dependency",
    "DependencyRegistry",
    "Depends",
    "Injector",
    "Provider",
    "Scope",
    "is_injected",
    "load_entry_points",
    "override_dependency",
    "register_dependency",
]


class Injector:
    """Opens and closes the dependencies of attempts, for the life of a process.

    Args:
        overrides: replacements, ``{dependency: other}``, which apply at any depth. A key may also
            be the class that annotates a parameter. The mapping is live, and the values of
            replacements may have any type.
        registry: providers by class.

    Example:
        async with Injector() as injector:
            async with injector.open(task.execute) as dependencies:
                await task.execute(**dependencies)
    """

    def __init__(
        self,
        overrides: dict[Provider, Provider] | None = None,
        registry: DependencyRegistry = REGISTRY,
    ) -> None:
        self.overrides: dict[Provider, Provider] = {} if overrides is None else overrides
        self.registry = registry
        self._process = ProcessScope()
        self._recipes: dict[object, Recipe] = {}
        self._compiled_for: tuple[int, dict[Provider, Provider]] = (-1, {})

    async def __aenter__(self) -> Injector:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the process-scoped dependencies, in reverse order of opening."""
        await self._process.aclose()

    def check(self, function: Provider, values: Collection[type] = ()) -> list[str]:
        """List all reasons why ``function`` cannot get its dependencies, without calling anything.

        Args:
            function: an ``execute`` method, bound or not.
            values: the types that `open` will be given values for.
        """
        return list(self._recipe(function, values).problems)

    def is_needed(self, function: Provider, values: tuple[type, ...] = ()) -> bool:
        """Whether `open` would provide anything, or fail.

        Args:
            values: the types that `open` will be given values for.
        """
        recipe = self._recipe(function, values)
        return bool(recipe.arguments or recipe.problems)

    def open(
        self, function: Provider, values: Mapping[type, object] | None = None
    ) -> AbstractAsyncContextManager[dict[str, object]]:
        """Provide the keyword arguments of ``function`` for one attempt.

        If the body raises or is cancelled, the exception is thrown into the generators, in reverse
        order of opening, and leaves the block even if a generator swallows it. Otherwise the
        generators continue after their ``yield`` (commit); if one of them fails, the remaining ones
        get its exception.

        Args:
            values: values for parameters annotated with exactly these types, at any depth.

        Raises:
            DependencyError: a parameter cannot be provided (nothing has been opened), or a
                dependency returned a value of another type than the annotation.
        """
        recipe = self._recipe(function, values or ())
        if recipe.problems:
            raise DependencyError("; ".join(recipe.problems))
        if not recipe.arguments:
            return nullcontext({})
        return self._open(recipe, values or {}, function)

    @asynccontextmanager
    async def _open(
        self, recipe: Recipe, values: Mapping[type, object], function: Provider
    ) -> AsyncIterator[dict[str, object]]:
        async with AsyncExitStack() as stack:
            made: list[object] = []
            for step in recipe.steps:
                arguments = recipe.filled(step.arguments, made, function)
                if step.kind is Kind.VALUE:
                    made.append(values[step.call])
                elif step.scope == "process":
                    made.append(await self._process.get(step, arguments))
                else:
                    with ending_copies():
                        made.append(await make(step, arguments, stack))
            yield recipe.filled(recipe.arguments, made, function)

    def _recipe(self, function: Provider, values: Iterable[type]) -> Recipe:
        version, overrides = self._compiled_for
        if version != self.registry.version or overrides != self.overrides:
            self._recipes.clear()
            self._compiled_for = (self.registry.version, dict(self.overrides))
        # Key a bound method by its function, so that the cache does not keep the instance alive.
        bound = getattr(function, "__func__", None)
        key = (bound, bound or function, frozenset(values))
        recipe = self._recipes.get(key)
        if recipe is None:
            recipe = compile_recipe(function, self.overrides, self.registry, tuple(values))
            if not recipe.problems:  # a provider that failed may work the next time
                self._recipes[key] = recipe
        return recipe
