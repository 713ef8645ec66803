"""What ``manage.py check`` says of Nonet."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Warning, register

from nonet.app import Nonet
from nonet.base.errors import ConfigurationError, NonetError
from nonet.config.settings import is_default_redis, load_settings

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
    """With ``--deploy``: find settings that only suit development."""
    try:
        url = load_settings().redis_url.get_secret_value()
    except ConfigurationError:
        return []  # the other check reports it
    if is_default_redis(url):
        text = f"No Redis is set, so that tasks go to {url}."
        hint = "Set REDIS_URL in NONET of the settings, or the variable NONET_REDIS_URL."
    elif url.startswith("embedded:"):
        text = "REDIS_URL is embedded://, a server for development that ends with its programs."
        hint = "Set it to the URL of a Redis server."
    else:
        return []
    return [Warning(text, hint=hint, id="nonet.W002")]
