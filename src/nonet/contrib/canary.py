"""A task that does nothing but end: whether a deployment runs any, asked with ``helm test``.

It is not registered by itself; ``NONET_TASKS=nonet.contrib.canary`` (or ``--tasks``) does so, for
workers and for who submits it.

Example:
    $ task-run submit canary:Canary --label size=large --start-by 60 --wait 60
    "worker-large-6c5d"
"""

from __future__ import annotations

import socket

from nonet.base.streams import Priority, Size
from nonet.tasks.task import BaseTask

__all__ = ["Canary"]


class Canary(BaseTask):
    """Returns the host name of the worker that ran it.

    It goes before other work, and takes no lock; the label ``size`` chooses the workers.

    Example:
        run = await run_inline(Canary())
        print(f"it ran on {run.result}")
    """

    priority = Priority.REALTIME
    size = Size.SMALL

    async def execute(self) -> str:
        """The host name of this process."""
        return socket.gethostname()
