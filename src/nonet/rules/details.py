"""Details that tasks may put secrets in: what remains of an error without its text. Pure."""

from __future__ import annotations

import re

HIDDEN = "(hidden: it needs the permission 'details')"

_TYPE = re.compile(r"[^\W\d][\w.]*(?=:|$)")


def error_type(line: str) -> str:
    """Return the type of an error that is written as ``Type: text``, or `HIDDEN`.

    >>> error_type("ValueError: the password is hunter2"), error_type("")
    ('ValueError', '')
    >>> error_type("its process was killed")
    "(hidden: it needs the permission 'details')"
    """
    found = _TYPE.match(line)
    return found[0] if found else HIDDEN if line else ""
