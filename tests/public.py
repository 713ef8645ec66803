"""What is public: modules, what they offer, and the members of classes among that."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import nonet
from nonet.client.namespace import InNamespace

PUBLIC = (
    *("nonet", "nonet.testing"),
    *(f"nonet.contrib.{name}" for name in ("canary", "django", "fastapi", "sentry")),
)
# What is called by the framework alone says so.
FRAMEWORK = re.compile(r"[Ff]or the framework|^Called by the framework")


def public_names() -> dict[str, Any]:
    """What the modules offer, by its whole name."""
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in map(importlib.import_module, PUBLIC)
        for name in module.__all__
    }


def documented() -> dict[str, Any]:
    """Public functions and classes, and the methods and properties that these have themselves, or
    from the list of what a program can do."""
    found: dict[str, Any] = {}
    for name, thing in public_names().items():
        if thing is nonet.IntervalSeconds and name == "nonet.IntervalSeconds":
            continue  # another name
        found[name] = thing
        bases = reversed(thing.__mro__) if inspect.isclass(thing) else ()
        classes = [each for each in bases if each is thing or issubclass(each, InNamespace)]
        for part, member in (item for each in classes for item in vars(each).items()):
            function = getattr(member, "__func__", member)
            is_ours = inspect.isfunction(function) or isinstance(function, property)
            if is_ours and (part == "__call__" or not part.startswith("_")):
                found[f"{name}.{part}"] = function
    return found
