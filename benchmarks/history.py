"""What the history and the figures of classes cost: time of Redis, and memory."""

from __future__ import annotations

import asyncio
import math
import random
import statistics

from msgspec import msgpack
from place import Place

from nonet.base.messages.message import ResultDocument, encode
from nonet.config.settings import plain_settings
from nonet.rules.figures import RESOLUTIONS
from nonet.rules.vectors import COUNTS, DURATIONS
from nonet.stores.queue.broker import Broker
from nonet.stores.queue.deliveries import Delivery
from nonet.stores.queue.submissions import Submission

_KEPT = 10_000  # the default of NONET_HISTORY
_BATCH = 100
_WORKER = "small-0123456789ab"
_CLASSES = 100
_EVALSHA = "cmdstat_evalsha"


async def redis_time(place: Place, calls: int) -> float:
    """Return the µs of Redis that the history takes of each task that is done.

    Settle calls of 100 tasks keep a history and do not, in turn, and the medians are compared.
    """
    place.fresh()
    found: tuple[list[float], list[float]] = ([], [])
    without, kept = _broker(place, 0), _broker(place, _KEPT)
    try:
        for call in range(calls):
            await _submit(without, call * _BATCH)
            deliveries, _ = await without.fetch(_WORKER, "small", _BATCH)
            which = call % 2
            place.raw.config_resetstat()
            await _settle((without, kept)[which], deliveries, "done", b"")
            found[which].append(place.raw.info("commandstats")[_EVALSHA]["usec"] / _BATCH)
    finally:
        await without.aclose()
        await kept.aclose()
    return statistics.median(found[1]) - statistics.median(found[0])


async def memory(place: Place) -> float:
    """Return the MiB of a full history, in which each failure is as large as can be."""
    place.fresh()
    broker = _broker(place, _KEPT)
    failed = ResultDocument(
        *("bench_tasks:Noop", 1, 1.0, None, "ValueError", "x" * 600, "retries"),
        traceback="y" * 4096,
    )
    try:
        for first in range(0, _KEPT * 11 // 10, _BATCH):
            await _submit(broker, first)
            deliveries, _ = await broker.fetch(_WORKER, "small", _BATCH)
            outcome = "done" if first < _KEPT else "dead"
            await _settle(broker, deliveries, outcome, encode(failed))
    finally:
        await broker.aclose()
    return _mebibytes(place, "ended:*")


def figures_memory(place: Place) -> float:
    """Return the MiB of the figures of 100 busy classes, over all slots that are kept."""
    place.fresh()
    chance = random.Random(1)
    for slot, seconds in RESOLUTIONS:
        with place.raw.pipeline(transaction=False) as pipe:
            for number in range(seconds // slot + 1):
                fields = {
                    f"bench_tasks:Class{n:03}": _vector(chance, slot) for n in range(_CLASSES)
                }
                pipe.hset(f"{{nonet}}:figures:{slot}:{number}", mapping=fields)
            pipe.execute()
    return _mebibytes(place, "figures:*")


def _vector(chance: random.Random, slot: int) -> bytes:
    """Return the figures of a class with some ten tasks a second, whose times vary by 100 times."""
    tasks = round(slot * chance.uniform(1, 20))
    counts = dict.fromkeys(range(len(COUNTS)), tasks)
    first = len(COUNTS)
    for middle in (0.05, 1.0):
        for place, bound in enumerate(DURATIONS, first):
            share = math.exp(-((math.log(bound / middle) / 1.5) ** 2))
            if number := round(tasks * share / 3):
                counts[place] = number
        first += len(DURATIONS) + 1
    return msgpack.encode([part for pair in counts.items() for part in pair])


def _broker(place: Place, history: int) -> Broker:
    return Broker(plain_settings(namespace="nonet", result_ttl=0, history=history), place.url)


async def _submit(broker: Broker, first: int) -> None:
    numbers = range(first, first + _BATCH)
    await broker.submit(
        [Submission(f"{n:020}", "bench_tasks:Noop", "normal:small", b"e" * 60) for n in numbers]
    )


async def _settle(
    broker: Broker, deliveries: list[Delivery], outcome: str, document: bytes
) -> None:
    await asyncio.gather(*(broker.settle(item, outcome, document) for item in deliveries))


def _mebibytes(place: Place, pattern: str) -> float:
    keys = place.raw.keys(f"{{nonet}}:{pattern}")
    return sum(place.raw.memory_usage(key, samples=0) for key in keys) / 2**20
