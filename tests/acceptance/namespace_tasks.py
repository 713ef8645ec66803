"""Tasks of the tests of namespaces, which submit others."""

from __future__ import annotations

from dataclasses import dataclass

from acceptance.probe_tasks import Small, note

from nonet import CallbackSpawner, NoRetry, context


@dataclass
class Followed(Small):
    """Notes its tenant."""

    vo: str

    async def execute(self) -> None:
        note("followed", tenant=self.vo)


@dataclass
class Follow(Small):
    """Of `vo`; it submits one of `other` when it is done."""

    vo: str
    other: str
    retry_policy = NoRetry()

    async def execute(self) -> None:
        context().after_commit(Followed(self.other))


@dataclass
class Spawn(Small):
    """Of `vo`; it opens a group of `other`."""

    vo: str
    other: str
    retry_policy = NoRetry()

    async def execute(self, spawner: CallbackSpawner) -> None:
        await spawner([Followed(self.other)], Followed(self.other))
