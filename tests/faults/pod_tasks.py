"""Tasks for workers in pods: each size, with and without a lock, and one that fails once."""

from __future__ import annotations

from dataclasses import dataclass

from faults.fault_tasks import Timed

from nonet import Size


@dataclass
class MediumTimed(Timed):
    """In a child process that is used again."""

    size = Size.MEDIUM


@dataclass
class LargeTimed(Timed):
    """In a child process of its own."""

    size = Size.LARGE
