"""Tasks: ``/api/v1/tasks`` and their pages."""

from nonet.web.resources.tasks.pages import pages
from nonet.web.resources.tasks.routes import api

__all__ = ["api", "pages"]
