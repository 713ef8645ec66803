"""The identity of periodic entries, and which names schedules of programs may have. Pure."""

from __future__ import annotations

from nonet.base import keys

DATABASE = "database"
"""The origin of an entry that a program made."""


def key_of(task: str, vo: str, name: str) -> str:
    """Return the identity of an entry."""
    return f"{task}|{keys.escape(vo)}|{keys.escape(name)}"


def name_problem(id: str, origin: str) -> str:
    """Return why a schedule of a program cannot have this id."""
    where = "the class itself" if origin == "class" else origin
    return (
        f"{where} has an entry named {id!r}, which takes precedence over the schedule in the "
        "database: choose another id for that, and remove this one"
    )
