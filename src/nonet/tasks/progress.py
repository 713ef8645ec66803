"""What the code of a task says of its progress, as it is stored and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Said = str | dict[str, Any]
"""What an attempt says it is doing: a text, or a mapping that JSON can hold."""

MOST_BYTES = 60
# Every change of a record writes all of it.
MOST_MAPPING_BYTES = 1024
# Begins a mapping in JSON among the texts (RFC 7464).
_MARK = "\x1e"


def stored_progress(fraction: Any, said: object) -> tuple[float | None, Said]:
    """Return a report of progress as it can be stored, whatever was reported.

    >>> stored_progress(1.2, {"files": 3, "bad": 1}), stored_progress(float("nan"), "half")
    ((1.0, {'files': 3, 'bad': 1}), (None, 'half'))
    """
    share: float | None
    try:
        share = float(fraction)
        share = min(max(share, 0.0), 1.0) if share == share else None  # nan is unknown
    except Exception:  # float() runs code of a foreign class
        share = None
    try:
        if isinstance(said, Mapping):
            if data := _small(said):
                return share, data
            said = one_line(said)
        text = ("" if said is None else str(said)).encode("utf-8", "backslashreplace")
    except Exception as error:  # so does str()
        text = f"({type(error).__name__} in its text)".encode()
    return share, text[:MOST_BYTES].decode(errors="ignore")


def one_line(said: str | Mapping[str, Any]) -> str:
    """Show what an attempt says as a text.

    >>> one_line({"files": 3, "bad": 1})
    'files=3 bad=1'
    """
    if isinstance(said, str):
        return said
    return " ".join(f"{name}={value}" for name, value in said.items())


def written(said: Said) -> str:
    """Return a text from which `read` makes the same."""
    return said if isinstance(said, str) else _MARK + msgspec.json.encode(said).decode()


def read(text: str) -> tuple[str, dict[str, Any] | None]:
    r"""Return the text to show, and the mapping if one was written.

    >>> read(written({"files": 3})), read("half"), read("\x1e{")
    (('files=3', {'files': 3}), ('half', None), ('\x1e{', None))
    """
    if text.startswith(_MARK):
        try:
            data = msgspec.json.decode(text[1:], type=dict[str, Any])
            return one_line(data), data
        except (msgspec.DecodeError, RecursionError):  # written by another program
            pass
    return text, None


def _small(said: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Copy a mapping as JSON can hold it; None if it cannot, or the mapping is too long."""
    try:
        encoded = msgspec.json.encode(dict(said))
    except Exception:  # iterating runs code of a foreign class, too
        return None
    return msgspec.json.decode(encoded) if len(encoded) <= MOST_MAPPING_BYTES else None
