"""``manage.py task_worker``."""

from __future__ import annotations

from nonet.contrib.django.management.passing import PassingCommand


class Command(PassingCommand):
    """See its help."""

    help = "Run tasks of one size until SIGTERM; the options are those of task-worker."
    program = "task-worker"
