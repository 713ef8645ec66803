"""``manage.py task_scheduler``."""

from __future__ import annotations

from nonet.contrib.django.management.passing import PassingCommand


class Command(PassingCommand):
    """See its help."""

    help = "Submit periodic and delayed tasks; the options are those of task-scheduler."
    program = "task-scheduler"
