"""Hold locks in code that is not a task."""

from __future__ import annotations

from collections.abc import Sequence

from nonet.base.errors import NotConfirmedError
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.link import QueueLink
from nonet.tasks.locks import has_structural


class Holds(QueueLink):
    """The part of a `Broker` that holds locks in code that is not a task."""

    async def hold(
        self, id: str, locks: str, who: str = "", *, wait: bool = False, holders: Sequence[str] = ()
    ) -> tuple[str, str]:
        """Acquire locks for code that is not a task.

        Args:
            id: chosen by the caller; repeat the call with the same id.
            who: name of the holder, for people.
            wait: join the queues if a lock refuses. Then call again when `wakes` reports the id,
                and every few seconds; call `unhold` to stop waiting.
            holders: tasks and holds inside which the caller runs.

        Returns:
            ``("OK", fence)``; ``("REFUSED", lock)``; ``("IMPOSSIBLE", why)``;
            ``("WITHHELD", "lock|µs")``: after a loss of data, withheld for this time;
            ``("DEADLOCK", lock)``: one of `holders` has the lock or blocks the task that has it.

        Raises:
            NotConfirmedError: too few replicas confirm the locks; they were released.
        """
        if not self.epoch.latest:
            await self._read_clock()
        answer, is_safe = await self.scripts.run_confirmed(
            "hold",
            id,
            locks,
            self.lock_ttl_ms,
            who,
            self.wakes.client if wait else "",
            self.epoch.seen,
            *holders,
        )
        self.epoch.see(answer[2:])
        if answer[0] == b"OK" and has_structural(locks) and not is_safe:
            await self.unhold(id)
            raise NotConfirmedError("the locks", self.scripts.replicas)
        return answer[0].decode(), answer[1].decode()

    async def unhold(self, id: str) -> None:
        """Release the locks of `hold`, or stop waiting for them."""
        await self.scripts.run("unhold", id, self.lock_ttl_ms)


def hold_of_code(delivery: Delivery) -> str:
    """Return the id of the hold that keeps the locks of code still running after its attempt."""
    return f"{delivery.id}~{delivery.fence}"
