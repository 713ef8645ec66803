"""Settings of services, read from the environment."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Self


class FactorySettings:
    os_global_prefix = "dev-"


class ServiceSettingsBase:
    @classmethod
    def create(cls) -> Self:
        raise NotImplementedError("who starts a daemon replaces it")

    @contextlib.asynccontextmanager
    async def lifetime_function(self) -> AsyncIterator[None]:
        yield
