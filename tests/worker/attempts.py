"""One attempt without a server: the tools that it is made with, and its delivery."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from clients import broker_at, client_of

from nonet import BaseTask
from nonet.stores.queue.deliveries import Delivery
from nonet.tasks.injection import Injector
from nonet.tasks.registry import Registry
from nonet.worker.attempt.attempt import Attempt
from nonet.worker.attempt.execute import Tools


@asynccontextmanager
async def tools_for(*classes: type[BaseTask], leave: Any = lambda *_: None) -> AsyncIterator[Tools]:
    """Tools that know these classes. No server listens at their address, and none is called."""
    registry = Registry()
    for cls in classes:
        registry.add(cls, "tests")
    broker = broker_at("redis://127.0.0.1:1")
    client = client_of(broker, registry)
    with ThreadPoolExecutor(2) as threads:
        async with Injector() as injector:
            yield Tools(client, injector, threads, lambda *_: None, leave)
    await client.aclose()
    await broker.aclose()


def attempt_at(task: BaseTask, tools: Tools) -> Attempt:
    sent = tools.client.envelopes.prepare(task)
    place = ("tasks:normal:medium", "1-0")
    delivery = Delivery(sent.id, "1", "1", *place, sent.envelope, sent.locks)
    return Attempt(delivery, time.monotonic())
