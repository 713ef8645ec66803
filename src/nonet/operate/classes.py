"""The options of a task class: what is declared, and what the configuration makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nonet.base.errors import ConfigurationError
from nonet.config.overrides import CLASS, NONE, SIZE, Effective, Overrides
from nonet.stores.namespace.publication import Publication
from nonet.tasks.registry import TaskClass

if TYPE_CHECKING:  # the models take 30 ms to import
    from nonet.config.models import Config

_NAMES = (
    *("priority", "size", "retry_policy", "soft_timeout", "hard_timeout", "dlq_eligible"),
    *("isolation", "memory_limit", "cpu_limit"),
)


def values(config: Config, task_class: TaskClass, vo: str) -> list[dict[str, Any]]:
    """Return name, value and origin of each attribute of a class that can be overridden.

    Raises:
        ConfigurationError: the retry policy cannot be built in this process.
    """
    return _values(Overrides.of(config), task_class, vo)


async def published_overrides(publication: Publication) -> Overrides:
    """Return the overrides of the published configuration.

    Raises:
        ConfigurationError: this process cannot read it.
        ServerUnreachableError: Redis does not answer.
    """
    from nonet.config.models import Config

    found = await publication.read()
    if found is None or not found.document:
        return NONE
    return Overrides.of(Config.from_document(found.document))


def options(overrides: Overrides, task_class: TaskClass) -> list[dict[str, Any]]:
    """Return the options of a class with name, value, declared value and origin.

    ``from`` is the path in the configuration, or empty if the declared value is in force.

    Raises:
        ConfigurationError: the retry policy cannot be built in this process.
    """
    declared = {item["name"]: item["value"] for item in _values(NONE, task_class, "")}
    return [
        {
            **item,
            "declared": declared[item["name"]],
            "from": "" if item["from"] in (CLASS, SIZE) else item["from"],
        }
        for item in _values(overrides, task_class, "")
    ]


def _values(overrides: Overrides, task_class: TaskClass, vo: str) -> list[dict[str, Any]]:
    try:
        found = overrides.effective(task_class, vo)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}: this process does not load the module that defines it, see --tasks"
        ) from None
    return [
        {"name": name, "value": _value(found, name), "from": found.origins[name]} for name in _NAMES
    ]


def _value(found: Effective, name: str) -> Any:
    from pydantic import BaseModel

    value = getattr(found, name)
    if name != "retry_policy":
        return value
    args = value.model_dump(mode="json") if isinstance(value, BaseModel) else {}
    return {"class": type(value).__name__, "args": args}
