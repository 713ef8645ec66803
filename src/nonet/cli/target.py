"""Make commands of async functions, with common options and a target namespace."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from nonet.base import late_pydantic as pydantic
from nonet.base.plain import is_model
from nonet.cli.options import QUERIES, Debug, Namespace, StateDir, Tasks
from nonet.cli.process import run
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
    state_dir: StateDir = None
    debug: Debug = False

    def options(self) -> dict[str, Any]:
        """Return the arguments for `nonet.config.settings.load_settings`."""
        return {"namespace": self.namespace, "state_dir": self.state_dir}

    def settings(self) -> Settings:
        """The settings of this process."""
        from nonet.config.settings import load_settings  # pydantic is slow to import

        return load_settings(**self.options())

    def observer(self) -> Nonet:
        """Return an application without task classes, not yet open."""
        return self._nonet(load_tasks=False)

    def _nonet(self, *, load_tasks: bool) -> Nonet:
        from nonet.app import Nonet  # 0.2 s; commands that only read do without

        return Nonet(self.settings(), load_tasks=load_tasks)

    @asynccontextmanager
    async def stores(self) -> AsyncIterator[Stores]:
        """Return only the stores, for commands that need neither a client nor task classes."""
        from nonet.stores.stores import open_stores  # it imports redis

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
        return self._nonet(load_tasks=True)


def operation(function: Callable[..., Coroutine[Any, Any, int | None]]) -> Callable[..., None]:
    """Make a command of an async function that returns an exit code; None: 0.

    Its first parameter is a `Target` or `CodeTarget`; see `flat` for its options.
    """

    def command(target: Target, *args: Any, **options: Any) -> None:
        run(target.debug, lambda: function(target, *args, **options))

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return flat(command)


def flat(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Replace each parameter that is a dataclass or a query by options, one for each field.

    Typer knows no groups of options. The options of a `Target` come last. The fields of a query
    become options with their description as help; `nonet.cli.options.QUERIES` has the exceptions.

    >>> @dataclass
    ... class Page:
    ...     limit: int = 100
    >>> @flat
    ... def show(target: Target, page: Page, name: str = "") -> str:
    ...     return f"{target.namespace} {page.limit} {name}"
    >>> list(inspect.signature(show).parameters)
    ['limit', 'name', 'namespace', 'state_dir', 'debug']
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
            fields = {option.name for option in _options(group)} & options.keys()
            options[name] = _made(group, {field: options.pop(field) for field in fields})
        return function(**options)

    parameters = [*shown, *last]
    flattened.__name__, flattened.__doc__ = function.__name__, function.__doc__
    flattened.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flattened.__annotations__ = {item.name: item.annotation for item in parameters}
    return flattened


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and (
        dataclasses.is_dataclass(annotation) or is_model(annotation)
    )


def _made(group: Any, values: dict[str, Any]) -> Any:
    if not is_model(group):
        return group(**values)
    try:
        return group(**{name: value for name, value in values.items() if value not in (None, [])})
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0]) if problem["loc"] else ""
        (flag,) = QUERIES.get(name, {}).get("flags", [_flag(name)])
        raise typer.BadParameter(problem["msg"], param_hint=flag) from None


def _options(group: Any) -> list[inspect.Parameter]:
    if is_model(group):
        fields = sorted(group.model_fields.items(), key=lambda item: item[0] in ("limit", "cursor"))
        return [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **_option(name, field))
            for name, field in fields
        ]
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


def _option(name: str, field: Any) -> dict[str, Any]:
    """Return the default and the annotation of the option for the field of a query."""
    more = dict(QUERIES.get(name, {}))
    flags = more.pop("flags", [_flag(name)])
    default = None if field.default in ("", ()) else field.default
    repeatable = " Repeatable." if get_origin(field.annotation) is tuple else ""
    text = field.description.replace("`", "'") + repeatable
    option = typer.Option(*flags, help=text, show_default=default not in (None, False), **more)
    return {"default": default, "annotation": Annotated[_kind(field.annotation), option]}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _kind(annotation: Any) -> Any:
    """Return the type that Typer parses; the query parses what Typer does not know."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _kind(next(part for part in parts if part is not NoneType)) | None
    if origin is Annotated:
        return _kind(parts[0])
    if origin is tuple:
        kind = _kind(parts[0])
        return list[str if get_origin(kind) is Literal else kind] | None  # type: ignore[misc]
    known = origin is Literal or annotation in (bool, int, float) or issubclass(annotation, Enum)
    return annotation if known else str
