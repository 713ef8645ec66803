"""The parts of an open application from which workers and schedulers are built."""

from __future__ import annotations

from dataclasses import dataclass

from nonet.client.client import Client
from nonet.config.settings import Settings
from nonet.stores.stores import Stores
from nonet.tasks.registry import Registry


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an open application."""

    settings: Settings
    registry: Registry
    stores: Stores
    client: Client
