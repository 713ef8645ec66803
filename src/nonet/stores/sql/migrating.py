"""Migrate and compare the tables of a database, with alembic: it takes 0.1 s to import."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from nonet.base.errors import ConfigurationError, masked

VERSION_TABLE = "nonet_alembic_version"
AHEAD = "ahead"


def made_config(url: str) -> Config:
    """Return the configuration of the migrations of a database."""
    config = Config()
    config.set_main_option("script_location", "nonet.stores.sql:migrations")
    config.attributes["version_table"] = VERSION_TABLE
    config.attributes["url"] = masked(url)
    return config


def upgrade(connection: sa.Connection, config: Config) -> str:
    """Create or migrate the tables; return the revision."""
    _hold_schema(connection)
    if state(connection, config) == AHEAD:
        raise ConfigurationError(
            f"database {config.attributes['url']} was migrated by a newer version of Nonet: "
            "upgrade this installation"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return str(_revision(connection))


def upgrade_or_leave(connection: sa.Connection, config: Config) -> str:
    """Upgrade, unless a newer release has migrated the tables."""
    if state(connection, config) == AHEAD:
        return str(_revision(connection))
    return upgrade(connection, config)


def state(connection: sa.Connection, config: Config) -> str:
    """Return the value of a `nonet.stores.sql.database.Schema`."""
    scripts = ScriptDirectory.from_config(config)
    revision = _revision(connection)
    if revision is None:
        return "absent"
    if revision == scripts.get_current_head():
        return "current"
    known = {script.revision for script in scripts.walk_revisions()}
    return "behind" if revision in known else AHEAD


def _revision(connection: sa.Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _hold_schema(connection: sa.Connection) -> None:
    """Lock the schema against other migrations until this transaction or connection ends."""
    match connection.dialect.name:
        case "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        case "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('nonet_schema'))")
        case _:
            held = connection.exec_driver_sql("SELECT GET_LOCK('nonet_schema', 60)").scalar()
            if held != 1:
                raise TimeoutError("another process has been migrating it for 60 s")
