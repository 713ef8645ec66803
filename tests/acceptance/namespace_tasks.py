"""Tasks of the tests of namespaces, which submit others."""

from __future__ import annotations

from dataclasses import dataclass

from acceptance.probe_tasks import note

from nonet import BaseTask, CallbackSpawner, NoRetry, Size, context


@dataclass
class Followed(BaseTask):
    """Notes its tenant."""

    vo: str
    size = Size.SMALL

    async def execute(self) -> None:
        note("followed", tenant=self.vo)


@dataclass
class Follow(BaseTask):
    """Of `vo`; it submits one of `other` when it is done."""

    vo: str
    other: str
    size = Size.SMALL
    retry_policy = NoRetry()

    async def execute(self) -> None:
        context().after_commit(Followed(self.other))


@dataclass
class Spawn(BaseTask):
    """Of `vo`; it opens a group of `other`."""

    vo: str
    other: str
    size = Size.SMALL
    retry_policy = NoRetry()

    async def execute(self, spawner: CallbackSpawner) -> None:
        await spawner([Followed(self.other)], Followed(self.other))
