"""Databases and settings of this package; nothing of tasks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from diracx.core.settings import ServiceSettingsBase
from diracx.db.os.utils import BaseOSDB
from diracx.db.sql.utils import BaseSQLDB


class StarDB(BaseSQLDB): ...


class MyStarDB(StarDB):
    """The extension of `StarDB` by this package, which is used for both."""


class ImageDB(BaseSQLDB): ...


class LogDB(BaseOSDB): ...


class StoreSettings(ServiceSettingsBase):
    bucket = ""

    @contextlib.asynccontextmanager
    async def lifetime_function(self) -> AsyncIterator[None]:
        self.bucket = "images"
        yield
        self.bucket = ""
