"""``task-run db``: the tables of the SQL database."""

from __future__ import annotations

import typer

from nonet.base.errors import masked
from nonet.cli.common import Debug, Json, Namespace, StateDir, run, settings_options
from nonet.cli.output import print_json
from nonet.daemon.service import ExitCode

app = typer.Typer(help="Create, migrate and check the tables of the SQL database.")

_NEXT_STEP = {
    "absent": "run 'task-run db upgrade' to create its tables",
    "behind": "run 'task-run db upgrade' to migrate its tables",
    "ahead": "a newer version of Nonet migrated it: fine after a roll-back, else upgrade this "
    "installation",
}


@app.command()
def upgrade(
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Create the tables, or migrate them to this version; safe to repeat.

    Of NONET_DB_URL; without it the SQLite file under the state directory. Exit code 3: SQL
    unreachable.
    """

    async def command() -> int:
        from nonet.stores.sql import database as sql  # SQL costs 170 ms to import

        url = _url(namespace, state_dir)
        revision = await sql.upgrade(url)
        _report(as_json, url, f"is at revision {revision}", revision=revision)
        return ExitCode.OK

    run(debug, command)


@app.command()
def check(
    as_json: Json = False,
    namespace: Namespace = None,
    state_dir: StateDir = None,
    debug: Debug = False,
) -> None:
    """Say whether the tables fit this version. Exit codes: 0 they do, 1 they do not."""

    async def command() -> int:
        from nonet.stores.sql import database as sql

        url = _url(namespace, state_dir)
        state = str(await sql.check(url))
        _report(as_json, url, f"is {state}", state=state)
        if state == "current":
            return ExitCode.OK
        typer.echo(_NEXT_STEP[state], err=True)
        return ExitCode.FAILED

    run(debug, command)


def _url(namespace: Namespace, state_dir: StateDir) -> str:
    from nonet.config.settings import load_settings

    return load_settings(**settings_options(None, namespace, state_dir)).sql_url()


def _report(as_json: bool, url: str, sentence: str, **fields: str) -> None:
    if as_json:
        print_json({"url": masked(url), **fields})
    else:
        typer.echo(f"{masked(url)} {sentence}")
