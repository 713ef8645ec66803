"""What fills the parameters of ``execute``: `Depends`, providers by class, and the `Injector`.

    class RemoveFile(BaseTask):
        async def execute(self, db: Annotated[FileDB, Depends(FileDB.session)]) -> int: ...

A dependency is a function, a generator (it yields the value; what follows is the teardown), a
class or a callable object, sync or async, and may have dependencies of its own. FastAPI's
``Depends`` objects are understood too, without importing FastAPI, so that the same functions
serve routes. Each is called once per attempt, or once per process with ``scope="process"``.

Signatures are compiled once per function into a `Recipe`: the steps in the order in which they
are opened, each naming the earlier steps that its arguments come from. All mistakes are found
there, before anything is executed; opening an attempt is walking that list.

    providers   what authors write: Depends, registered classes, entry points
    recipes     signatures → steps and problems (executes nothing)
    lifetimes   calling, teardown, threads, the process scope
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)

from nonet.base.errors import DependencyError
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
from nonet.tasks.injection.recipes import Kind, Recipe, compile_recipe

__all__ = [
    "REGISTRY",
    "Dependency",
    "DependencyRegistry",
    "Depends",
    "Injector",
    "Provider",
    "Scope",
    "load_entry_points",
    "override_dependency",
    "register_dependency",
]


class Injector:
    """Opens and closes the dependencies of attempts, for the life of a process.

    Args:
        overrides: replacements, ``{dependency: other}``, honoured at any depth; the mapping is
            live. The key may also be the class with which a parameter is annotated. What they give
            may be of any type.
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
        """Close the process-scoped dependencies, the last opened first."""
        await self._process.aclose()

    def check(self, function: Provider, values: Collection[type] = ()) -> list[str]:
        """All reasons why ``function`` cannot be provided for, as sentences; nothing is called.

        Args:
            function: an ``execute``, bound or not.
            values: the types that `open` will be given values for.
        """
        return list(self._recipe(function, values).problems)

    def is_needed(self, function: Provider, values: tuple[type, ...] = ()) -> bool:
        """Whether `open` would provide anything, or refuse.

        Args:
            values: the types that it would be given values for.
        """
        recipe = self._recipe(function, values)
        return bool(recipe.arguments or recipe.problems)

    def open(
        self, function: Provider, values: Mapping[type, object] | None = None
    ) -> AbstractAsyncContextManager[dict[str, object]]:
        """Provide the keyword arguments of ``function`` for one attempt.

        An exception of the body, a cancellation included, is thrown into the generators, the
        last opened first, and leaves the block even if one of them swallows it. Without one they
        run on past their ``yield`` (commit); if that fails, the others get its exception.

        Args:
            values: what parameters annotated with exactly these types receive, at any depth.

        Raises:
            DependencyError: something cannot be provided, and nothing has been opened; or, from
                the block's beginning, what a dependency gave is no instance of the annotation.
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
                    made.append(await make(step, arguments, stack))
            yield recipe.filled(recipe.arguments, made, function)

    def _recipe(self, function: Provider, values: Iterable[type]) -> Recipe:
        version, overrides = self._compiled_for
        if version != self.registry.version or overrides != self.overrides:
            self._recipes.clear()
            self._compiled_for = (self.registry.version, dict(self.overrides))
        # A bound method is kept by its function: the key must not hold the instance.
        bound = getattr(function, "__func__", None)
        key = (bound, bound or function, frozenset(values))
        recipe = self._recipes.get(key)
        if recipe is None:
            recipe = compile_recipe(function, self.overrides, self.registry, tuple(values))
            if not recipe.problems:  # else it is compiled again: a provider may have more luck
                self._recipes[key] = recipe
        return recipe
