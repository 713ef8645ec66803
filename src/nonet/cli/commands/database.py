"""``task-run db``: the tables of the SQL database."""

from __future__ import annotations

import typer

from nonet.base.errors import masked
from nonet.cli.options import Json
from nonet.cli.output import echo, print_answer
from nonet.cli.target import Target, operation
from nonet.daemon.service import ExitCode
from nonet.stores.sql import database as sql

app = typer.Typer(
    help="Create, migrate and check the tables of the SQL database.", rich_markup_mode=None
)

_NEXT_STEP = {
    "absent": "run 'task-run db upgrade' to create its tables",
    "behind": "run 'task-run db upgrade' to migrate its tables",
    "ahead": "a newer version of Nonet migrated it: that is fine after a roll-back; otherwise "
    "upgrade this installation",
}


@app.command()
@operation
async def upgrade(target: Target, as_json: Json = False) -> None:
    """Create the tables, or migrate them to this version; safe to repeat.

    The database is NONET_DB_URL or, without it, a SQLite file in the state directory.

    Exit codes: 0 done, 3 SQL unreachable.

    \b
    task-run db upgrade
    """

    url = target.settings().sql_url()
    revision = await sql.upgrade(url)
    _report(as_json, url, f"is at revision {revision}", revision=revision)


@app.command()
@operation
async def check(target: Target, as_json: Json = False) -> int:
    """Check whether the tables fit this version.

    Exit codes: 0 the tables fit, 1 they do not.

    \b
    task-run db check
    """

    url = target.settings().sql_url()
    state = str(await sql.check(url))
    _report(as_json, url, f"is {state}", state=state)
    if state == "current":
        return ExitCode.OK
    echo(_NEXT_STEP[state], err=True)
    return ExitCode.FAILED


def _report(as_json: bool, url: str, sentence: str, **fields: str) -> None:
    print_answer({"url": masked(url), **fields}, f"{masked(url)} {sentence}", as_json)
