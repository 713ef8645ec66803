"""Commands that the product prints, pasted into a shell."""

from __future__ import annotations

import asyncio
import os
import re
from asyncio.subprocess import PIPE
from collections.abc import Iterable

# redis-cli succeeds although Redis has refused a command.
_REFUSAL = re.compile(rb"^[A-Z]+ .*", re.MULTILINE)


async def paste(commands: Iterable[str], redis_url: str) -> None:
    """Run ``redis-cli`` commands as they were printed. Each must succeed.

    Args:
        redis_url: what the shell has as ``NONET_REDIS_URL``.
    """
    shell = await asyncio.create_subprocess_exec(
        *("sh", "-e"),
        env={**os.environ, "NONET_REDIS_URL": redis_url},
        **dict.fromkeys(("stdin", "stdout", "stderr"), PIPE),
    )
    said, problem = await shell.communicate("\n".join(commands).encode())
    refused = _REFUSAL.findall(said)
    assert shell.returncode == 0 and not refused, (refused, problem)
