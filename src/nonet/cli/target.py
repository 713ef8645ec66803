"""Make commands of async functions, with common options and a target namespace."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.cli.options import Debug, Namespace, Namespaces, StateDir, Tasks
from nonet.cli.process import print_error, run
from nonet.daemon.service import ExitCode
from nonet.telemetry.masking import keep_secret

if TYPE_CHECKING:
    from nonet.app import Nonet
    from nonet.config.settings import Settings
    from nonet.stores.stores import Stores

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The namespace that a command acts on. The environment supplies missing options."""

    namespace: Namespace = None
    namespaces: Namespaces = None
    state_dir: StateDir = None
    debug: Debug = False

    def options(self) -> dict[str, Any]:
        """Return the arguments for `nonet.config.settings.load_settings`."""
        return {
            "namespace": self.namespace,
            "namespaces": self.namespaces,
            "state_dir": self.state_dir,
        }

    def settings(self) -> Settings:
        """The settings of this process."""
        from nonet.config.settings import load_settings  # pydantic is slow to import

        return load_settings(**self.options())

    def observer(self) -> Nonet:
        """Return an application without task classes, not yet open."""
        from nonet.app import Nonet  # slower to import than `--help` may take

        return Nonet(self.settings(), load_tasks=False)

    @asynccontextmanager
    async def stores(self) -> AsyncIterator[Stores]:
        """Return only the stores, for commands that need neither a client nor task classes."""
        from nonet.stores.stores import open_stores

        settings = self.settings()
        keep_secret(settings.secrets())
        async with AsyncExitStack() as closing:
            yield await open_stores(settings, closing)


@dataclass(frozen=True, kw_only=True)
class CodeTarget(Target):
    """A namespace and the task classes that this process loads."""

    tasks: Tasks = None

    def options(self) -> dict[str, Any]:
        """See `Target.options`."""
        modules = tuple(name.strip() for each in self.tasks or () for name in each.split(","))
        return {**super().options(), "tasks": modules or None}

    def application(self) -> Nonet:
        """Return an application with its task classes, not yet open."""
        from nonet.app import Nonet

        return Nonet.from_settings(**self.options())


def operation(function: Callable[..., Coroutine[Any, Any, int]]) -> Callable[..., None]:
    """Make a command of an async function that returns an exit code.

    Its first parameter is a `Target` or `CodeTarget`; see `flat` for its options.
    """

    def command(target: Target, *args: Any, **options: Any) -> None:
        run(target.debug, lambda: function(target, *args, **options))

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return flat(command)


def listing(function: Callable[..., Coroutine[Any, Any, int]]) -> Callable[..., None]:
    """Make a command as `operation` does, which shows each namespace of its target."""

    @wraps(function)
    async def shown(target: Target, *args: Any, **options: Any) -> int:
        is_endless = bool(options.get("watch") or options.get("follow"))
        as_json = bool(options.get("as_json"))
        return await in_each(
            target, lambda one: function(one, *args, **options), as_json, is_endless=is_endless
        )

    return operation(shown)


async def in_each(
    target: Target,
    show: Callable[[Target], Coroutine[Any, Any, int]],
    as_json: bool,
    *,
    is_endless: bool = False,
) -> int:
    """Show each namespace of a target, and return the largest exit code.

    A namespace whose Redis does not answer does not hide the others.

    Raises:
        ConfigurationError: there are several, and the command never ends by itself.
    """
    names = target.settings().namespaces
    if len(names) < 2:
        return await show(target)
    if is_endless:
        raise ConfigurationError(
            f"only one namespace can be watched: name it, such as --namespace {names[0]}"
        )
    from nonet.cli.output import of_namespace  # slower to import than `--help` may take

    codes: list[int] = []
    for name in names:
        with of_namespace(name, as_json=as_json):
            try:
                codes.append(
                    await show(dataclasses.replace(target, namespace=name, namespaces=None))
                )
            except ServerUnreachableError as error:
                print_error(f"namespace {name}: {error}")
                codes.append(ExitCode.UNREACHABLE)
    return max(codes)


def flat(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Replace each parameter that is a dataclass by options, one for each field.

    Typer knows no groups of options. The options of a `Target` come last.

    >>> @dataclass
    ... class Page:
    ...     limit: int = 100
    >>> @flat
    ... def show(target: Target, page: Page, name: str = "") -> str:
    ...     return f"{target.namespace} {page.limit} {name}"
    >>> list(inspect.signature(show).parameters)
    ['limit', 'name', 'namespace', 'namespaces', 'state_dir', 'debug']
    >>> show(limit=5, namespace="test")
    'test 5 '
    """
    given = inspect.signature(function, eval_str=True).parameters
    groups = {name: item.annotation for name, item in given.items() if _is_group(item.annotation)}
    shown: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    for name, item in given.items():
        if name not in groups:
            shown.append(item.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            (last if issubclass(groups[name], Target) else shown).extend(_options(groups[name]))

    def flattened(**options: Any) -> _Result:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            options[name] = group(
                **{field: options.pop(field) for field in fields if field in options}
            )
        return function(**options)

    parameters = [*shown, *last]
    flattened.__name__, flattened.__doc__ = function.__name__, function.__doc__
    flattened.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flattened.__annotations__ = {item.name: item.annotation for item in parameters}
    return flattened


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty
            if field.default is dataclasses.MISSING
            else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
