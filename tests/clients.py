"""A client over a broker, for tests that open no application."""

from __future__ import annotations

from nonet.client.client import Client
from nonet.config.settings import Settings
from nonet.stores.queue.broker import Broker
from nonet.stores.stores import Stores
from nonet.tasks.registry import Registry


def client_of(broker: Broker, registry: Registry) -> Client:
    """A client of the namespace `test`."""
    settings = Settings(namespace="test", message_limit=1024)
    return Client(Stores(broker, settings), registry, settings)
