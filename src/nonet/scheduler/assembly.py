"""Build a scheduler from the client of an open application."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial

from nonet.base.streams import Size
from nonet.client.client import Client
from nonet.config.sources import open_source
from nonet.config.web_url import web_url
from nonet.daemon.contact import sql_reached
from nonet.operate import overview
from nonet.scheduler.census import Census
from nonet.scheduler.configuration.configuration_loop import ConfigurationLoop, check
from nonet.scheduler.demand import DemandLoop
from nonet.scheduler.expired import ExpiredTasks
from nonet.scheduler.figures import FigureHistory
from nonet.scheduler.pauses import PauseMemory
from nonet.scheduler.periodic.memory import Memory
from nonet.scheduler.periodic.periodic_loop import PeriodicLoop
from nonet.scheduler.periodic.stored import StoredEntries
from nonet.scheduler.relay import Relay
from nonet.scheduler.retention import Retention
from nonet.scheduler.scheduler import Chore, Scheduler, SchedulerParts
from nonet.scheduler.startup import StartUp, checked_hooks
from nonet.scheduler.tenant_metrics import take_census
from nonet.scheduler.unfinished_workflows import UnfinishedWorkflows
from nonet.scheduler.webhook import Webhook
from nonet.tasks.hooks import Hook
from nonet.tasks.injection import Injector
from nonet.tasks.overflow import overflow_hooks
from nonet.tasks.registry import vos_from_entry_points
from nonet.telemetry.logs import keep_logs


def assemble(
    client: Client,
    injector: Injector,
    hooks: Mapping[str, Hook] | None = None,
    chores: Mapping[str, Chore] | None = None,
) -> Scheduler:
    """Build a scheduler; `nonet.Nonet.scheduler` documents the arguments.

    Args:
        chores: further duties of the leader, by the name of their loop.
    """
    settings, stores, may_have_sql = client.settings, client.stores, client.settings.may_have_sql
    memory = Memory(stores.mirror, may_have_sql)
    grace = timedelta(seconds=settings.misfire_grace)
    periodic = PeriodicLoop(client, stores.periodic, memory, grace)
    found = checked_hooks(settings, injector, hooks)
    keep_logs()  # modules with hooks may have configured logging
    made = SchedulerParts(
        settings,
        client,
        stores.leadership,
        _configuration(client, periodic),
        StartUp(found, stores.leadership, injector),
        periodic,
        StoredEntries(stores.schedules, may_have_sql, client.registry, periodic.adopt_stored),
        memory,
        PauseMemory(stores.controls, stores.broker.epoch, stores.mirror, may_have_sql),
        chores={**_chores(client), **(chores or {})},
        census=_census(client) if settings.metrics_port else None,
        sql=sql_reached(settings, stores),
    )
    return Scheduler(made)


def _configuration(client: Client, periodic: PeriodicLoop) -> ConfigurationLoop:
    settings, stores = client.settings, client.stores
    vos = vos_from_entry_points(settings.groups)
    fits = partial(check, registry=client.registry, vos=vos)
    source = open_source(settings.config, settings, fits)
    return ConfigurationLoop(source, fits, stores, periodic.adopt)


def _chores(client: Client) -> dict[str, Chore]:
    """Return the further duties of the leader, by the name of their loop."""
    settings, stores = client.settings, client.stores
    expired = ExpiredTasks(stores.broker, stores.dead_letters, settings.signer(), stores.rows.close)
    demand = DemandLoop(
        stores.demands,
        stores.events,
        overflow_hooks(settings.on_overflow, settings.groups),
        {size: settings.slots_of(size) for size in Size},
        settings.overflow_cooldown,
        configured_slots=settings.slots,
    )
    chores: dict[str, Chore] = {
        "durable tasks": Relay(stores.outbox, settings).tick,
        "figures": FigureHistory(stores.counts, stores.measures, stores.broker.epoch).tick,
        "expired tasks": expired.tick,
        "demand": demand.tick,
        "old dead letters": Retention(stores.dead_letters, settings.dlq_retention).tick,
        "workflows": UnfinishedWorkflows(client).tick,
    }
    if url := settings.webhook_url.get_secret_value():
        chores["webhook"] = Webhook(
            # Leave out texts of errors: the receiver may show reports to anyone.
            partial(overview.find, stores, settings, is_viewer=True),
            settings.namespace,
            url,
            settings.webhook_secret.get_secret_value(),
            web_url(),
        ).tick
    return chores


def _census(client: Client) -> Census:
    settings, stores = client.settings, client.stores
    return Census(
        stores.measures,
        stores.dead_letters,
        stores.pipelines,
        settings.may_have_sql,
        client.registry.versions(),
        partial(take_census, stores.tenants, client.live_config),
    )
