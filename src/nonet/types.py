"""Types that public signatures name, for annotations.

Most are given by an open `nonet.Nonet`, and programs do not create them. What they offer beyond
what the documentation describes may change with any version. Names are imported on first use, as in
`nonet`.

    from nonet.types import TaskOf

    async def submit_all(tasks: list[TaskOf[int]]) -> list[Handle[int]]: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nonet.base.exports import imported_on_use

if TYPE_CHECKING:
    from nonet.base.messages.terms import Delay as Delay, StartBy as StartBy
    from nonet.client.groups import Policy as Policy
    from nonet.client.schedules import Schedules as Schedules, SyncSchedules as SyncSchedules
    from nonet.config.environment import Secret as Secret
    from nonet.config.models import ScheduleConfig as ScheduleConfig
    from nonet.contrib.fastapi import Lifespan as Lifespan
    from nonet.operate.doctor import Diagnosis as Diagnosis
    from nonet.operate.interactive import Debugger as Debugger
    from nonet.pipelines.host import PipelineHost as PipelineHost
    from nonet.rules.findings.situation import Overview as Overview
    from nonet.rules.letters import DeadLetter as DeadLetter
    from nonet.rules.periodic import (
        EntryStatus as EntryStatus,
        Put as Put,
        StoredSchedule as StoredSchedule,
    )
    from nonet.rules.permissions import Action as Action, Principal as Principal, Role as Role
    from nonet.scheduler.scheduler import Scheduler as Scheduler
    from nonet.stores.namespace.leadership import Leader as Leader
    from nonet.stores.queue.broker import Broker as Broker
    from nonet.stores.sql.dead_letters import DeadLetters as DeadLetters
    from nonet.stores.stores import Stores as Stores
    from nonet.tasks.function import TaskAttributes as TaskAttributes
    from nonet.tasks.hooks import Hook as Hook
    from nonet.tasks.injection import Injector as Injector
    from nonet.tasks.injection.providers import (
        Provider as Provider,
        ReadsMetadata as ReadsMetadata,
        Scope as Scope,
    )
    from nonet.tasks.locks import LockKind as LockKind
    from nonet.tasks.steps import Added as Added, After as After, Edge as Edge
    from nonet.tasks.task import (
        FromClass as FromClass,
        StepOptions as StepOptions,
        SubmitManyOptions as SubmitManyOptions,
        SubmitOptions as SubmitOptions,
        TaskOf as TaskOf,
        TaskOptions as TaskOptions,
    )
    from nonet.tasks.workflows import Part as Part
    from nonet.testing.system_options import Tasks as Tasks
    from nonet.web.mounted import Check as Check
    from nonet.worker.worker import Worker as Worker

# The module below `nonet` that defines each name.
_HOMES = {
    "client.groups": "Policy",
    "client.schedules": "Schedules SyncSchedules",
    "config.environment": "Secret",
    "config.models": "ScheduleConfig",
    "contrib.fastapi": "Lifespan",
    "base.messages.terms": "Delay StartBy",
    "operate.doctor": "Diagnosis",
    "operate.interactive": "Debugger",
    "pipelines.host": "PipelineHost",
    "rules.permissions": "Action Principal Role",
    "rules.findings.situation": "Overview",
    "scheduler.scheduler": "Scheduler",
    "stores.namespace.leadership": "Leader",
    "rules.periodic": "EntryStatus Put StoredSchedule",
    "stores.queue.broker": "Broker",
    "stores.sql.dead_letters": "DeadLetter DeadLetters",
    "stores.stores": "Stores",
    "tasks.function": "TaskAttributes",
    "tasks.hooks": "Hook",
    "tasks.injection": "Injector",
    "tasks.injection.providers": "Provider ReadsMetadata Scope",
    "tasks.locks": "LockKind",
    "tasks.task": "FromClass StepOptions SubmitManyOptions SubmitOptions TaskOf TaskOptions",
    "tasks.steps": "Added After Edge",
    "tasks.workflows": "Part",
    "testing.system_options": "Tasks",
    "web.mounted": "Check",
    "worker.worker": "Worker",
}
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__, __getattr__, __dir__ = imported_on_use(__name__, _HOMES)
