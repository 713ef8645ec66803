"""Continue to cancel and to resume workflows whose callers were interrupted."""

from __future__ import annotations

import logging

from nonet.base.errors import NotFoundError, ServerUnreachableError
from nonet.client import workflows
from nonet.client.client import Client

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0


class UnfinishedWorkflows:
    """Continues a cancellation or resumption that was unfinished at two looks in a row."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen: set[str] = set()

    async def tick(self, term: str) -> float:
        """Continue each workflow that was already unfinished at the last look."""
        store = self._client.stores.workflows
        unfinished = set(await store.unfinished())
        for id in self._seen & unfinished:
            try:
                await workflows.go_on(self._client, id)
            except NotFoundError:
                await store.finished(id)
            except ServerUnreachableError:
                raise
            except Exception as error:  # one failure must not stop the others
                logger.warning("workflow not continued: id=%s error=%s", id, error)
        self._seen = unfinished
        return _LOOK_SECONDS
