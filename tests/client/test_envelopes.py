"""What a submission has before Redis is asked; no server is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from unittest import mock

import pytest

from nonet import BaseTask, Unique, carry_context
from nonet.base.messages.message import decode_envelope
from nonet.base.messages.signing import Signer
from nonet.client.envelopes import Envelopes
from nonet.client.live import LiveConfig
from nonet.tasks import carried
from nonet.tasks.registry import Registry
from nonet.tasks.task import Options

request: ContextVar[str] = ContextVar("request")


class Plain(BaseTask):
    async def execute(self) -> None: ...


@pytest.fixture
def envelopes() -> Iterator[Envelopes]:
    registry = Registry()
    registry.add(Plain, "tests")
    with mock.patch.dict(carried._carried, clear=True):
        yield Envelopes(registry, LiveConfig(mock.Mock(), registry), Signer(), message_limit=1000)


def test_context_travels_outside_of_tasks(envelopes: Envelopes) -> None:
    """A declared variable becomes a label of a task that no other task submits."""
    carry_context(request)
    request.set("4f1c")
    made = envelopes.prepare(Plain())
    assert decode_envelope(made.envelope).labels == {"request": "4f1c"}


def test_a_tenant_has_its_own_limits_of_the_class(envelopes: Envelopes) -> None:
    """The default limiters of a task with a VO travel with it; those of others do not."""
    assert envelopes.prepare(Plain()).locks == ""
    locks = envelopes.prepare(Plain(), Options(labels={"vo": "acme"})).locks
    assert "acme" in locks


def test_a_debounced_task_is_delayed(envelopes: Envelopes) -> None:
    """By the seconds of its class, unless the submission says when."""
    with mock.patch.object(Plain, "unique", Unique.debounce(5)):
        assert envelopes.prepare(Plain()).due_us == -5_000_000
        assert envelopes.prepare(Plain(), Options(delay=1)).due_us == -1_000_000
        assert envelopes.prepare(Plain(), Options(unique=None)).due_us == 0
