"""Tasks that real daemons run as steps of random workflows, and that write down what they do."""

from __future__ import annotations

import asyncio
import random
from dataclasses import field
from typing import Any

from acceptance.probe_tasks import is_open, note
from workflows.flow_tasks import Small

from nonet import ExponentialBackoff, StopRetrying, context
from nonet.tasks.steps import Edge, Step


class Play(Small):
    """Ends as its kind says, and adds steps.

    Args:
        kind: ``good``; ``flaky``: fails once; ``bad``: fails for good; ``mended``: so until the
            gate is open.
        adds: steps, each with its edges from those before it, its kind and what it adds.
    """

    kind: str
    adds: list[Any] = field(default_factory=list)
    gate: str = ""
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=20)

    async def execute(self) -> str:
        note("start")
        await asyncio.sleep(random.uniform(0.01, 0.1))
        if self.kind == "flaky" and context().attempt == 1:
            raise ValueError("not yet")
        if self.kind == "bad" or (self.kind == "mended" and not is_open(self.gate)):
            note("end")
            raise StopRetrying("as told")
        steps: list[Step[Any]] = []
        for edges, kind, adds in self.adds:
            after = [Edge(steps[number], letter) for letter, number in edges]
            steps.append(context().add_step(Play(kind, adds, self.gate), after=after))
        context().ensure_lease()
        note("end")
        return self.kind
