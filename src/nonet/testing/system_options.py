"""Checks the arguments of `System`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from nonet.base.errors import ConfigurationError, suggestion
from nonet.config.settings import Settings
from nonet.tasks.task import BaseTask

Tasks = Iterable[type[BaseTask] | ModuleType | str]

# Scripts count microseconds in doubles, which are exact up to the year 2255. The limit is lower,
# because deadlines lie in the future of the test.
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
TOO_LATE = f"after the year {LATEST.year - 1}, beyond what scripts in Redis count exactly"


def check_names(settings: Iterable[str], arguments: Iterable[str]) -> None:
    """Reject an argument of `System` that is neither a parameter nor a setting."""
    for name in settings:
        if name not in Settings.__struct_fields__:
            likely = suggestion(name, [*arguments, *Settings.__struct_fields__])
            raise ConfigurationError(
                f"System has no argument {name!r}, and no setting has that name.{likely} "
                f"Its arguments are {', '.join(arguments)}; its settings are those of NONET_… in "
                "lower case"
            )


def checked_tasks(tasks: Tasks) -> list[type[BaseTask] | ModuleType | str]:
    """Return the tasks and modules for a `System`; reject any other value."""
    if isinstance(tasks, type | ModuleType | str):
        raise TypeError(
            f"System(tasks={tasks!r:.100}): pass a list of task classes and modules, such as "
            "tasks=[SendInvoice]"
        )
    given = list(tasks)
    for item in given:
        is_task = isinstance(item, type) and issubclass(item, BaseTask)
        if not is_task and not isinstance(item, ModuleType | str):
            raise TypeError(
                f"System(tasks=[…]): {item!r:.100} is neither a task class nor a module, nor the "
                "name of a module"
            )
    return given


def check_now(now: datetime) -> None:
    """Reject a time that scripts cannot count exactly."""
    if now > LATEST:
        raise ValueError(f"System(now={now!r}): that is {TOO_LATE}")


def config_file(config: Mapping[str, Any] | str | Path | None, home: Path) -> str | Path:
    """Return the path of the central configuration; write a mapping to a file in `home`."""
    if not isinstance(config, Mapping):
        return config or ""
    path = home / "config.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return path
