"""Dead letters: ``/api/v1/dead-letters`` and their pages."""

from nonet.web.resources.dead_letters.pages import pages
from nonet.web.resources.dead_letters.routes import api

__all__ = ["api", "pages"]
