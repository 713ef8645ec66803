"""The objects that an open application passes to a worker."""

from __future__ import annotations

from msgspec import Struct

from nonet.client.client import Client
from nonet.config.settings import Settings
from nonet.daemon.contact import Reached
from nonet.stores.queue.broker import Broker
from nonet.tasks.injection import Injector
from nonet.tasks.registry import Registry
from nonet.worker.attempt.burials import Burials
from nonet.worker.attempt.conclusion import Concluder
from nonet.worker.attempt.settle import Settler


class WorkerParts(Struct, frozen=True):
    """The objects that an open application passes to a worker.

    Attributes:
        sql: checks whether the database answers; None: no class needs one, or checks are off.
    """

    settings: Settings
    broker: Broker
    client: Client
    registry: Registry
    injector: Injector
    concluder: Concluder
    settler: Settler
    burials: Burials
    version: str
    sql: Reached | None = None
