"""Recognise and mask secret arguments of tasks."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from nonet.base import late_pydantic as pydantic
from nonet.base.messages.documents import are_encrypted
from nonet.base.messages.encryption import NO_KEY

MASK = "**********"

# pydantic describes SecretStr and SecretBytes like this.
_SECRET_SCHEMA = "'format': 'password'"

_PLAIN = (bool, int, float, str, bytes)

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)|secret|token|credential|(api|private|access)_?key", re.IGNORECASE
)


def masked_arguments(arguments: Mapping[str, Any], cls: type | None) -> dict[str, Any]:
    """Copy arguments by name with the secret ones masked.

    An argument is secret if its annotation contains pydantic's ``SecretStr`` or ``SecretBytes``, or
    if its name suggests a secret. Inside other arguments, entries whose name suggests a secret are
    masked. Without the class, its annotations are unknown, so everything is masked.

    >>> masked_arguments({"host": "db", "login": {"user": "me", "api_key": "k"}}, cls=None)
    {'host': '**********', 'login': '**********'}
    """
    if are_encrypted(arguments):
        return {"(all)": NO_KEY}
    return {
        name: MASK if cls is None or _is_secret(name, cls) else mask_names(value)
        for name, value in arguments.items()
    }


def secrets_in(arguments: Mapping[str, Any], cls: type) -> frozenset[str]:
    """Return the names of the arguments that `masked_arguments` changes, except empty ones.

    >>> class Login:
    ...     def __init__(self, host: str, password: str, proxy: dict[str, str]) -> None: ...
    >>> sorted(secrets_in({"host": "db", "password": "k", "proxy": {"token": "t"}}, Login))
    ['password', 'proxy']
    """
    shown = masked_arguments(arguments, cls)
    given = {name: value for name, value in arguments.items() if value is not None}
    return frozenset(name for name, value in given.items() if shown.get(name) != value)


def masked_result(value: Any, cls: type | None) -> Any:
    """Copy the result of a task with its secrets masked; see `masked_arguments`.

    All of it is secret if the annotation of ``execute`` says so, or without the class.
    """
    if cls is None:
        return MASK
    try:
        hint = typing.get_type_hints(cls.execute, include_extras=True).get("return", Any)  # type: ignore[attr-defined]
        is_secret = _SECRET_SCHEMA in str(pydantic.TypeAdapter(hint).json_schema())
    except (NameError, TypeError, pydantic.PydanticUserError):
        is_secret = False  # its class cannot be described, so it has no such annotation
    return MASK if is_secret else mask_names(value)


def mask_names(value: Any) -> Any:
    """Copy `value` with every entry masked whose name suggests a secret.

    >>> mask_names({"user": "me", "keys": [{"token": "t"}]})
    {'user': 'me', 'keys': [{'token': '**********'}]}
    """
    match value:
        case Mapping():
            return {
                key: MASK if isinstance(key, str) and _SECRET_NAME.search(key) else mask_names(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [mask_names(item) for item in value]
        case _:
            return value


def secret_texts(
    arguments: Mapping[str, Any], cls: type, *, everything: bool = False
) -> tuple[str, ...]:
    """The values that `masked_arguments` masks, as texts to be removed from log lines.

    Args:
        everything: all arguments are secret.

    >>> class Login:
    ...     def __init__(self, host: str, login: dict[str, str]) -> None: ...
    >>> secret_texts({"host": "db", "login": {"user": "me", "api_key": "k3y-1"}}, cls=Login)
    ('k3y-1',)
    """
    found: list[str] = []
    for name, value in arguments.items():
        found += _leaves(value, is_secret=everything or _is_secret(name, cls))
    return tuple(found)


def _leaves(value: Any, *, is_secret: bool) -> Iterator[str]:
    """Yield the texts in `value`: all, or those whose name suggests a secret."""
    match value:
        case Mapping():
            for key, item in value.items():
                has_secret_name = isinstance(key, str) and _SECRET_NAME.search(key) is not None
                yield from _leaves(item, is_secret=is_secret or has_secret_name)
        case list() | tuple():
            for item in value:
                yield from _leaves(item, is_secret=is_secret)
        case bytes() if is_secret:
            yield value.decode(errors="ignore")
        case str() | int() | float() if is_secret and not isinstance(value, bool):
            yield str(value)
        case object(get_secret_value=reveal):  # of pydantic's SecretStr, or SecretBytes
            yield from _leaves(reveal(), is_secret=True)


@lru_cache(4096)
def _is_secret(name: str, cls: type) -> bool:
    if _SECRET_NAME.search(name):
        return True
    try:
        hints = [
            hints[name]
            for source in (cls, cls.__init__)  # type: ignore[misc]  # only its annotations are read
            if name in (hints := typing.get_type_hints(source, include_extras=True))
        ]
        if not hints:
            return not _takes_any_name(cls)
        if all(hint in _PLAIN for hint in hints):
            return False  # without pydantic
    except (NameError, TypeError):
        return True  # an annotation that cannot be resolved
    try:
        schemas = [pydantic.TypeAdapter(hint).json_schema() for hint in hints]
    except (NameError, TypeError, pydantic.PydanticUserError):
        return True  # an annotation that cannot be resolved
    return _SECRET_SCHEMA in str(schemas)


def _takes_any_name(cls: type) -> bool:
    """Whether a name without an annotation can be one of ``**kwargs``."""
    parameters = inspect.signature(cls).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
