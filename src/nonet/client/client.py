"""`Client`: submits tasks to one namespace, reads their state, and cancels them."""

from __future__ import annotations

from nonet.client.cancelling import Cancelling
from nonet.client.namespace import OpenNamespace
from nonet.client.reading import Reading
from nonet.client.schedules import Schedules
from nonet.client.submitting import Submitting
from nonet.client.workflows import InWorkflows


class Program(Submitting, Reading, Cancelling, InWorkflows):
    """What a program can do with a namespace: the methods of `nonet.Nonet` and of `Client`."""

    @property
    def schedules(self) -> Schedules:
        """The schedules that programs made: put, pause, resume, remove and list them."""
        return Schedules(self._open())


class Client(OpenNamespace, Program):
    """Submits tasks to one namespace and reads their state; `Nonet.client` is one.

    Attributes:
        namespace: its namespace.
        stores: its open stores.
        registry: the task classes of this process.
        settings: the settings of the namespace.
        envelopes: creates and reads messages.
        live_config: the published configuration, which overrides attributes of classes.
        middlewares: runs around submissions and attempts.
        cipher: encrypts and decrypts the data of tasks.
        cancellation: cancels tasks, for the framework.
        hints: wakes the processes that run pipelines.
        routing: sends tasks to the namespaces of their tenants, and finds them there.

    Example:
        client = app.client  # programs get it from an open application
        handle = await client.submit(Add(1, 2))
    """

    def __repr__(self) -> str:
        return f"Client({self.namespace!r})"
