"""Load the task modules, in the fork server or in a child that was not forked."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

from nonet.base.streams import Size
from nonet.client.async_application import AsyncApplication
from nonet.config.environment import Secret
from nonet.config.settings import plain_settings
from nonet.stores.queue.broker import Broker
from nonet.tasks.secrecy import secret_texts
from nonet.tasks.task import Isolation
from nonet.telemetry.logs import describe_process, set_up_logs
from nonet.telemetry.tracing import are_traces_wanted, load_exporters
from nonet.worker.children.wire import SetUp


def load(set_up: SetUp) -> AsyncApplication:
    """Return an application with the settings and the import path of the worker, not yet open."""
    set_up_process(set_up)
    redis_url = Secret(set_up.settings["redis_url"], set_up.url_file)
    app = AsyncApplication(plain_settings(**set_up.settings | {"redis_url": redis_url}))
    app.prepares_sqlite = False
    app.middlewares.extend(recipe.make() for recipe in set_up.middleware)
    _import_for_children(app)
    return app


def prepare(app: AsyncApplication) -> None:
    """Do, once and before the forks, the work that each fresh child would do before its attempt.

    A child that writes to memory copies its pages, which takes longer than the work itself.
    """
    settings = app.settings
    app.made_broker = Broker(settings, settings.redis_url.get_secret_value())
    for item in app.registry:
        if item.cls.isolation is Isolation.FRESH or item.cls.size == Size.LARGE:
            secret_texts(dict.fromkeys(item.arguments.names), item.cls)  # it remembers the names


def set_up_process(set_up: SetUp) -> None:
    """Take over the import path of the worker, and how it logs."""
    sys.path[:] = set_up.path
    settings = set_up.settings
    set_up_logs(settings["log_format"], set_up.log_level, settings["task_log_bytes"])
    describe_process(**set_up.about)
    with suppress(ImportError):  # the worker has logged that the extra is missing
        if are_traces_wanted():
            load_exporters()  # here once, instead of in each child


def _import_for_children(app: AsyncApplication) -> None:
    """Import the modules that each child would otherwise import before its first task."""
    # redis-py needs the first when it connects, a task that fails the second, which is pydantic.
    modules = ["email.parser", "nonet.tasks.retry"]
    if app.settings.uvloop:
        modules.append("uvloop.loop")
    if any(item.cls.durable for item in app.registry):
        modules.append("nonet.stores.sql.outbox")
    for module in modules:
        with suppress(ImportError):  # uvloop is optional
            import_module(module)
