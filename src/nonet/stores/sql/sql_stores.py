"""`SqlStores`: what a namespace keeps in SQL. Its import takes long: it brings SQLAlchemy."""

from __future__ import annotations

from nonet.base.messages.encryption import Cipher
from nonet.stores.queue.broker import Broker
from nonet.stores.sql.audit import Audit
from nonet.stores.sql.database import Database, Schema, check
from nonet.stores.sql.dead_letters import DeadLetters
from nonet.stores.sql.letters import dlq_tasks
from nonet.stores.sql.mirror import Mirror, mirror
from nonet.stores.sql.outbox import Outbox, outbox_tasks
from nonet.stores.sql.schedules import ScheduleRows, schedules
from nonet.stores.sql.sync_database import SyncDatabase


class SqlStores:
    """The stores of one namespace in SQL; `nonet.stores.stores.Stores` documents them.

    Args:
        broker: the broker of the namespace.
        cipher: encrypts and decrypts the data of tasks.
        database: the open database; None: open that of the settings.
    """

    def __init__(self, broker: Broker, cipher: Cipher, database: Database | None) -> None:
        make = SyncDatabase if broker.transport.is_sync else Database
        namespace, url = broker.settings.namespace, broker.settings.sql_url
        self.database: Database = database or make(url())
        self.dead_letters: DeadLetters = DeadLetters(self.database, namespace, cipher)
        self.outbox: Outbox = Outbox(self.database, broker, namespace)
        self.mirror: Mirror = Mirror(self.database, namespace)
        self.audit: Audit = Audit(self.database, namespace)
        self.schedules: ScheduleRows = ScheduleRows(self.database, namespace)

    async def look_for_tables(self) -> None:
        """Check that the database answers and has all tables; raises as `Database.look_for`."""
        await self.database.look_for(dlq_tasks, outbox_tasks, mirror, schedules)

    async def state(self) -> str:
        """Return the state of the tables, see `nonet.rules.findings.servers.Server`.

        Raises:
            NonetError: the database does not answer.
        """
        state = await check(self.database.url)
        if state in (Schema.CURRENT, Schema.AHEAD):
            await self.dead_letters.list(limit=1)
        is_made_on_demand = self.database.url.startswith("sqlite")
        return "" if state is Schema.ABSENT and is_made_on_demand else str(state)
