"""The checks of Nonet for ``manage.py check``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Info, Warning, register
from django.db import connections

from nonet.app import Nonet
from nonet.base.errors import ConfigurationError, NonetError
from nonet.config.settings import Settings, is_default_redis, load_settings
from nonet.contrib.django.connections import is_sqlite

_TAG = "nonet"


@register(_TAG)
def check_tasks(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """Load the settings and all task classes, and look for dependencies that nothing provides."""
    try:
        settings = load_settings()
    except ConfigurationError as error:
        hint = "Correct NONET in the settings, or the variables NONET_… of the environment."
        return [Error(str(error), hint=hint, id="nonet.E001")]
    try:
        app = Nonet(settings)
    except NonetError as error:
        return [Error(str(error), id="nonet.E002")]
    if not list(app.registry):
        hint = "Write task classes in APPLICATION/tasks.py of an application in INSTALLED_APPS."
        return [Warning("No application has tasks.", hint=hint, id="nonet.W003")]
    problems = app.dependency_problems(app.injector())
    found: list[CheckMessage] = [Error(problem, id="nonet.E003") for problem in problems]
    return found + [Warning(text, id="nonet.W001") for text in app.registry.warnings()]


@register(_TAG, deploy=True)
def check_deployment(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """With ``--deploy``: warn of development settings; report the connections of a worker."""
    try:
        settings = load_settings()
    except ConfigurationError:
        return []  # the other check reports it
    return [*_about_redis(settings), *_about_databases(settings)]


def _about_redis(settings: Settings) -> Iterator[CheckMessage]:
    url = settings.redis_url.get_secret_value()
    if is_default_redis(url):
        text = f"No Redis is set, so that tasks go to {url}."
        hint = "Set REDIS_URL in NONET of the settings, or the variable NONET_REDIS_URL."
    elif url.startswith("embedded:"):
        text = "REDIS_URL is embedded://, a server for development that ends with its programs."
        hint = "Set it to the URL of a Redis server."
    else:
        return
    yield Warning(text, hint=hint, id="nonet.W002")


def _about_databases(settings: Settings) -> Iterator[CheckMessage]:
    for alias, database in connections.settings.items():
        name = f"Database {alias!r}"
        if is_sqlite(database):
            text = f"{name} is SQLite: one task at a time can write, and the others wait."
            hint = "Use PostgreSQL, MariaDB or MySQL, or set THREADS in NONET to 1."
            yield Warning(text, hint=hint, id="nonet.W004")
        elif not str(database["ENGINE"]).endswith(".dummy"):
            threads = settings.threads
            text = f"{name}: each small worker opens up to {threads + 1} connections."
            hint = (
                f"{threads} for plain functions (THREADS in NONET) and one for coroutines. The "
                "server must allow these for each worker, and those of the web processes."
            )
            yield Info(text, hint=hint, id="nonet.I001")
