"""A dashboard that another thread serves, for programs that wait for its answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ports import free_port
from web.conftest import Fixed, principal

from nonet import Nonet
from nonet.config.web_settings import WebSettings
from nonet.daemon.service import Stop
from nonet.web.app import create_app
from nonet.web.server import Server


@contextmanager
def served(
    redis_url: str, folder: Path, prepare: Callable[[Nonet], Awaitable[None]] | None = None
) -> Iterator[str]:
    """Serve the namespace ``test`` to an admin, and give the address.

    Args:
        prepare: called before the first request.
    """
    settings = WebSettings.plain(port=free_port())
    ready, stop = threading.Event(), Stop()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with Nonet.from_settings(
            redis_url=redis_url, namespace="test", state_dir=folder, tasks=("web_tasks",)
        ) as nonet:
            if prepare is not None:
                await prepare(nonet)
            app = create_app(nonet, settings, Fixed(principal()))
            server = Server(app, settings, [app.state.site])
            running = asyncio.create_task(server.run(stop))
            while not server.is_ready and not running.done():  # noqa: ASYNC110  # it has no event
                await asyncio.sleep(0.02)
            ready.set()
            await running

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{settings.port}"
    finally:
        loops[0].call_soon_threadsafe(stop.request)
        thread.join()
