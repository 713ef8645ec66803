"""Overflow hooks for the tests: what they receive goes to a file beside the journal."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time

from nonet.tasks.overflow import Overflow


def note(overflow: Overflow) -> None:
    """Write down what is missing."""
    line = json.dumps(dataclasses.asdict(overflow))
    with open(f"{os.environ['PROBE_JOURNAL']}.overflow", "a") as file:
        file.write(line + "\n")


async def note_later(overflow: Overflow) -> None:
    """The same, as a coroutine."""
    await asyncio.sleep(0)
    note(overflow)


def fails(overflow: Overflow) -> None:
    """Write it down and break."""
    note(overflow)
    raise SystemExit("the platform is away")


def hangs(overflow: Overflow) -> None:
    """Write it down and never come back."""
    note(overflow)
    time.sleep(3600)
