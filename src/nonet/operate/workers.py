"""Workers: which are registered, what each does and why it takes nothing; drain some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.base.streams import Size
from nonet.operate.audited import audited
from nonet.operate.lists import ListQuery, Page, Remember, Text, always, cut
from nonet.rules.permissions import Action
from nonet.stores.queue.workers import State, WorkerStatus

if TYPE_CHECKING:
    from nonet.stores.stores import Stores

# A read of 500 workers takes 25 calls of a script.
_SECONDS = 3.0
# Which classes a worker knows changes with its first beat only.
_CLASSES_SECONDS = 10.0


class WorkerQuery(ListQuery):
    """Which workers are listed."""

    size: Size | None = Field(default=None, description="Only workers of this size.")
    state: State | None = Field(default=None, description="Only workers in this state.")
    text: Text = Field(
        default="",
        description="Only workers with this in their name, version or the class of a task.",
    )


@dataclass(frozen=True, slots=True)
class Drained:
    """The answer to a drain.

    Attributes:
        asked: how many workers were asked now; the others were asked before, or have ended.
        draining: names of the workers that drain.
    """

    asked: int
    draining: Sequence[str]


async def registered(stores: Stores, remember: Remember = always) -> list[WorkerStatus]:
    """Return all registered workers, by size and name."""
    return await remember(("workers",), _SECONDS, stores.results.workers)


async def find(
    stores: Stores, query: WorkerQuery, remember: Remember = always
) -> Page[WorkerStatus]:
    """Return the registered workers, by size and name, with up to 20 tasks of each."""
    found = [
        item
        for item in await registered(stores, remember)
        if query.size in (None, item.size)
        and query.state in (None, item.state)
        and any(query.text.casefold() in word.casefold() for word in _words(item))
    ]
    return cut(found, query)


async def get(stores: Stores, name: str, remember: Remember = always) -> WorkerStatus:
    """Return a worker by its id, or by its ``pid@host``.

    Raises:
        NotFoundError: there is none.
        ConfigurationError: several workers had this name.
    """
    return _chosen(await registered(stores, remember), name)


async def known_classes(
    stores: Stores, worker: str, remember: Remember = always
) -> Mapping[str, str]:
    """Return the classes that a worker knows, each with the version of its distribution."""
    read = stores.results.known_classes
    return await remember(("workers", worker), _CLASSES_SECONDS, lambda: read(worker))


async def choose(
    stores: Stores, names: Sequence[str] = (), size: Size | None = None
) -> list[WorkerStatus]:
    """Return the live workers to drain: those with these ids or names, or all of a size.

    Raises:
        NotFoundError: there is none.
        ConfigurationError: several workers had a name, or neither names nor a size are given.
    """
    if bool(names) == (size is not None):
        raise ConfigurationError(
            "which workers? Name them (see 'task-run workers'), or give their size"
        )
    alive = [item for item in await registered(stores) if item.alive]
    if size is None:
        return list(
            {item.worker: item for item in (_chosen(alive, name) for name in names)}.values()
        )
    found = [item for item in alive if item.size == size]
    if not found:
        raise NotFoundError(f"no {size} worker is registered: see 'task-run workers'")
    return found


@audited(Action.DRAIN, "workers {workers}: drain")
async def drain(stores: Stores, workers: Sequence[WorkerStatus]) -> Drained:
    """Let workers finish their tasks and end. A worker reads the order within a second."""
    asked = await stores.results.drain([item.worker for item in workers], who())
    return Drained(asked, [str(item) for item in workers])


def usual_version(workers: Iterable[WorkerStatus]) -> str:
    """Return the version that most live workers have."""
    versions = Counter(item.version for item in workers if item.alive)
    return max(versions, key=lambda version: (versions[version], version), default="")


def _chosen(found: Iterable[WorkerStatus], name: str) -> WorkerStatus:
    matching = [item for item in found if name in (item.worker, item.name)]
    if not matching:
        raise NotFoundError(f"no worker {name} is registered: 'task-run workers' lists them")
    if len(matching) > 1:
        ids = " or ".join(item.worker for item in matching)
        raise ConfigurationError(f"several workers had the name {name}: give an id, {ids}")
    return matching[0]


def _words(item: WorkerStatus) -> tuple[str, ...]:
    return (item.worker, item.name, item.version, *(task.task for task in item.tasks))
