"""The tasks of `confiding_tasks`, encrypted; each as ``encrypted_tasks:NAME``."""

from __future__ import annotations

from typing import Any

from acceptance import confiding_tasks as plain


def _encrypted(of: Any, **others: Any) -> Any:
    """A class of the same name."""
    return type(of.__name__, (of,), {"__module__": __name__, "encrypted": True, **others})


Echo, EchoInChild, Kept, Late = map(
    _encrypted, (plain.Echo, plain.EchoInChild, plain.Kept, plain.Late)
)
Fails, FailsInChild, FailsQuietly = map(
    _encrypted, (plain.Fails, plain.FailsInChild, plain.FailsQuietly)
)
Dies, Saves, Report = map(_encrypted, (plain.Dies, plain.Saves, plain.Report))
Parent = _encrypted(plain.Parent, child=Echo, callback=Report)
