"""Build a worker from an open application."""

from __future__ import annotations

from importlib.metadata import version

from nonet.base.streams import Size
from nonet.client.parts import Parts
from nonet.daemon.contact import Reached, sql_reached
from nonet.tasks.injection import Injector
from nonet.tasks.registry import Registry
from nonet.tasks.task import Isolation
from nonet.worker.attempt.burials import Burials
from nonet.worker.attempt.conclusion import Concluder
from nonet.worker.attempt.settle import Settler
from nonet.worker.parts import WorkerParts
from nonet.worker.slots import Slots
from nonet.worker.worker import Worker


def assemble(
    parts: Parts,
    injector: Injector,
    size: Size,
    concurrency: int | None = None,
    isolation: Isolation | None = None,
    *,
    owns_process: bool = True,
    slots: Slots | None = None,
) -> Worker:
    """Return a worker that is not running yet; see `Worker` for the arguments."""
    settings, stores = parts.settings, parts.stores
    limits = settings.message_limit, settings.crash_limit
    concluder = Concluder(parts.client.live_config, *limits, stores.cipher)
    settler = Settler(stores.broker, stores.rows, stores.cipher)
    burials = Burials(settler, concluder, parts.registry, stores.dead_letters, settings.signer())
    made = WorkerParts(
        settings,
        stores.broker,
        parts.client,
        parts.registry,
        injector,
        concluder,
        settler,
        burials,
        version("nonet"),
        _sql(parts),
    )
    return Worker(made, size, concurrency, isolation, owns_process=owns_process, slots=slots)


def _sql(parts: Parts) -> Reached | None:
    """Return the check of the database, or None if no class can have rows in it."""
    return sql_reached(parts.settings, parts.stores) if _need_sql(parts.registry) else None


def _need_sql(registry: Registry) -> bool:
    return any(item.cls.dlq_eligible or item.cls.durable for item in registry)
