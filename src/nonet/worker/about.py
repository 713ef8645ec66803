"""What a worker says of itself with each beat: short, as it is said for as long as it lives."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nonet.messages.message import VERSION
from nonet.stores.queue.leases import Said
from nonet.tasks.registry import Registry
from nonet.worker.children.processes import all_resident
from nonet.worker.lag import Culprit


class About:
    """Puts together what is said; asked in the thread that beats.

    Args:
        registry: the classes that this process knows.
        describe: what changes from beat to beat, for people.
        lag: for how many seconds the event loop did not answer since this was asked before.
        children: ids of the processes whose memory is told with that of this one.

    Attributes:
        off: why this worker takes nothing, or empty.
        resident: memory that was told with the last beat, in bytes.
    """

    def __init__(
        self,
        registry: Registry,
        describe: Callable[[], Mapping[str, Any]],
        lag: Callable[[], float],
        children: Callable[[], Iterable[int]],
    ) -> None:
        self.off = ""
        self.resident = 0
        self._describe = describe
        self._lag = lag
        self._children = children
        self._since = round(time.time(), 3)
        self._versions = registry.versions()
        self._knows = knowledge(self._versions)
        self._counts: Counter[str] = Counter()

    def say(self) -> Said:
        """What is said with this beat."""
        counts, self._counts = self._counts, Counter()
        self.resident = all_resident([os.getpid(), *self._children()])
        info = {
            **self._describe(),
            "since": self._since,
            "rss": self.resident,
            "lag_ms": round(self._lag() * 1000),
        }
        text = json.dumps(info, separators=(",", ":"))
        return Said(text, self.off, self._versions, self._knows, counts)

    def blocked(self, culprit: Culprit) -> None:
        """Count that the event loop was blocked, and by which class of ours; from any thread."""
        counted = {"loop:blocked": 1, **({f"blocked:{culprit.task}": 1} if culprit.task else {})}
        self._counts.update(counted)


def knowledge(versions: Mapping[str, str]) -> str:
    """Which envelopes a worker reads, and a digest of the classes that it knows.

    >>> knowledge({"files:Audit": "1.4"}) == knowledge({"files:Audit": "1.5"})
    False
    >>> knowledge({}).partition("-")[0]
    '1'
    """
    known = "\n".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return f"{VERSION}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
