"""The console script ``task-worker``: it heeds signals before it imports what takes long.

The import of Nonet and of the tasks takes a second or more. A SIGHUP in it (replace all workers)
would end a fleet that has just been started, and a SIGTERM would leave no exit code.
"""

import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from nonet.daemon.starting import collect_later, end_on_sigterm

_OF_A_FLEET = ("--min", "--max")


def _is_fleet(arguments: Sequence[str]) -> bool:
    return any(argument.partition("=")[0] in _OF_A_FLEET for argument in arguments)


def main() -> None:
    """Entry point. One worker has nothing to replace: SIGHUP ends it as any other process."""
    end_on_sigterm()
    if _is_fleet(sys.argv[1:]):
        # All workers are started after the fleet has set its handler, and so are new.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    collect_later()
    plain_worker = import_module("nonet.cli.daemons.plain_worker")
    if (found := plain_worker.read(sys.argv[1:])) is not None:
        plain_worker.work(found)
    import_module("nonet.cli.daemons.worker").main()  # typer reads the line
