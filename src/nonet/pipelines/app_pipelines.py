"""`AppPipelines`: what an application does with pipelines. Its import brings SQLAlchemy: 0.4 s."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial

from nonet.client.client import Client
from nonet.config.settings import Settings
from nonet.pipelines.burial import resume_row
from nonet.pipelines.host import PipelineHost
from nonet.pipelines.loading import Pipelines, load_pipelines
from nonet.pipelines.unrun import UnrunPipelines
from nonet.tasks.injection import Injector


class AppPipelines:
    """Makes what runs pipelines, and makes rows due again; `nonet.Nonet` documents the methods.

    Args:
        settings: those of the application.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loaded: Pipelines | None = None

    def host(self, client: Client, injector: Injector, names: Sequence[str]) -> PipelineHost:
        """Create what runs pipelines in this process."""
        return PipelineHost(client, injector, load_pipelines(self._settings), names)

    async def resume_row(self, pipeline: str, key: str, at_time: datetime | None) -> None:
        """Make the row of a dead letter due again."""
        if self._loaded is None:
            self._loaded = load_pipelines(self._settings)
        await resume_row(self._loaded.find(pipeline), key, at_time)

    async def aclose(self) -> None:
        """Close the databases of the rows that were made due."""
        loaded, self._loaded = self._loaded, None
        for cls in (loaded or {}).values():
            await cls.database.close()

    def chore(self, client: Client) -> Callable[[str], Awaitable[float]]:
        """Create what the leader does for pipelines that no process runs."""
        load = partial(load_pipelines, self._settings)
        return UnrunPipelines(client.stores.pipelines, load).tick
