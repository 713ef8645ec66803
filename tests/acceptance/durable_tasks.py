"""Probe tasks whose submissions are kept in SQL."""

from __future__ import annotations

from acceptance import probe_tasks


class Kept(probe_tasks.Quick):
    """Does nothing and says so."""

    durable = True


class KeptBrief(probe_tasks.Brief):
    """Takes a moment."""

    durable = True


class KeptGated(probe_tasks.Gated):
    """Runs until the test opens its gate."""

    durable = True


class KeptMutex(probe_tasks.GatedMutex):
    """A gated task under a mutex: one runs, the others wait."""

    durable = True


class KeptBuried(probe_tasks.Buried):
    """Fails for good and becomes a dead letter."""

    durable = True
