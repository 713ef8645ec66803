"""What an open application consists of: its daemons are made of this."""

from __future__ import annotations

from dataclasses import dataclass

from nonet.client.client import Client
from nonet.config.settings import Settings
from nonet.stores.stores import Stores
from nonet.tasks.registry import Registry


@dataclass(frozen=True, slots=True)
class Parts:
    """What an open application consists of."""

    settings: Settings
    registry: Registry
    stores: Stores
    client: Client
