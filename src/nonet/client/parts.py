"""The parts of an open application from which workers and schedulers are built."""

from __future__ import annotations

from msgspec import Struct

from nonet.client.client import Client
from nonet.config.settings import Settings
from nonet.stores.stores import Stores
from nonet.tasks.registry import Registry


class Parts(Struct, frozen=True):
    """The parts of an open application."""

    settings: Settings
    registry: Registry
    stores: Stores
    client: Client
