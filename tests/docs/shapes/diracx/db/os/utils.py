"""Base of databases in OpenSearch."""

from __future__ import annotations

from typing import Self

from diracx.db.base import Base


class BaseOSDB(Base):
    group, variable = "diracx.dbs.os", "DIRACX_OS_DB"

    def __init__(self, path: str, *, global_prefix: str = "") -> None:
        super().__init__(path)
        self.prefix = global_prefix

    @classmethod
    def session(cls) -> Self:
        raise NotImplementedError("who starts a daemon replaces it")

    client_context = Base.lifetime
