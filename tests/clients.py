"""A broker of the namespace `test`, and a client over it, for tests that open no application."""

from __future__ import annotations

from typing import Any

from nonet.client.client import Client
from nonet.config.settings import plain_settings
from nonet.stores.queue.broker import Broker
from nonet.stores.stores import Stores
from nonet.tasks.registry import Registry


def broker_at(url: str, **settings: Any) -> Broker:
    """With the defaults, but results expire after a minute, and there is no history."""
    given = {"namespace": "test", "result_ttl": 60, "history": 0} | settings
    return Broker(plain_settings(**given), url)


def client_of(broker: Broker, registry: Registry) -> Client:
    """A client of the namespace of a broker."""
    return Client(Stores(broker), registry)
