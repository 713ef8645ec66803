"""The version number of the format of tasks. Raise `FORMAT` when older code could not read it.

The number covers all of a task: its envelope, its record and the keys beside it. The envelope
begins with it; a record has it in field ``v``, from the term ``format|N`` of the submission, or is
of format 1. The scripts have it as ``FORMAT`` in ``scripts/lib/record.lua``.

Every format keeps the beginning of an envelope (number, id, name) and the fields of a record that
move it between queues (state, gen, ticket, stream, name, pointer, due and owner). So older code can
hand on a task that it cannot read. A new field that older code may ignore needs no new number.
"""

from __future__ import annotations

FORMAT = 1


def format_problem(format: int) -> str:
    """Return why tasks of a format cannot be read here, and what to do; empty if they can.

    The text has at most 60 characters, as the record of a task keeps it.

    >>> format_problem(FORMAT)
    ''
    >>> format_problem(FORMAT + 1)
    'task format 2, read here up to 1: upgrade the workers'
    """
    if format > FORMAT:
        return f"task format {format}, read here up to {FORMAT}: upgrade the workers"
    return ""
