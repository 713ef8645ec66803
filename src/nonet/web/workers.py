"""What the page and the API of workers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nonet.rules.permissions import Action, Principal
from nonet.stores.queue.workers import WorkerStatus
from nonet.web.site import Site

# A read of 500 workers takes 25 calls of a script.
_SECONDS = 3.0


async def registered(site: Site) -> list[WorkerStatus]:
    """Return the registered workers, by size and name."""
    return await site.shared.read(("workers",), _SECONDS, site.nonet.stores.results.workers)


async def drain(site: Site, who: Principal, workers: Sequence[WorkerStatus]) -> int:
    """Ask workers to finish their tasks and end; return how many were not asked before."""
    names = ", ".join(item.name or item.worker for item in workers)
    async with site.changing(who, Action.DRAIN, f"workers {names}: drain"):
        asked = await site.nonet.stores.results.drain([item.worker for item in workers], who.name)
    return asked


def matching(
    workers: Iterable[WorkerStatus], size: str = "", state: str = "", text: str = ""
) -> list[WorkerStatus]:
    """Return the workers of a size and in a state whose name, version or a task has `text`."""
    return [
        item
        for item in workers
        if size in ("", item.size)
        and state in ("", item.state)
        and (not text or any(text.casefold() in part.casefold() for part in _words(item)))
    ]


def usual_version(workers: Iterable[WorkerStatus]) -> str:
    """Return the version that most workers have."""
    versions = Counter(item.version for item in workers)
    return max(versions, key=lambda version: (versions[version], version), default="")


def _words(item: WorkerStatus) -> tuple[str, ...]:
    return (item.worker, item.name, item.version, *(task.task for task in item.tasks))
