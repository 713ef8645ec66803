"""The tasks of this service, and the workflow that they are the steps of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nonet import (
    BaseLock,
    BaseTask,
    CronSchedule,
    Depends,
    LockedObjectType,
    MutexLock,
    PeriodicBaseTask,
    RateLimiter,
    Size,
    Workflow,
    context,
    ended,
    register_locked_object_type,
)
from shelf.fetching import Web, WhileUnavailable, host_of, pictures_on, web
from shelf.pictures import shrink
from shelf.store import Store, store

register_locked_object_type("host")
register_locked_object_type("user")

Client = Annotated[Web, Depends(web, scope="process")]
Files = Annotated[Store, Depends(store)]

_SIDE = 128
_DAY = 86_400


@dataclass
class _Fetching(BaseTask):
    """What asks a host for something: at most five times a second, whichever task it is."""

    address: str

    size = Size.SMALL
    retry_policy = WhileUnavailable(base_delay_seconds=2, max_retries=5)
    soft_timeout = 60

    @property
    def execution_locks(self) -> list[BaseLock]:
        host = host_of(self.address)
        limit = RateLimiter(LockedObjectType.HOST, host, limit=5, window_seconds=1)
        return [*super().execution_locks, limit]


@dataclass
class ReadPage(_Fetching):
    """Find the pictures on a page, and add the steps that put each on a shelf."""

    user: str

    async def execute(self, web: Client) -> int:
        pictures = pictures_on(await web.get(self.address), self.address)
        for address in pictures:
            picture = context().add_step(Fetch(address))
            thumbnail = context().add_step(Shrink.given(picture=picture))
            context().add_step(Put.given(user=self.user, address=address, thumbnail=thumbnail))
        return len(pictures)


@dataclass
class Fetch(_Fetching):
    """Download a picture, and return its name in the store: results should be small."""

    async def execute(self, web: Client, files: Files) -> str:
        return files.save(await web.get(self.address))


@dataclass
class Shrink(BaseTask):
    """Make a thumbnail, in a child process, as this is work for the processor."""

    picture: str

    size = Size.MEDIUM
    memory_limit = "512MiB"
    hard_timeout = 60

    def execute(self, files: Files) -> str:
        return files.save(shrink(files.path(self.picture).read_bytes(), _SIDE))


@dataclass
class Put(BaseTask):
    """Put a thumbnail on the shelf of a user, which one task at a time may change."""

    user: str
    address: str
    thumbnail: str

    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [*super().execution_locks, MutexLock(LockedObjectType.USER, self.user)]

    def execute(self, files: Files) -> int:
        context().ensure_lease()
        return files.put(self.user, self.address, self.thumbnail)


@dataclass
class Report(BaseTask):
    """Return what became of a page: the service's stand-in for a mail to the user."""

    user: str

    size = Size.SMALL

    async def execute(self, files: Files) -> str:
        (page,) = await context().inputs()
        if page.state != "done":
            return f"{self.user}: {page.error}"
        return (
            f"{self.user}: {page.value} pictures found, {len(files.shelf(self.user))} on the shelf"
        )


class RemoveUnused(PeriodicBaseTask):
    """Delete every night the pictures that are a day old and on no shelf."""

    size = Size.SMALL
    _schedule = CronSchedule("0 3 * * *")

    def execute(self, files: Files) -> int:
        return files.remove_unused(_DAY)


def collect(user: str, address: str) -> Workflow:
    """Return the workflow that puts the pictures of a page on the shelf of a user."""
    workflow = Workflow(f"{user}: {address}")
    page = workflow.step(ReadPage(address, user))
    workflow.step(Report(user), after=ended(page))
    return workflow
