"""Tasks of a fleet that run in child processes."""

from __future__ import annotations

from dataclasses import dataclass

from acceptance.probe_tasks import BlockingThread

from nonet import Isolation


@dataclass
class FreshThread(BlockingThread):
    """A task whose child process does not end by itself when its worker has died."""

    isolation = Isolation.FRESH
