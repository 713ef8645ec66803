"""A task that only returns a host name, to test a deployment, for example with ``helm test``.

Register it with ``NONET_TASKS=nonet.contrib.canary`` (or ``--tasks``), for the workers and for the
program that submits it.

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

    It has realtime priority and takes no lock. The label ``size`` selects the workers to test.

    Example:
        run = await run_inline(Canary())
        print(f"it ran on {run.result}")
    """

    priority = Priority.REALTIME
    size = Size.SMALL

    async def execute(self) -> str:
        """Return the host name of this process."""
        return socket.gethostname()
