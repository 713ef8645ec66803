"""The configuration that holds in a namespace: published by the leader, read by everybody."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from nonet.base.keys import prefix
from nonet.stores.connection.redis import AsyncRedis, Scripts, server_errors

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_PROBLEM = 4000


@dataclass(frozen=True, slots=True)
class Published:
    """What a leader published last, and what is wrong with its source now.

    Attributes:
        version: tells documents apart; empty if none is published and only a problem is known.
        document: the validated configuration, see `nonet.config.Config.document`.
        source: where it was read, as in ``NONET_CONFIG``, without a password.
        revision: the commit of a git source, else empty.
        at: since when this version is published; None if none is.
        who: published it, ``user@host pid``.
        problem: why the source is not applied as it is now; empty if it is.
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


class Publication:
    """The published configuration of one namespace, over a broker's connection."""

    def __init__(self, client: AsyncRedis, namespace: str) -> None:
        self._client = client
        self._prefix = prefix(namespace)
        self._scripts = Scripts(client, self._prefix)

    async def version(self) -> str:
        """The version that is published; empty if there is none."""
        async with server_errors(self._client):
            found = await self._client.hget(f"{self._prefix}config", "version")
        return _text(found) if found else ""

    async def read(self) -> Published | None:
        """What is published, or known to be wrong; None if neither is."""
        async with server_errors(self._client):
            found = await self._client.hgetall(f"{self._prefix}config")
        if not found:
            return None
        text = {_text(name): _text(value) for name, value in found.items()}
        return Published(
            version=text.get("version", ""),
            document=text.get("document", ""),
            source=text.get("source", ""),
            revision=text.get("revision", ""),
            at=_instant(text.get("at")),
            who=text.get("who", ""),
            problem=text.get("problem", ""),
            problem_at=_instant(text.get("problem_at")),
        )

    async def publish(
        self, term: str, version: str, document: str, *, source: str, revision: str, who: str
    ) -> bool:
        """Replace what is published; what is known to be wrong with the source stays.

        Args:
            term: of the leader.
            version: of the document, not empty.
            document, source, revision, who: see `Published`.

        Returns:
            False if another term leads; then nothing has changed.
        """
        answer = await self._scripts.run(
            "publish_config", term, version, document, source, revision, who
        )
        return bool(answer == 1)

    async def report(self, term: str, problem: str, who: str = "scheduler") -> bool:
        """Remember what is wrong with the source now; an empty text: nothing is any more.

        Returns:
            False if another term leads; then nothing has changed.
        """
        answer = await self._scripts.run("report_config", term, problem[:_LONGEST_PROBLEM], who)
        return bool(answer == 1)


def _text(value: bytes) -> str:
    """What a foreign hand may have written is refused where it is read as a document."""
    return value.decode(errors="replace")


def _instant(microseconds: str | None) -> datetime | None:
    return _EPOCH + timedelta(microseconds=int(microseconds)) if microseconds else None
