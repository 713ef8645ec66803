"""Tasks that use models."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from django.db import connection

from invoices.models import Invoice
from nonet import BaseTask, Isolation, Size, carry_context

user: ContextVar[str] = ContextVar("user")
carry_context(user)


@dataclass
class Send(BaseTask):
    """Marks an invoice; tells whether there was one, and for whom it ran."""

    number: int
    size = Size.SMALL

    def execute(self) -> list[Any]:
        changed = Invoice.objects.filter(number=self.number).update(sent=True)
        return [changed, connection.connection is not None, user.get("nobody")]


@dataclass
class SendIsolated(Send):
    """The same, in a process of its own; its class says when it is submitted."""

    on_commit = True
    isolation = Isolation.CHILD


@dataclass
class Counts(BaseTask):
    """Asks as a coroutine."""

    size = Size.SMALL

    async def execute(self) -> int:
        return await Invoice.objects.acount()


@dataclass
class IsOpen(BaseTask):
    """Opens a connection; tells whether its thread had one before."""

    size = Size.SMALL

    def execute(self) -> bool:
        was_open = connection.connection is not None
        Invoice.objects.count()
        return was_open
