"""The facts that a worker publishes about itself with each beat."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nonet.base.messages.formats import FORMAT
from nonet.stores.queue.leases import BeatReport
from nonet.worker.children.process_usage import all_resident
from nonet.worker.lag import Culprit


class About:
    """Collects the facts that a worker publishes. The watchdog's thread calls `say`.

    Args:
        versions: the classes that this worker takes, each with the version of its distribution.
        describe: returns facts for operators that change from beat to beat.
        lag: returns the longest time, in seconds, that the event loop took to respond since the
            previous call.
        children: returns the ids of the processes whose memory counts as the worker's.
        keys: digest of its encryption keys, see `base.messages.encryption`; empty: it has none.
        tenants: returns how many attempts run, by tenant; empty: none run, or tenants are not
            distinguished.

    Attributes:
        off: why this worker takes no tasks, or empty.
        resident: resident memory published with the last beat, in bytes.
    """

    def __init__(
        self,
        versions: Mapping[str, str],
        describe: Callable[[], Mapping[str, Any]],
        lag: Callable[[], float],
        children: Callable[[], Iterable[int]],
        keys: str = "",
        tenants: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.off = ""
        self.resident = 0
        self._describe = describe
        self._lag = lag
        self._children = children
        self._tenants = tenants
        self._since = round(time.time(), 3)
        self._versions = versions
        self._knows = knowledge(self._versions, keys)
        self._counts: Counter[str] = Counter()

    def say(self) -> BeatReport:
        """Return what to publish with this beat."""
        counts, self._counts = self._counts, Counter()
        self.resident = all_resident([os.getpid(), *self._children()])
        info = {
            **self._describe(),
            "since": self._since,
            "rss": self.resident,
            "lag_ms": round(self._lag() * 1000),
            **({"tenants": tenants} if (tenants := self._tenants()) else {}),
        }
        text = json.dumps(info, separators=(",", ":"))
        return BeatReport(text, self.off, self._versions, self._knows, counts)

    def blocked(self, culprit: Culprit) -> None:
        """Count a blocked event loop, and the task class that blocked it; from any thread."""
        counted = {"loop:blocked": 1, **({f"blocked:{culprit.task}": 1} if culprit.task else {})}
        self._counts.update(counted)


def knowledge(versions: Mapping[str, str], keys: str = "") -> str:
    """Return the format that a worker reads, its keys, and a digest of the classes it knows.

    A task that a worker has handed on is offered to workers that read other formats, have other
    keys or know another version of its class.

    >>> knowledge({"files:Audit": "1.4"}) == knowledge({"files:Audit": "1.5"})
    False
    >>> knowledge({}).partition("-")[0], knowledge({}, "5c0e").partition("-")[0]
    ('1', '1.5c0e')
    """
    known = "\n".join(f"{name} {version}" for name, version in sorted(versions.items()))
    reads = f"{FORMAT}.{keys}" if keys else f"{FORMAT}"
    return f"{reads}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
