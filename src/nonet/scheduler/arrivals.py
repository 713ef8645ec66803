"""Go on with the moves of tenants to this namespace; runs in the leader."""

from __future__ import annotations

import logging

from nonet.base.errors import NonetError
from nonet.client.client import Client
from nonet.daemon.service import who
from nonet.operate.moving import advance
from nonet.rules.routing import arrival_of
from nonet.stores.namespace.controls import Controls

logger = logging.getLogger(__name__)

_TICK_SECONDS = 2.0


class Arrivals:
    """The tenants that arrive in one namespace.

    Args:
        client: of this namespace.
    """

    def __init__(self, client: Client, controls: Controls) -> None:
        self._client = client
        self._controls = controls

    async def tick(self, term: str) -> float:
        """Take each move as far as possible. A second leader may do the same.

        Raises:
            NonetError: Redis does not answer.
        """
        for pause in await self._controls.load():
            if arrival := arrival_of(pause.what, pause.reason):
                try:
                    found = await advance(self._client, arrival, who())
                except NonetError as error:  # the master of the other namespace may be lost
                    logger.warning(
                        "move of tenant waits: tenant=%s from=%s error=%s",
                        *(arrival.tenant, arrival.source, error),
                    )
                    continue
                if found.is_done or found.moved:
                    logger.info(
                        "tenant moves: tenant=%s from=%s left=%d delayed_moved=%d",
                        *(arrival.tenant, arrival.source, found.tasks, found.moved),
                    )
        return _TICK_SECONDS
