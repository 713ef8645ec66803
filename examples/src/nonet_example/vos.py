"""The virtual organisations that this package serves; the configuration may name more."""

from __future__ import annotations

VOS = ["gridpp", "lhcb"]
