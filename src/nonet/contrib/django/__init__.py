"""Nonet in a Django project: settings, submissions, checks, commands. Needs the extra ``django``.

Add ``"nonet.contrib.django"`` to ``INSTALLED_APPS``; ``NONET = {"REDIS_URL": …}`` are its settings.

    settings      NONET, and the modules named tasks of all applications
    submitting    submit_on_commit; opens the application that .schedule_sync() uses
    checks        the checks of manage.py check
    discovery     the module that daemons load: sets Django up, and names the modules with tasks
    connections   closes database connections around attempts
    management    manage.py task_worker, task_scheduler, task_run
"""

from __future__ import annotations

from nonet.contrib.django.submitting import submit_on_commit

__all__ = ["submit_on_commit"]
