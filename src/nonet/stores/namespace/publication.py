"""The published configuration of a namespace: written by the leader, read by all processes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from nonet.stores.connection.clock import instant
from nonet.stores.connection.redis import RedisStore
from nonet.stores.connection.unreadable import readable_value

_LONGEST_PROBLEM = 4000


class Published(Struct, frozen=True):
    """The configuration that a leader published last, and the problem of its source.

    Attributes:
        version: identifies the document; empty if there is only a problem.
        document: the validated configuration, see `nonet.config.Config.document`.
        source: where it was read, as in ``NONET_CONFIG`` but without a password.
        revision: the commit of a git source, else empty.
        at: since when this version is published; None if none is.
        who: the publisher, ``user@host pid``.
        problem: why the current source is not applied; empty if it is.
        problem_at: since when; None without a problem.
    """

    version: str
    document: str
    source: str
    revision: str
    at: datetime | None
    who: str
    problem: str
    problem_at: datetime | None


class Publication(RedisStore):
    """The published configuration of one namespace, over a broker's connection."""

    async def version(self) -> str:
        """Return the published version; empty without one."""
        found = await self._client.hget(f"{self._prefix}config", "version")
        return found.decode(errors="replace") if found else ""

    async def read(self) -> Published | None:
        """Return what is published; None without a document or a problem."""
        found = await self._client.hgetall(f"{self._prefix}config")
        if not found:
            return None
        text = {
            name.decode(errors="replace"): value.decode(errors="replace")
            for name, value in found.items()
        }
        return Published(
            version=text.get("version", ""),
            document=text.get("document", ""),
            source=text.get("source", ""),
            revision=text.get("revision", ""),
            at=_instant(text, "at"),
            who=text.get("who", ""),
            problem=text.get("problem", ""),
            problem_at=_instant(text, "problem_at"),
        )

    async def publish(
        self, term: str, version: str, document: str, *, source: str, revision: str, who: str
    ) -> bool:
        """Replace the published document. A recorded problem stays.

        Args:
            term: of the leader.
            version: of the document, not empty.
            document, source, revision, who: see `Published`.

        Returns:
            False, without a change, if another term leads.
        """
        answer = await self._scripts.run(
            "publish_config", term, version, document, source, revision, who
        )
        return bool(answer == 1)

    async def report(self, term: str, problem: str, who: str = "scheduler") -> bool:
        """Record the problem of the source; an empty text clears it.

        Returns:
            False, without a change, if another term leads.
        """
        answer = await self._scripts.run("report_config", term, problem[:_LONGEST_PROBLEM], who)
        return bool(answer == 1)


def _instant(text: Mapping[str, str], field: str) -> datetime | None:
    if not (found := text.get(field)):
        return None
    return readable_value("config", "HDEL", field, lambda: instant(found), None)
