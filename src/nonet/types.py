"""Types that public signatures name, for annotations.

Most are given by an open `nonet.Nonet`, and programs do not create them. What they offer beyond
what the documentation describes may change with any version. Names are imported on first use, as in
`nonet`.

    from nonet.types import TaskOf

    async def submit_all(tasks: list[TaskOf[int]]) -> list[Handle[int]]: ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nonet.client.groups import Policy
    from nonet.config.environment import Secret
    from nonet.config.models import ScheduleConfig
    from nonet.contrib.fastapi import Lifespan
    from nonet.messages.terms import Delay, StartBy
    from nonet.operate.doctor import Diagnosis
    from nonet.operate.interactive import Debugger
    from nonet.pipelines.host import PipelineHost
    from nonet.rules.permissions import ACTIONS, Action, Principal, Role
    from nonet.rules.situation import Overview
    from nonet.scheduler.scheduler import Scheduler
    from nonet.stores.namespace.leadership import Leader
    from nonet.stores.namespace.periodic import EntryStatus
    from nonet.stores.queue.broker import Broker
    from nonet.stores.sql.dead_letters import DeadLetter, DeadLetters
    from nonet.stores.stores import Stores
    from nonet.tasks.function import TaskAttributes
    from nonet.tasks.hooks import Hook
    from nonet.tasks.injection import Injector
    from nonet.tasks.injection.providers import Provider, ReadsMetadata, Scope
    from nonet.tasks.locks import LockKind
    from nonet.tasks.task import FromClass, SubmitManyOptions, SubmitOptions, TaskOf, TaskOptions
    from nonet.tasks.workflows import Added, After, Edge, Part
    from nonet.testing.options import Tasks
    from nonet.web.mounted import Check
    from nonet.worker.worker import Worker

__all__ = [
    "ACTIONS",
    "Action",
    "Added",
    "After",
    "Broker",
    "Check",
    "DeadLetter",
    "DeadLetters",
    "Debugger",
    "Delay",
    "Diagnosis",
    "Edge",
    "EntryStatus",
    "FromClass",
    "Hook",
    "Injector",
    "Leader",
    "Lifespan",
    "LockKind",
    "Overview",
    "Part",
    "PipelineHost",
    "Policy",
    "Principal",
    "Provider",
    "ReadsMetadata",
    "Role",
    "ScheduleConfig",
    "Scheduler",
    "Scope",
    "Secret",
    "StartBy",
    "Stores",
    "SubmitManyOptions",
    "SubmitOptions",
    "TaskAttributes",
    "TaskOf",
    "TaskOptions",
    "Tasks",
    "Worker",
]

# The module that defines each name.
_HOME = {
    **dict.fromkeys(("ACTIONS", "Action", "Principal", "Role"), "rules.permissions"),
    **dict.fromkeys(("Added", "After", "Edge", "Part"), "tasks.workflows"),
    "Broker": "stores.queue.broker",
    "Check": "web.mounted",
    **dict.fromkeys(("DeadLetter", "DeadLetters"), "stores.sql.dead_letters"),
    "Debugger": "operate.interactive",
    "Diagnosis": "operate.doctor",
    "EntryStatus": "stores.namespace.periodic",
    **dict.fromkeys(
        ("FromClass", "SubmitManyOptions", "SubmitOptions", "TaskOf", "TaskOptions"),
        "tasks.task",
    ),
    "Hook": "tasks.hooks",
    "Injector": "tasks.injection",
    "Leader": "stores.namespace.leadership",
    "Lifespan": "contrib.fastapi",
    "LockKind": "tasks.locks",
    "Overview": "rules.situation",
    "PipelineHost": "pipelines.host",
    "Policy": "client.groups",
    **dict.fromkeys(("Provider", "ReadsMetadata", "Scope"), "tasks.injection.providers"),
    "ScheduleConfig": "config.models",
    "Scheduler": "scheduler.scheduler",
    "Secret": "config.environment",
    **dict.fromkeys(("Delay", "StartBy"), "messages.terms"),
    "Stores": "stores.stores",
    "TaskAttributes": "tasks.function",
    "Tasks": "testing.options",
    "Worker": "worker.worker",
}


def __getattr__(name: str) -> Any:
    """Import a name on its first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"nonet.{_HOME[name]}"), name)
    return value
