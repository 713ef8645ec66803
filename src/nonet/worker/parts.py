"""What a worker is made of."""

from __future__ import annotations

from dataclasses import dataclass

from nonet.client.client import Client
from nonet.config.settings import Settings
from nonet.daemon.contact import Reached
from nonet.stores.queue.broker import Broker
from nonet.tasks.injection import Injector
from nonet.tasks.registry import Registry
from nonet.worker.attempt.burials import Burials
from nonet.worker.attempt.conclusion import Concluder
from nonet.worker.attempt.settle import Settler


@dataclass(frozen=True)
class WorkerParts:
    """What an open application gives a worker.

    Attributes:
        sql: whether the database answers; None: none is needed, or nobody asks.
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
