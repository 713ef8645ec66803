"""What a fetch hands over."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Delivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One hand-over of a task to a worker.

    Attributes:
        state: ``running``, or ``dying`` for a task that only has to reach SQL.
        used: attempts used before this delivery.
        deaths: workers that died with it, also among others.
        crashes: processes that died with it alone.
        suspect: how often a process died with it among others, since an attempt of it ended by
            itself; 0: it is no suspect.
        judge: its worker died with it alone: its policy is asked before it runs again.
        locks: the lines that were read, see `nonet.tasks.locks.encode_locks`.
        held: a mark for each of its locks and limiters that says which limiters hold; or empty.
        saved: what an earlier attempt saved, encoded; empty if nothing.
        waited: for how long it was parked before this delivery, in microseconds.
        error, reason, died, detail: of a dying task: its error document, or reason and detail
            where there is none, and the generation in which it died.
    """

    id: str
    gen: str
    fence: str
    state: str
    used: int
    deaths: int
    stream_key: str
    entry: str
    envelope: bytes
    locks: str
    held: str
    waited: int = 0
    error: bytes = b""
    reason: str = ""
    died: str = ""
    detail: str = ""
    saved: bytes = b""
    crashes: int = 0
    suspect: int = 0
    judge: bool = False

    @property
    def takes_slot(self) -> bool:
        """Whether it runs in a slot of its worker; suspects and burials are beside them."""
        return not self.stream_key.startswith(("suspects:", "burials:"))

    @property
    def attempt(self) -> int:
        """Number of the attempt that this delivery is, from 1."""
        return self.used + 1


def read_delivery(row: Sequence[bytes]) -> Delivery:
    """A row of the script fetch.

    Raises:
        ValueError: it cannot be read.
    """
    id, gen, fence, state, used, deaths, stream_key, entry, envelope, locks, held, *more = row
    return Delivery(
        id.decode(),
        gen.decode(),
        fence.decode(),
        state.decode(),
        int(used),
        int(deaths),
        stream_key.decode(),
        entry.decode(),
        envelope,
        locks.decode(),
        held.decode(),
        *(_read_more(*more) if more else ()),
    )


def _read_more(
    waited: bytes,
    error: bytes = b"",
    reason: bytes = b"",
    died: bytes = b"",
    detail: bytes = b"",
    saved: bytes = b"",
    crashes: bytes = b"0",
    suspect: bytes = b"0",
    judge: bytes = b"0",
) -> tuple[int, bytes, str, str, str, bytes, int, int, bool]:
    text = detail.decode(errors="replace")
    told = int(waited), error, reason.decode(), died.decode(), text, saved
    return *told, int(crashes), int(suspect), judge == b"1"
