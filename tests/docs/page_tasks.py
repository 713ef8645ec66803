"""The tasks that examples of the configuration on pages name: those of a web service."""

from __future__ import annotations

from dataclasses import dataclass

from nonet import BaseTask, PeriodicVoAwareBaseTask, Size
from nonet.tasks.schedules import CronSchedule


@dataclass
class SendInvoice(BaseTask):
    """Mails an invoice."""

    number: int
    size = Size.SMALL

    async def execute(self) -> None:
        """Not executed: only its name and its attributes count."""


@dataclass
class NightlyReport(PeriodicVoAwareBaseTask):
    """Makes the report of a tenant."""

    vo: str
    region: str = "all"
    size = Size.SMALL
    _schedule = CronSchedule("@daily")

    async def execute(self) -> None:
        """Not executed either."""
