"""Tasks with slips of their author."""

from __future__ import annotations

from nonet import BaseTask, PeriodicBaseTask


class Careless(BaseTask):
    max_retries = 3

    async def execute(self) -> None: ...


class Never(PeriodicBaseTask):
    async def execute(self) -> None: ...
