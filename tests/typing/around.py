"""Middleware and travelling context, as authors write them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import assert_type
from uuid import UUID

from nonet import Middleware, Nonet, OutgoingTask, RunningTask, carry_context, register_middleware

request_id: ContextVar[str] = ContextVar("request_id")
user: ContextVar[str | None] = ContextVar("user", default=None)
tenant: ContextVar[UUID] = ContextVar("tenant")
carry_context(request_id)
carry_context(user, "user_name")
carry_context(tenant, decode=UUID)


class Timing(Middleware):
    order = 5

    def __init__(self, limit: float, *, name: str = "") -> None:
        self.limit, self.name = limit, name

    def around_submit(self, task: OutgoingTask) -> Iterator[None]:
        task.labels["host"] = "a"
        yield

    async def around_attempt(self, task: RunningTask) -> AsyncIterator[None]:
        yield
        assert_type(task.outcome, str | None)
        assert_type(task.error, BaseException | None)
        assert_type(task.retry_in, timedelta | None)

    def around_thread(self, task: RunningTask) -> Iterator[None]:
        yield


register_middleware(Timing(1.5))


def used(app: Nonet) -> None:
    assert_type(app.use(Timing, 1.5, name="slow"), Middleware)
