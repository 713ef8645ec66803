"""The format in which tasks are written: raise `FORMAT` here when code of before could not read it.

One number for all that a task is made of: its envelope, its record and the keys beside that. The
envelope begins with it; a record has it in its field ``v``, and is of format 1 if it has none. The
scripts know it as ``FORMAT`` in ``scripts/lib/record.lua``.

Every format keeps how an envelope begins (number, id, name) and what moves a record from place to
place (the fields state, gen, ticket, stream, name, pointer, due and owner), so that older code can
hand a task on that it cannot read. A field that older code may ignore needs no new number.
"""

from __future__ import annotations

FORMAT = 1
# Tasks of this format and later ones are read. What is older waits, and is never thrown away: raise
# it only in a release that says so, after one whose workers have read both.
OLDEST_FORMAT = 1


def format_problem(format: int) -> str:
    """Why tasks of a format cannot be read here, and what to do, in 60 characters; or empty.

    >>> format_problem(FORMAT)
    ''
    >>> format_problem(FORMAT + 1)
    'task format 2, read here up to 1: upgrade the workers'
    """
    if format > FORMAT:
        return f"task format {format}, read here up to {FORMAT}: upgrade the workers"
    if format < OLDEST_FORMAT:
        return f"task format {format}, read here from {OLDEST_FORMAT}: keep an older worker"
    return ""
