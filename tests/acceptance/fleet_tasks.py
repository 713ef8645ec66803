"""Tasks of a fleet that run in child processes."""

from __future__ import annotations

from dataclasses import dataclass

from acceptance.probe_tasks import BlockingThread, GatedMutex

from nonet import Isolation


@dataclass
class FreshMutex(GatedMutex):
    """A gated task under a mutex, in a child process of its own."""

    isolation = Isolation.FRESH


@dataclass
class FreshThread(BlockingThread):
    """A task whose child process does not end by itself when its worker has died."""

    isolation = Isolation.FRESH
