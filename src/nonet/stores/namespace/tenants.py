"""The figures of tenants: their tasks, the counts of workers, and their fair shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from nonet.base.streams import Priority, Size
from nonet.rules.fairness import MOST_TENANTS, OTHERS, fold, order
from nonet.rules.tenants import TenantLoad, TenantTable, shares, tenant_figures
from nonet.rules.vectors import merged, started_in
from nonet.stores.connection.clock import logical_now, microseconds
from nonet.stores.connection.redis import RedisStore
from nonet.stores.connection.unreadable import readable_hash, whole
from nonet.stores.namespace.slots import Kind, Slots, read_slots, vectors_of
from nonet.stores.queue.records import read_records
from nonet.stores.queue.workers import reported

SHARE_TIME = timedelta(minutes=5)
"""The period in which starts are compared with fair shares: whole minutes, and the current one."""
_PAGE = 1000  # tenants that one command reads
_KINDS = ("tasks", "woken")


class Tenants(RedisStore):
    """The figures of the tenants of one namespace, over a broker's connection."""

    async def table(
        self,
        by: str,
        named: Collection[str],
        *,
        since: timedelta = timedelta(hours=1),
        most: int = MOST_TENANTS,
    ) -> TenantTable:
        """Return the tenants that have tasks or figures, or a name in the configuration.

        All commands are short, however many tenants there are.

        Args:
            by: what identifies a tenant.
            named: the tenants that the configuration names: they come first.
            since: how far to look back; at most two weeks.
            most: how many tenants to list separately; the others are summed.

        Raises:
            ServerUnreachableError: Redis does not answer.
        """
        past = await self._slots(since)
        recent = past if since == SHARE_TIME else await self._slots(SHARE_TIME)
        live, running = await self.live(), await self._running()
        started = {name: started_in(merged(slots.values())) for name, slots in past.vectors.items()}
        names = {*live, *started, *running, *recent.vectors}
        tasks = {name: live[name] + started.get(name, 0) for name in names}
        chosen, _ = order(named, {name: tasks[name] for name in names if name}, most)
        if (
            "" in names
        ):  # however few: a task without a tenant may be one whose tenant was forgotten
            chosen.append("")
        loads = await self._loads(chosen, live, running, tasks)
        weights = await self._weights(loads)
        counted = _by_tenant(past, chosen)
        lately = {name: merged(those) for name, those in _by_tenant(recent, chosen).items()}
        compared = shares(lately, loads, weights) if weights else {}
        return TenantTable(
            by=by,
            since=past.first,
            share_seconds=SHARE_TIME.total_seconds(),
            items=tuple(
                tenant_figures(
                    name,
                    load,
                    counted.get(name, ()),
                    weight=weights.get(name) if name != OTHERS else None,
                    share=compared.get(name),
                )
                for name, load in loads.items()
            ),
        )

    async def totals(self) -> dict[str, dict[int, int]]:
        """Return what workers have counted of each tenant since Redis was empty, as vectors.

        Tenants beyond the first 200 that the configuration does not name are summed.
        """
        found = await self._client.hgetall(f"{self._prefix}figures:tenants:total")
        return vectors_of("figures:tenants:total", found)

    async def _slots(self, since: timedelta) -> Slots:
        return await read_slots(self._client, self._prefix, Kind.TENANT, since)

    async def live(self) -> Counter[str]:
        """Return how many tasks of each tenant have not ended; "": tasks without a tenant."""
        found: Counter[str] = Counter()
        key = f"{self._prefix}active:tenants"
        async for name, text in self._client.hscan_iter(key, count=_PAGE):
            found.update(readable_hash("active:tenants", {name: text}, whole))
        by_class = readable_hash(
            "active", await self._client.hgetall(f"{self._prefix}active"), whole
        )
        if (of_none := sum(by_class.values()) - found.total()) > 0:
            found[""] = of_none
        return found

    async def _running(self) -> Counter[str]:
        """Return how many attempts live workers ran at their last beats, by tenant."""
        now = microseconds(await logical_now(self._client, self._prefix))
        async with self._client.pipeline(transaction=False) as pipe:
            workers = await self._client.zrangebyscore(f"{self._prefix}workers", now, "+inf")
            for worker in workers:
                pipe.hget(f"{self._prefix}w:{worker.decode(errors='replace')}", "info")
            infos = await pipe.execute()
        found: Counter[str] = Counter()
        for worker, info in zip(workers, infos, strict=True):
            found.update(reported(worker, info or b"").tenants or {})
        return found

    async def _weights(self, loads: Mapping[str, TenantLoad]) -> dict[str, float]:
        """Return the weights of these tenants; empty: tenants share no stream."""
        names = list(loads)
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.exists(f"{self._prefix}fair")
            pipe.hmget(f"{self._prefix}weights", ["default", *names])
            is_shared, (default, *found) = await pipe.execute()
        if not is_shared:
            return {}
        pairs = zip(names, found, strict=True)
        # A tenant named like the others is one of them.
        return {
            name: float((name != OTHERS and weight) or default or 1) * loads[name].tenants
            for name, weight in pairs
        }

    async def _loads(
        self,
        chosen: Collection[str],
        live: Mapping[str, int],
        running: Mapping[str, int],
        tasks: Collection[str],
    ) -> dict[str, TenantLoad]:
        """Return the current load of each tenant; all others share one name.

        Args:
            tasks: all tenants.
        """
        waiting, oldest = await self._waiting(chosen or [""])
        found = {
            name: TenantLoad(
                live=live.get(name, 0),
                waiting=waiting.get(name, {}) if waiting is not None else None,
                oldest=oldest.get(name),
                running=running.get(name, 0),
            )
            for name in chosen
        }
        others = set(tasks) - set(chosen)
        if others:
            found[OTHERS] = TenantLoad(
                live=sum(live.get(name, 0) for name in others),
                running=sum(running.get(name, 0) for name in others),
                tenants=len(others),
            )
        return found

    async def _waiting(
        self, names: Collection[str]
    ) -> tuple[dict[str, Counter[str]] | None, dict[str, float]]:
        """Count the tasks in the lists of tenants.

        Returns:
            Their numbers by tenant and size, None if tenants share no stream; and the age of the
            oldest in seconds.
        """
        client, prefix = self._client, self._prefix
        streams = [f"{priority}:{size}" for priority in Priority for size in Size]
        async with client.pipeline(transaction=False) as pipe:
            pipe.exists(f"{prefix}fair")
            for stream in streams:
                pipe.zmscore(f"{prefix}shares:{stream}", list(names))
            is_shared, *scores = await pipe.execute()
        if not is_shared:
            return None, {}
        lists = [
            (name, stream, f"{prefix}share:{kind}:{stream}:{name}")
            for stream, found in zip(streams, scores, strict=True)
            for name, score in zip(names, found, strict=True)
            if score is not None
            for kind in _KINDS
        ]
        now = microseconds(await logical_now(client, prefix))
        waiting: dict[str, Counter[str]] = {}
        oldest: dict[str, float] = {}
        heads = await self._heads([key for *_, key in lists])
        for (name, stream, _), (length, since) in zip(lists, heads, strict=True):
            waiting.setdefault(name, Counter())[stream.partition(":")[2]] += length
            if length:
                oldest[name] = max(oldest.get(name, 0.0), (now - (since or now)) / 1e6)
        return waiting, oldest

    async def _heads(self, keys: Iterable[str]) -> list[tuple[int, int]]:
        """Return the length of each list, and since when (µs) its first task has waited."""
        client = self._client
        async with client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.llen(key).lindex(key, 0)
            found = await pipe.execute()
        firsts = [(one or b"").decode(errors="replace").rpartition(" ") for one in found[1::2]]
        records = await read_records(self._scripts, [id for id, _, _ in firsts])
        since = [
            max(int(gen or 0), int(record.get("due", 0)))
            for (_, _, gen), record in zip(firsts, records, strict=True)
        ]
        return [(length or 0, at) for length, at in zip(found[::2], since, strict=True)]


def _by_tenant(slots: Slots, chosen: Collection[str]) -> dict[str, list[Mapping[int, int]]]:
    """Return the vector of each listed tenant, and the sum of the others."""
    found: dict[str, list[Mapping[int, int]]] = {}
    for name, vectors in fold(slots.vectors, chosen):
        found.setdefault(name, []).extend(vectors.values())
    return found
