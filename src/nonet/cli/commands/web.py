"""``task-run web``: users, tokens and links of the dashboard."""

from __future__ import annotations

import getpass
import hashlib
import json
import re
import secrets
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from nonet.base.actor import who
from nonet.base.durations import span
from nonet.base.errors import ConfigurationError
from nonet.cli.durations import duration
from nonet.cli.output import echo, print_line
from nonet.cli.process import is_at_terminal
from nonet.cli.target import Target, operation
from nonet.config.web_settings import WebSettings
from nonet.rules.permissions import Role
from nonet.web.access.passwords import PasswordHash
from nonet.web.access.secret import find_secret

app = typer.Typer(help="The dashboard: users, tokens, and links to log in.", rich_markup_mode=None)

_SHORTEST = 8
_NAME = r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}"

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user or token.")]
_Role = Annotated[
    Role, typer.Option(help="What it may do: see 'Secure the dashboard' in the docs.")
]
_Namespaces = Annotated[
    list[str] | None,
    typer.Option("--namespace", metavar="NAME", help="Only there. Repeatable; default: all."),
]


@app.command()
def password(name: _Name, role: _Role = Role.VIEWER, namespaces: _Namespaces = None) -> None:
    """Ask for a password, and print the line of a user for the file NONET_WEB_USERS.

    Without a terminal the password is the first line of stdin. Only its scrypt hash is printed.

    \b
    task-run web password alice --role admin
    """

    _check_name(name)
    hashed = str(PasswordHash.of(_read_password()))
    _print_line("users", _holder(name, role, namespaces) | {"password": hashed})


@app.command()
def token(
    name: _Name,
    role: _Role = Role.SUBMITTER,
    namespaces: _Namespaces = None,
    expires: Annotated[
        timedelta | None,
        typer.Option(metavar="DURATION", parser=duration, help="It ends after this time: 90d."),
    ] = None,
) -> None:
    """Make a token for a program, and print its line for the file NONET_WEB_USERS.

    The token itself is printed on stderr, this once. Programs send it as 'Authorization: Bearer
    TOKEN'.

    \b
    task-run web token ci --role submitter --expires 90d
    """
    _check_name(name)
    secret = f"nonet_{secrets.token_urlsafe(32)}"
    line = _holder(name, role, namespaces)
    line["sha256"] = hashlib.sha256(secret.encode()).hexdigest()
    if expires:
        line["expires"] = (datetime.now(UTC) + expires).strftime("%Y-%m-%dT%H:%M:%SZ")
    echo(f"the token, which is shown only now: {secret}", err=True)
    _print_line("tokens", line)


@app.command()
@operation
async def link(
    target: Target,
    read_only: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION", parser=duration, help="Log in viewers, for this long: 8h, 7d."
        ),
    ] = None,
) -> None:
    """Print a link by which one browser logs in to task-web as an admin, within ten minutes.

    With --read-only any number of browsers log in as viewers, until the link ends, and their
    sessions with it.

    It starts with NONET_WEB_URL, or with the address of NONET_WEB_HOST and NONET_WEB_PORT. Use it
    when no admin can log in. It needs Redis and the secret of task-web: run it on the machine of
    task-web, or set NONET_WEB_SECRET.

    \b
    task-run web link
    task-run web link --read-only 7d
    """
    from nonet.web.access.links import new_link  # it imports redis

    web = WebSettings.load()
    if not web.links:
        raise ConfigurationError("NONET_WEB_LINKS is 0: task-web accepts no links; set it to 1")
    secret = find_secret(web, target.settings().state_dir)
    seconds = read_only.total_seconds() if read_only is not None else 0.0
    if read_only is not None and seconds <= 0:  # a link without an end would be an admin's
        raise typer.BadParameter("--read-only: give a time of more than 0 s, such as 8h")
    async with target.stores() as stores:
        made = await new_link(stores.sessions(secret), web.address, who(), seconds)
        kind = f"read-only, for {span(seconds)}" if seconds else "of an admin, once"
        await stores.events.log("web-link", who(), kind)
    echo(made)


def _holder(name: str, role: Role, namespaces: list[str] | None) -> dict[str, Any]:
    line: dict[str, Any] = {"name": name, "role": role.value}
    return line | ({"namespaces": namespaces} if namespaces else {})


def _check_name(name: str) -> None:
    if not re.fullmatch(_NAME, name):
        raise typer.BadParameter(
            f"{name!r} is not a name: it may have letters, digits and . _ @ + -"
        )


def _read_password() -> str:
    if is_at_terminal():
        found = getpass.getpass("Password: ")
        if found != getpass.getpass("Again: "):
            raise typer.BadParameter("the two passwords differ: try again")
    else:
        found = sys.stdin.readline().rstrip("\r\n") if sys.stdin else ""
    if len(found) < _SHORTEST:
        raise typer.BadParameter(f"the password is too short: take at least {_SHORTEST} characters")
    return found


def _print_line(kind: str, line: dict[str, Any]) -> None:
    """Print an item of a list of the file; JSON is YAML, and quotes what needs it."""
    print_line(f"add this line below '{kind}:' in the file that NONET_WEB_USERS names:", err=True)
    echo(f"  - {json.dumps(line)}")
