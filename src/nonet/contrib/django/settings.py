"""Apply ``NONET`` of the settings of a Django project to this process and its children."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from django import conf
from django.core.exceptions import ImproperlyConfigured

from nonet.config.settings import PREFIX

DISCOVERY = "nonet.contrib.django.discovery"


def apply_settings() -> None:
    """Set the ``NONET_…`` variables that the environment does not have.

    Variables reach all processes that a daemon starts, and take precedence as they do elsewhere.

    Raises:
        ImproperlyConfigured: ``NONET`` is not a mapping of text or plain values.
    """
    given: Any = getattr(conf.settings, "NONET", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(
            f"NONET is {given!r:.100}: write a dictionary, as NONET = {{'REDIS_URL': 'redis://…'}}"
        )
    for name, value in {**given, "TASKS": [DISCOVERY, *_listed(given.get("TASKS", ()))]}.items():
        if value is not None:
            os.environ.setdefault(f"{PREFIX}{str(name).upper()}", _text(value))


def _text(value: Any) -> str:
    """Write a value as an environment variable has it."""
    match value:
        case bool():
            return str(value).lower()
        case Mapping():
            return ",".join(f"{key}:{item}" for key, item in value.items())
        case list() | tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
