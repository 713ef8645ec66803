"""``manage.py task_run``."""

from __future__ import annotations

from nonet.contrib.django.management.passing import PassingCommand


class Command(PassingCommand):
    """See its help."""

    help = "Look at tasks and change them; the commands are those of task-run."
    program = "task-run"
