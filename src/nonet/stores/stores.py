"""What a namespace keeps, in Redis and in SQL, behind one object."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nonet.base.errors import NonetError
from nonet.base.loop import in_own_thread
from nonet.config.settings import Settings
from nonet.stores.namespace.ceilings import Ceilings
from nonet.stores.namespace.controls import Controls
from nonet.stores.namespace.demand import Demands
from nonet.stores.namespace.events import Events
from nonet.stores.namespace.leadership import Leader, Leadership
from nonet.stores.namespace.limits import Limits
from nonet.stores.namespace.periodic import Periodic
from nonet.stores.namespace.publication import Publication
from nonet.stores.namespace.quarantine import Quarantine
from nonet.stores.queue.broker import Broker
from nonet.stores.sql.row_closer import RowCloser

# SQL takes 400 ms to import: only who uses it does so.
if TYPE_CHECKING:
    from nonet.stores.sql.database import Database
    from nonet.stores.sql.dead_letters import DeadLetters
    from nonet.stores.sql.mirror import Mirror
    from nonet.stores.sql.outbox import Outbox


class Stores:
    """The stores of one namespace. SQL is opened on first use; `close` closes it.

    Args:
        broker: open.

    Attributes:
        broker: queues tasks and hands them over.
        periodic: the periodic entries.
        limits: the limits that hold, and those set by hand.
        controls: what is paused.
        ceilings: how many tasks there are, and may be.
        demands: how much work there is for how many workers.
        events: who changed what.
        quarantine: bytes that are no task.
        leadership: which scheduler leads.
        publication: the configuration as the leader has published it.
        rows: deletes the rows of durable tasks that have ended.
    """

    def __init__(self, broker: Broker, settings: Settings) -> None:
        client, namespace = broker.client, settings.namespace
        self._settings = settings
        self.broker = broker
        self.periodic = Periodic(broker, namespace)
        self.limits = Limits(client, namespace)
        self.controls = Controls(client, namespace)
        self.ceilings = Ceilings(client, namespace)
        self.demands = Demands(client, namespace, broker.lock_ttl_ms)
        self.events = Events(client, namespace)
        self.quarantine = Quarantine(broker, namespace)
        self.leadership = Leadership(broker, namespace)
        self.publication = Publication(client, namespace)
        self.rows = RowCloser(self.outbox)
        self._database: Database | None = None

    async def close(self) -> None:
        """Close what was opened of SQL."""
        await self.rows.aclose()
        if self._database is not None:
            await self._database.close()
            self._database = None

    async def leader(self) -> Leader | None:
        """Which scheduler leads now; None if none does."""
        found = await self.leadership.leader()
        is_over = found is None or found.expiry <= await self.broker.logical_now()
        return None if is_over else found

    async def dead_letters(self) -> DeadLetters:
        """Dead letters: tasks that have failed for good."""
        database = await self._open_database()
        from nonet.stores.sql.dead_letters import DeadLetters

        return DeadLetters(database, self._settings.namespace)

    async def outbox(self) -> Outbox:
        """Durable tasks that have not ended."""
        database = await self._open_database()
        from nonet.stores.sql.outbox import Outbox

        return Outbox(database, self.broker, self._settings.namespace)

    async def mirror(self) -> Mirror:
        """What SQL keeps for the day on which Redis forgets."""
        database = await self._open_database()
        from nonet.stores.sql.mirror import Mirror

        return Mirror(database, self._settings.namespace)

    async def look_for_tables(self) -> None:
        """Raises `NonetError` if SQL does not answer, or a table is missing."""
        database = await self._open_database()
        from nonet.stores.sql.dead_letters import dlq_tasks
        from nonet.stores.sql.mirror import mirror
        from nonet.stores.sql.outbox import outbox_tasks

        await database.look_for(dlq_tasks, outbox_tasks, mirror)

    async def sql_state(self) -> str:
        """What is known of the tables, see `nonet.rules.diagnosis.Server`."""
        if not self._settings.may_have_sql():
            return ""
        from nonet.stores.sql.database import Schema, check

        url = self._settings.sql_url()
        try:
            state = await check(url)
            if state in (Schema.CURRENT, Schema.AHEAD):  # so says one table; is another one there?
                await (await self.dead_letters()).list(limit=1)
        except NonetError as error:
            return str(error)
        is_made_on_demand = url.startswith("sqlite")
        return "" if state is Schema.ABSENT and is_made_on_demand else str(state)

    async def _open_database(self) -> Database:
        if self._database is None:
            made = await in_own_thread(partial(_make_database, self._settings.sql_url()))
            self._database = self._database or made  # somebody else may have been faster
        return self._database


def _make_database(url: str) -> Database:
    """Called in a thread: what it imports would block the event loop."""
    import nonet.stores.sql.dead_letters
    import nonet.stores.sql.mirror
    import nonet.stores.sql.outbox  # noqa: F401  # so that who needs them finds them imported
    from nonet.stores.sql.database import Database

    return Database(url)
