"""The virtual organisations that this package serves; the configuration may add others."""

from __future__ import annotations

VOS = ["gridpp", "lhcb"]
