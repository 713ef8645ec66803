"""What the application with an event loop and the one without have in common."""

from __future__ import annotations

from typing import Any, Self

from nonet.config.settings import Settings, ensure_settings, load_settings
from nonet.config.task_loading import load_registry
from nonet.tasks.middleware import Middlewares, installed_middleware
from nonet.tasks.registry import Registry
from nonet.telemetry.logs import adopt_structlog, keep_logs
from nonet.telemetry.masking import keep_secret


class Application:
    """The settings, task classes and middlewares of one namespace."""

    def __init__(self, settings: Settings, *, load_tasks: bool = True) -> None:
        ensure_settings(settings)
        self.settings = settings
        keep_secret(settings.secrets())
        self.registry: Registry = load_registry(settings) if load_tasks else Registry()
        self.middlewares: Middlewares = Middlewares()
        if load_tasks:
            self.middlewares.extend(installed_middleware(settings.groups))
            keep_logs()
            adopt_structlog()

    @classmethod
    def from_settings(cls, **options: Any) -> Self:
        """Create an application from the environment; keyword options take precedence.

        Args:
            options: fields of `nonet.Settings`, e.g. ``namespace="test"`` or
                ``tasks=("mypackage.tasks",)``.

        Raises:
            ConfigurationError: a setting is invalid.
            RegistrationError: a task class cannot be registered.

        Example:
            app = Nonet.from_settings(namespace="test", tasks=("mypackage.tasks",))
        """
        return cls(load_settings(**options))
