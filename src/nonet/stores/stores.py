"""All stores of a namespace, in Redis and in SQL, behind one object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nonet.base.errors import ConfigurationError, NonetError
from nonet.base.loop import in_own_thread
from nonet.base.messages.encryption import Cipher
from nonet.config.settings import Settings
from nonet.stores.connection.redis import AsyncRedis
from nonet.stores.namespace.sessions import Sessions
from nonet.stores.queue.broker import Broker

# A command uses one or two of the stores, and each takes milliseconds to import; SQL takes 400.
if TYPE_CHECKING:
    from nonet.stores.connection.embedded import EmbeddedServer
    from nonet.stores.namespace.bulks import BulkRecords
    from nonet.stores.namespace.ceilings import Ceilings
    from nonet.stores.namespace.controls import Controls
    from nonet.stores.namespace.counts import Counts
    from nonet.stores.namespace.demand import Demands
    from nonet.stores.namespace.events import Events
    from nonet.stores.namespace.fairness import Fairness
    from nonet.stores.namespace.figures import Measures
    from nonet.stores.namespace.filters import SavedFilters
    from nonet.stores.namespace.history import History
    from nonet.stores.namespace.leadership import Leader, Leadership
    from nonet.stores.namespace.limits import Limits
    from nonet.stores.namespace.lock_board import LockBoard
    from nonet.stores.namespace.periodic import Periodic
    from nonet.stores.namespace.pipelines import PipelineReports
    from nonet.stores.namespace.publication import Publication
    from nonet.stores.namespace.quarantine import Quarantine
    from nonet.stores.namespace.seen_marks import SeenMarks
    from nonet.stores.namespace.sessions import Sessions
    from nonet.stores.namespace.tenants import Tenants
    from nonet.stores.queue.groups import Groups
    from nonet.stores.queue.results import Results
    from nonet.stores.queue.workflows import Workflows
    from nonet.stores.sql.audit import Audit
    from nonet.stores.sql.database import Database
    from nonet.stores.sql.dead_letters import DeadLetters
    from nonet.stores.sql.mirror import Mirror
    from nonet.stores.sql.outbox import Outbox
    from nonet.stores.sql.row_closer import RowCloser
    from nonet.stores.sql.schedules import ScheduleRows
    from nonet.stores.sql.sql_stores import SqlStores
    from nonet.tasks.registry import Registry

logger = logging.getLogger(__name__)

EMBEDDED = "embedded://"
_IN_REDIS = "client", "namespace"


async def open_stores(
    settings: Settings, closing: AsyncExitStack, broker: Broker | None = None
) -> Stores:
    """Open the stores of the namespace in `settings`.

    Args:
        broker: its broker, if it was made before this process was forked.
        closing: closes them; an embedded server is started first and stopped last.

    Raises:
        ConfigurationError: the URL of Redis is invalid.
    """
    url, is_new = settings.redis_url.get_secret_value(), False
    if url.startswith(EMBEDDED):
        server = await asyncio.to_thread(start_embedded, settings, closing)
        url, is_new = server.url, server.is_new
    if broker is None:
        broker = Broker(settings, url)
    else:
        broker.wakes.take_name()
    broker.client.lane.bind()  # now, or the first loop that submits would become its owner
    closing.push_async_callback(broker.aclose)
    broker.follow()
    if is_new:
        await broker.begin()
    stores = Stores(broker)
    closing.push_async_callback(stores.close)
    return stores


def stores_beside(stores: Stores, namespace: str, closing: AsyncExitStack) -> Stores:
    """Open the stores of another namespace on the servers of these.

    Args:
        closing: closes them, before `stores` are closed.
    """
    stores.broker.client.lane.check_loop()
    settings = stores.settings.of(namespace)
    broker = Broker(settings, stores.broker.url, stores.broker.transport)
    closing.push_async_callback(broker.aclose)
    if not broker.transport.is_sync:
        broker.client.lane.bind()
        broker.follow()
    made = Stores(broker, stores)
    closing.push_async_callback(made.close)
    return made


def start_embedded(settings: Settings, closing: AsyncExitStack) -> EmbeddedServer:
    """Start the embedded server, and return it. Blocks.

    Args:
        closing: stops it.

    Raises:
        ConfigurationError: it cannot be started.
    """
    from nonet.stores.connection.embedded import open_embedded  # production starts no server

    if settings.redis_url.get_secret_value() != EMBEDDED:
        raise ConfigurationError(
            "NONET_REDIS_URL: embedded:// takes no host or path; "
            "set the folder of its data with NONET_STATE_DIR"
        )
    server = open_embedded(settings.state_dir)
    closing.push_async_callback(in_own_thread, server.close)
    return server


def _lazily(path: str, *arguments: str) -> cached_property[Any]:
    """Import and make a store when it is first used.

    Args:
        path: its module, below `nonet.stores`, and class.
        arguments: the attributes of `Stores` that it takes; none: `client` and `namespace`.
    """
    module, _, name = path.partition(":")

    def make(stores: Stores) -> Any:
        made: Callable[..., Any] = getattr(import_module(f"nonet.stores.{module}"), name)
        return made(*(getattr(stores, argument) for argument in arguments or _IN_REDIS))

    return cached_property(make)


class Stores:
    """The stores of one namespace. Each store and the SQL database open on first use.

    Args:
        broker: the open broker.
        beside: the stores of another namespace, whose SQL database these use.

    Attributes:
        broker: submits tasks and delivers them to workers.
        client: the client of Redis.
        settings: the settings of the namespace.
        namespace: prefix of all keys in Redis.
        cipher: decrypts what the stores return, and encrypts what they get.
        lock_ttl_ms: TTL of locks that define none.
        recheck_seconds: a waiting task is checked again after at most this long.

    Raises:
        ConfigurationError: there are encryption keys, but not the package `cryptography`.
    """

    # Changes of many things that processes of task-web make.
    bulks: cached_property[BulkRecords] = _lazily("namespace.bulks:BulkRecords")
    # Ceilings, and the number of tasks below them.
    ceilings: cached_property[Ceilings] = _lazily("namespace.ceilings:Ceilings")
    # Pauses.
    controls: cached_property[Controls] = _lazily("namespace.controls:Controls")
    # What was counted of classes, tenants and streams over time.
    counts: cached_property[Counts] = _lazily("namespace.counts:Counts")
    # How many workers each size needs.
    demands: cached_property[Demands] = _lazily(
        "namespace.demand:Demands", *_IN_REDIS, "lock_ttl_ms"
    )
    # The event stream: who changed what.
    events: cached_property[Events] = _lazily("namespace.events:Events")
    # Fair shares of tenants.
    fairness: cached_property[Fairness] = _lazily("namespace.fairness:Fairness")
    # Filters that operators have saved.
    filters: cached_property[SavedFilters] = _lazily("namespace.filters:SavedFilters")
    # Callback groups.
    groups: cached_property[Groups] = _lazily("queue.groups:Groups", *_IN_REDIS, "cipher")
    # The tasks that ended last.
    history: cached_property[History] = _lazily("namespace.history:History", *_IN_REDIS, "cipher")
    # The lease of the leading scheduler.
    leadership: cached_property[Leadership] = _lazily(
        "namespace.leadership:Leadership", "broker", "namespace"
    )
    # Limits in force, and limits set by hand.
    limits: cached_property[Limits] = _lazily("namespace.limits:Limits")
    # Holders and waiters of locks.
    locks: cached_property[LockBoard] = _lazily(
        "namespace.lock_board:LockBoard", *_IN_REDIS, "lock_ttl_ms"
    )
    # The figures of the namespace.
    measures: cached_property[Measures] = _lazily(
        "namespace.figures:Measures", *_IN_REDIS, "recheck_seconds"
    )
    # The periodic entries.
    periodic: cached_property[Periodic] = _lazily(
        "namespace.periodic:Periodic", "broker", "namespace"
    )
    # What the processes that run pipelines report.
    pipelines: cached_property[PipelineReports] = _lazily("namespace.pipelines:PipelineReports")
    # The published configuration.
    publication: cached_property[Publication] = _lazily("namespace.publication:Publication")
    # Messages that are not valid tasks.
    quarantine: cached_property[Quarantine] = _lazily(
        "namespace.quarantine:Quarantine", "broker", "namespace"
    )
    # Status and results of tasks, queues and workers.
    results: cached_property[Results] = _lazily("queue.results:Results", "broker", "cipher")
    # Deletes the rows of durable tasks that have ended.
    rows: cached_property[RowCloser] = _lazily("sql.row_closer:RowCloser", "outbox")
    # Which findings operators have seen.
    seen_marks: cached_property[SeenMarks] = _lazily("namespace.seen_marks:SeenMarks")
    # The figures of tenants.
    tenants: cached_property[Tenants] = _lazily("namespace.tenants:Tenants")
    # Workflows.
    workflows: cached_property[Workflows] = _lazily("queue.workflows:Workflows", "broker", "cipher")

    def __init__(self, broker: Broker, beside: Stores | None = None) -> None:
        self.broker = broker
        self.client: AsyncRedis = broker.client
        self.settings: Settings = broker.settings
        self.namespace: str = self.settings.namespace
        self.cipher: Cipher = self.settings.cipher()
        self.lock_ttl_ms: int = broker.lock_ttl_ms
        # The pause varies by half.
        self.recheck_seconds: float = 1.5 * self.settings.lock_recheck_max
        self._beside = beside
        self._sql: SqlStores | None = None

    def sessions(self, secret: bytes) -> Sessions:
        """Return the logins of the dashboard.

        Args:
            secret: authenticates them.
        """

        return Sessions(self.client, self.namespace, secret)

    async def close(self) -> None:
        """Close what was opened."""
        if "rows" in self.__dict__:
            await self.rows.aclose()
        if "results" in self.__dict__:
            await self.results.aclose()
        if self._sql is not None and self._beside is None:
            await self._sql.database.close()
        self._sql = None

    async def leader(self) -> Leader | None:
        """Return the scheduler that leads now, or None."""
        found = await self.leadership.leader()
        is_over = found is None or found.expiry <= await self.broker.logical_now()
        return None if is_over else found

    async def dead_letters(self) -> DeadLetters:
        """Dead letters: tasks that have failed for good."""
        return (await self._in_sql()).dead_letters

    async def outbox(self) -> Outbox:
        """Durable tasks that have not ended."""
        return (await self._in_sql()).outbox

    async def mirror(self) -> Mirror:
        """Copies in SQL of data that Redis may lose."""
        return (await self._in_sql()).mirror

    async def audit(self) -> Audit:
        """Who changed what in the dashboard and the API."""
        return (await self._in_sql()).audit

    async def schedules(self) -> ScheduleRows:
        """The schedules that programs made."""
        return (await self._in_sql()).schedules

    async def prepare_sqlite(self, registry: Registry) -> None:
        """Create the table of durable tasks before a transaction of the user can lock the file."""
        sql_url = self.settings.sql_url()
        if sql_url.startswith("sqlite") and any(item.cls.durable for item in registry):
            try:
                await (await self.outbox()).prepare()
            except NonetError as error:  # programs that only read tasks need no table
                logger.warning("durable tasks cannot be submitted: %s", error)

    async def look_for_tables(self) -> None:
        """Check that SQL answers and has all tables.

        Raises:
            NonetError: it does not answer, or a table is missing.
        """
        await (await self._in_sql()).look_for_tables()

    async def sql_state(self) -> str:
        """Return the state of the tables, see `nonet.rules.findings.servers.Server`."""
        if not self.settings.may_have_sql():
            return ""
        try:
            return await (await self._in_sql()).state()
        except NonetError as error:
            return str(error)

    async def _in_sql(self) -> SqlStores:
        if self._sql is None:
            database = None if self._beside is None else (await self._beside._in_sql()).database
            made = await in_own_thread(partial(_open_sql, self.broker, self.cipher, database))
            self._sql = self._sql or made  # a concurrent call may have been faster
        return self._sql


def _open_sql(broker: Broker, cipher: Cipher, database: Database | None) -> SqlStores:
    """Open SQL. Called in a thread, because the import would block the event loop."""
    from nonet.stores.sql.sql_stores import SqlStores  # SQLAlchemy takes 0.3 s

    return SqlStores(broker, cipher, database)
