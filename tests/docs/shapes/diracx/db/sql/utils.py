"""Base of SQL databases."""

from __future__ import annotations

from typing import Self

from diracx.db.base import Base


class BaseSQLDB(Base):
    group, variable = "diracx.dbs.sql", "DIRACX_DB_URL"

    @classmethod
    def transaction(cls) -> Self:
        raise NotImplementedError("who starts a daemon replaces it")

    @classmethod
    def no_transaction(cls) -> Self:
        raise NotImplementedError("who starts a daemon replaces it")

    engine_context = Base.lifetime
