"""Deliberate errors in the scripts, each of which a batch of damages must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Text of a script that is replaced.

    Attributes:
        script: its name; empty: all.
        is_ours: it is broken in the process that asks, instead of the daemons.
    """

    name: str
    script: str
    old: str
    new: str
    is_ours: bool = False


FAULTS = (
    Fault(
        "the walk overlooks what is wrong with a record",
        "mend",
        "if damage_in(record) or not record.b and redis.call('EXISTS', P .. 'b:' .. id) == 0 then",
        "if false then",
    ),
    Fault("the walk overlooks groups", "mend", "mend_group(id, 3 * lease)", ""),
    Fault(
        "nothing is kept of a damaged task",
        "",
        "keep_in_quarantine('damaged: ' .. problem, id, key or '', entry or '', #bytes, bytes)",
        "'0-0'",
    ),
    Fault(
        "nobody is told how a damaged task has ended",
        "",
        "finish(id, known, 'dead',",
        ";(function() redis.call('DEL', P .. 't:' .. id) end)(id, known, 'dead',",
    ),
    Fault(
        "unknown tasks are not counted",
        "",
        "redis.pcall('HINCRBY', P .. 'counters', 'tasks:unknown', 1)",
        "",
    ),
    Fault(
        "a fetch that meets damage fails as a whole",
        "fetch",
        "fine, problem = pcall(general().examine, source, item[1], item[2])",
        "general().examine(source, item[1], item[2])",
    ),
    Fault(
        "who explains a task takes it for whole", "explain", "if damage then", "if false then", True
    ),
)
