"""The tasks module of a Django project, for ``NONET_TASKS``: names those of all applications.

Django is set up first, so that daemons, the processes of isolated tasks and programs that submit
can load models. ``DJANGO_SETTINGS_MODULE`` names the settings.
"""

from __future__ import annotations

import django
from django.apps import apps
from django.utils.module_loading import module_has_submodule

from nonet.contrib.django.connections import CloseConnections, wait_for_sqlite
from nonet.tasks.middleware import register_middleware

_MODULE = "tasks"

_close_connections = CloseConnections()


def nonet_task_modules() -> dict[str, str]:
    """The module ``tasks`` of each application that has one, by the label of the application.

    Sets Django up first.
    """
    if not apps.ready:
        django.setup()
    wait_for_sqlite()
    register_middleware(_close_connections)
    return {
        config.label: f"{config.name}.{_MODULE}"
        for config in apps.get_app_configs()
        if config.module is not None and module_has_submodule(config.module, _MODULE)
    }
