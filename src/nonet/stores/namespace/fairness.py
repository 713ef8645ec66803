"""The fair shares of tenants: what the leader publishes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from nonet.base.plain import few
from nonet.base.streams import Priority, Size
from nonet.stores.connection.redis import RedisStore


class Fairness(RedisStore):
    """The fair shares of one namespace, over a broker's connection."""

    async def published(self) -> str:
        """Return the `fairness_version` that is in force; empty: streams have no lists."""
        found = await self._client.hget(f"{self._prefix}fairness", "version")
        return found.decode() if found else ""

    async def publish(
        self, term: str, streams: Iterable[str], weights: Mapping[str, float], who: str
    ) -> int | None:
        """Let tenants share these streams from now on; call it again until it is done.

        Args:
            streams: as ``normal:small``; none: new tasks go to the streams again.
            weights: by tenant; ``default`` for those that are not listed.
            who: the publisher, for the event stream.

        Returns:
            0 when it is done; while shares end, the number of streams that still have lists. None,
            without a change, if another term leads.
        """
        names = sorted(streams)
        pairs = [part for item in weights.items() for part in item]
        version = fairness_version(names, weights)
        about = (term, version, who, " ".join(names), _in_words(names, weights))
        answer = int(await self._scripts.run("publish_fairness", *about, *pairs))
        return None if answer < 0 else answer


def _in_words(names: Sequence[str], weights: Mapping[str, float]) -> str:
    """Return what is published, for the event stream.

    >>> _in_words(["normal:small"], {"default": 1, "lhcb": 2.5}), _in_words([], {})
    ('shared: normal:small; weights: default 1, lhcb 2.5', 'no stream is shared')
    """
    if not names:
        return "no stream is shared"
    streams = "all streams" if len(names) == len(Priority) * len(Size) else " ".join(names)
    given = few([f"{tenant} {weight:g}" for tenant, weight in sorted(weights.items())])
    return f"shared: {streams}" + (f"; weights: {given}" if given else "")


def fairness_version(streams: Iterable[str], weights: Mapping[str, float]) -> str:
    """Identify fair shares; empty without streams."""
    names = sorted(streams)
    if not names:
        return ""
    lines = [*names, *sorted(f"{tenant} {weight:g}" for tenant, weight in weights.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
