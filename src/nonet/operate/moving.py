"""Move a tenant to another namespace.

A pause in the new namespace holds its tasks with locks there, until the old one has none of its
tasks. The leader of the new namespace calls `advance` until then, so a move goes on if the program
that began it dies.
"""

from __future__ import annotations

import time

from msgspec import Struct

from nonet.base.errors import ConfigurationError, ConflictError
from nonet.client.client import Client
from nonet.rules.fairness import BY_VO
from nonet.rules.routing import Arrival, arrival_of
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.moves import Departure, Moves
from nonet.stores.namespace.routes import Routes

# How long one call of `advance` moves delayed tasks.
_SECONDS = 5.0


class Progress(Struct, frozen=True):
    """How far a move is.

    Attributes:
        tasks: how many tasks of the tenant have not ended in the namespace that it leaves.
        moved: how many delayed tasks this call has moved.
        is_done: the tasks with locks in the new namespace may run.
    """

    tenant: str
    source: str
    to: str
    tasks: int
    moved: int
    is_done: bool


async def begin(client: Client, tenant: str, to: str, who: str, *, with_delayed: bool) -> Progress:
    """Begin a move, or go on with it. Safe to repeat.

    Args:
        client: of any namespace of the installation.
        to: the new namespace.
        who: ``user@host pid``, for the event streams.
        with_delayed: move the delayed tasks that were not attempted yet, too.

    Raises:
        ConfigurationError: no scheduler leads the new namespace.
        ConflictError: the tenant is there already, or still moves elsewhere.
        ServerUnreachableError: Redis does not answer.
    """
    there = client.routing.client(to)
    if await Leadership(there.broker, to).leader() is None:
        raise ConfigurationError(
            f"namespace {to} has no scheduler: check the name, or start 'task-scheduler "
            f"--namespaces {client.namespace},{to}'"
        )
    arrival = await _arrival(there, tenant)
    source = await Routes(client.broker.client, client.namespace).home_of(tenant)
    source = source or client.namespace
    if arrival is None or (with_delayed and not arrival.with_delayed):
        source = arrival.source if arrival else source
        if source == to:
            raise ConflictError(f"tenant {tenant} belongs to namespace {to} already")
        if before := await _arrival(client.routing.client(source), tenant):
            raise ConflictError(
                f"tenant {tenant} still moves from {before.source} to {source}: wait until "
                f"{before.source} has none of its tasks, see 'task-run paused'"
            )
        arrival = Arrival(tenant, source, with_delayed)
        await _controls(there).pause([arrival.what], who, arrival.reason)
    found = await advance(there, arrival, who)
    for other in (client, *await client.routing.others()):
        if other.namespace not in (arrival.source, to):
            await _depart(other, arrival, to, who)
    return found


async def advance(there: Client, arrival: Arrival, who: str) -> Progress:
    """Do what can be done of a move now. Safe to repeat.

    Args:
        there: the client of the new namespace.

    Raises:
        ServerUnreachableError: Redis does not answer.
    """
    to, source = there.namespace, there.routing.client(arrival.source)
    left = await _depart(source, arrival, to, who)
    known_ms = source.broker.dedup_ttl_ms
    await _moves(there).arrive(arrival.tenant, arrival.source, who, known_ms, left.entries)
    moved = await _move_delayed(source, there, arrival, who) if arrival.with_delayed else 0
    if moved:
        left = await _depart(source, arrival, to, who)
    is_done = left.tasks == 0 and left.is_calm
    if is_done:
        await _controls(there).resume([arrival.what], who)
    return Progress(arrival.tenant, arrival.source, to, left.tasks, moved, is_done)


async def _move_delayed(source: Client, there: Client, arrival: Arrival, who: str) -> int:
    moves, until = _moves(source), time.monotonic() + _SECONDS
    cursor, arrived, moved = "0", list[str](), 0
    while True:
        page = await moves.send_delayed(arrival.tenant, cursor, arrived)
        moved += len(arrived) - len(page.ended)
        if page.ended:
            await there.broker.cancel(page.ended, "cancelled before it was moved")
        arrived = [item.id for item in page.tasks]
        if page.tasks:
            sealed = [source.routing.sealed(item, there.namespace) for item in page.tasks]
            await there.broker.accept([item.admitted() for item in sealed])
        cursor = page.cursor
        if not arrived and (cursor == "0" or time.monotonic() > until):
            return moved


async def _depart(client: Client, arrival: Arrival, to: str, who: str) -> Departure:
    is_vo = client.live_config.tenants_by == BY_VO
    return await _moves(client).depart(arrival.tenant, to, who, is_vo=is_vo)


async def _arrival(client: Client, tenant: str) -> Arrival | None:
    """The unfinished arrival of a tenant in a namespace."""
    found = [arrival_of(item.what, item.reason) for item in await _controls(client).load()]
    return next((item for item in found if item and item.tenant == tenant), None)


def _controls(client: Client) -> Controls:
    return Controls(client.broker.client, client.namespace)


def _moves(client: Client) -> Moves:
    return Moves(client.broker.client, client.namespace, client.broker.lock_ttl_ms)
