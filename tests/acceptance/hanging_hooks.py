"""A start-up hook that hangs in its thread the first time."""

from __future__ import annotations

import os
from pathlib import Path

from acceptance.probe_tasks import Small, passed_blocking

from nonet import startup_hook


@startup_hook
def hangs() -> None:
    """Waits at the gate ``gate`` unless it was called before."""
    called = Path(os.environ["PROBE_JOURNAL"]).with_name("hooks")
    if not called.exists():
        called.write_text("hangs")
        passed_blocking(str(called.with_name("gate")))


class Idle(Small):
    """A module of tasks has at least one."""

    async def execute(self) -> None: ...
