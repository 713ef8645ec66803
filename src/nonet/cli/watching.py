"""Show something once, or anew every few seconds until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nonet.base.errors import ServerUnreachableError
from nonet.cli.output import clear_screen, echo
from nonet.daemon.service import until_signal

_REFRESH_SECONDS = 2.0
_Found = TypeVar("_Found")


async def show(
    read: Callable[[], Awaitable[_Found]],
    display: Callable[[_Found], None],
    *,
    watch: bool,
    as_json: bool,
) -> None:
    """Read and display something; with `watch` again and again, also after an outage of Redis."""

    async def repeat() -> None:
        while True:
            try:
                found = await read()
            except ServerUnreachableError as error:
                echo(f"{error}; trying again", err=True)
            else:
                if not as_json:
                    clear_screen()
                display(found)
            await asyncio.sleep(_REFRESH_SECONDS)

    if watch:
        await until_signal(repeat())
    else:
        display(await read())
