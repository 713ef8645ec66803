"""One priority and size: what is queued and runs, who has it, and the button that pauses it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from fastapi import APIRouter, Request
from fastapi.responses import Response

from nonet.base.streams import Priority, Size
from nonet.operate.overview import active_of, streams_of
from nonet.rules.findings.pace import drains
from nonet.rules.pauses import of_task
from nonet.stores.namespace.figures import Figures
from nonet.stores.queue.stream_tasks import StreamTasks
from nonet.web import workers
from nonet.web.pages.pausing import add_pausing, pauses_of
from nonet.web.pages.rendering import render
from nonet.web.site import Site, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

_SHOWN = 10
_CLASSES = 20


async def figures_of(site: Site) -> Figures:
    """Return the figures of the namespace, read at most every two seconds for all viewers."""
    return await site.shared.read(("queues",), 2.0, site.nonet.stores.measures.figures)


@router.get("/streams/{priority}/{size}", name="stream")
async def page(
    request: Request, site: SiteOf, who: Viewer, priority: Priority, size: Size
) -> Response:
    """Show a stream."""
    name = f"{priority}:{size}"
    figures, pauses = await figures_of(site), await pauses_of(site)
    stores = site.nonet.stores

    async def read() -> tuple[StreamTasks, datetime]:
        found = await stores.results.stream_tasks(name, _SHOWN)
        return found, await stores.broker.logical_now()

    tasks, now = await site.shared.read(("stream", name), 2.0, read)
    pace = await site.shared.read(("pace",), 10.0, stores.history.pace)
    crew = [item for item in await workers.registered(site) if item.size == size and item.alive]
    active = active_of(figures)
    classes = Counter({task: number for (task, of), number in active.items() if of == name})
    return render(
        request,
        "stream.html",
        name=name,
        priority=priority,
        size=size,
        what=f"stream:{name}",
        load=figures.streams[priority, size],
        drain=drains(streams_of(figures), active, pace.classes).get(name),
        pause=of_task(pauses, name, ""),
        is_paused=any(item.what == f"stream:{name}" for item in pauses),
        tasks=tasks,
        crew=crew,
        names={item.worker: item.name for item in crew},
        slots=sum(item.concurrency for item in crew),
        busy=sum(item.running for item in crew),
        classes=classes.most_common(_CLASSES),
        more=max(0, len(classes) - _CLASSES),
        now=now.timestamp(),
    )


def _what(priority: str, size: str) -> str:
    return f"stream:{Priority(priority)}:{Size(size)}"


add_pausing(router, "/streams/{priority}/{size}", "stream", "stream", _what)
