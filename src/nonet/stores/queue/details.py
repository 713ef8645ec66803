"""Read everything that Redis keeps of one task, in one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nonet.base.errors import MalformedMessageError
from nonet.base.messages.documents import revealed
from nonet.base.messages.encryption import Cipher
from nonet.base.messages.message import ErrorDocument, decode_error
from nonet.stores.connection.redis import Scripts
from nonet.stores.queue.records import in_text
from nonet.stores.queue.results import Ended, parse_ended, read_kept


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


async def read_details(scripts: Scripts, id: str, cipher: Cipher) -> TaskDetails:
    """Read the keys of a task, and decrypt all but its message."""
    kept = await read_kept(scripts, id, whole=True)
    envelope = kept.record.pop("envelope", None)
    text = in_text(kept.record)
    is_dying = text.get("state") == "dying"
    documents = [*kept.failures, *([kept.dying] if kept.dying and is_dying else ())]
    rows = [line.split("|") for line in text.pop("locks", "").splitlines()]
    return TaskDetails(
        record=text,
        envelope=envelope,
        failures=_errors(id, documents, cipher),
        locks=[row[1] for row in rows if len(row) > 1 and row[1].startswith(("lock:", "limiter:"))],
        ended=parse_ended(id, kept.end, cipher) if kept.end and not text else None,
    )


def _errors(id: str, documents: Sequence[bytes], cipher: Cipher) -> list[ErrorDocument]:
    found = []
    for document in documents:
        with suppress(MalformedMessageError):  # tests and foreign clients write others
            found.append(revealed(decode_error(document), id, cipher))
    return found
