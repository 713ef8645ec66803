"""The application of Django that ``INSTALLED_APPS`` names."""

from __future__ import annotations

from django.apps import AppConfig

from nonet.contrib.django.settings import apply_settings
from nonet.contrib.django.submitting import project
from nonet.tasks.task import sync_submitters


class NonetConfig(AppConfig):
    """Applies the settings of the project, registers the checks, and lets tasks be submitted."""

    name = "nonet.contrib.django"
    label = "nonet"
    verbose_name = "Nonet"

    def ready(self) -> None:
        """Called by Django when all applications are loaded."""
        apply_settings()
        from nonet.contrib.django import checks  # noqa: F401  # registers them, needs the settings

        sync_submitters.append(project)
