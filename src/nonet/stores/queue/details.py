"""Read everything that Redis keeps of one task, in one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nonet.base.errors import MalformedMessageError
from nonet.messages.documents import revealed
from nonet.messages.encryption import Cipher
from nonet.messages.message import ErrorDocument, decode_error
from nonet.stores.connection.redis import AsyncRedis
from nonet.stores.queue.results import Ended, parse_ended


@dataclass(frozen=True, slots=True)
class TaskDetails:
    """What Redis keeps of a task.

    Attributes:
        record: the fields of its record; empty after its end.
        envelope: its message; None after its end.
        failures: its last 20 failed attempts, the oldest first; empty after its end.
        locks: names of the locks that it declares, in its order; empty after its end.
        ended: its end, as long as the result or the id is kept.
    """

    record: Mapping[str, str]
    envelope: bytes | None
    failures: Sequence[ErrorDocument]
    locks: Sequence[str]
    ended: Ended | None


async def read_details(client: AsyncRedis, prefix: str, id: str, cipher: Cipher) -> TaskDetails:
    """Read the keys of a task, and decrypt all but its message."""
    async with client.pipeline(transaction=True) as pipe:
        pipe.hgetall(f"{prefix}t:{id}").lrange(f"{prefix}h:{id}", 0, -1).get(f"{prefix}l:{id}")
        pipe.get(f"{prefix}e:{id}").get(f"{prefix}r:{id}").get(f"{prefix}b:{id}")
        record, failures, lines, dying, value, envelope = await pipe.execute()
    text = {name.decode(): found.decode(errors="replace") for name, found in record.items()}
    documents = [*failures, *([dying] if dying and text.get("state") == "dying" else ())]
    rows = [line.split("|") for line in (lines or b"").decode(errors="replace").splitlines()]
    return TaskDetails(
        record=text,
        envelope=envelope if text else None,
        failures=_errors(id, documents, cipher),
        locks=[row[1] for row in rows if len(row) > 1 and row[1].startswith(("lock:", "limiter:"))],
        ended=parse_ended(id, value, cipher) if value and not text else None,
    )


def _errors(id: str, documents: Sequence[bytes], cipher: Cipher) -> list[ErrorDocument]:
    found = []
    for document in documents:
        with suppress(MalformedMessageError):  # tests and foreign clients write others
            found.append(revealed(decode_error(document), id, cipher))
    return found
