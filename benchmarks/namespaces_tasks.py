"""The task of `namespaces.py`."""

from __future__ import annotations

from nonet import BaseTask, Size


class Nothing(BaseTask):
    """Do nothing."""

    size = Size.SMALL

    async def execute(self) -> None: ...
