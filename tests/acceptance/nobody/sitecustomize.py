"""In a process with this directory in PYTHONPATH its user has no home and no passwd entry."""

import os
import pwd
from typing import NoReturn


def _unknown(key: object) -> NoReturn:
    raise KeyError(f"user not found: {key}")


os.environ.pop("HOME", None)
pwd.getpwuid = pwd.getpwnam = _unknown
