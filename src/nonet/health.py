"""What a daemon tells probes of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Report:
    """Whether a daemon can do its work now.

    Attributes:
        reasons: why it is not ready, for people.
        details: more, as JSON can hold it.
    """

    ready: bool
    reasons: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
