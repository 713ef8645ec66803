"""The scripts of workflows cut after each of their calls: nothing is lost or runs early."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from acceptance.contention import scales
from calls import settle_args
from servers import RedisServer
from stores.machines.cutting import LEASE, MEND, PROMOTE, Call, Fleet, cuts
from stores.machines.faults import FEW_EDGES
from stores.machines.queue_machine import KEEPING, LOCK_TTL
from stores.machines.site import PREFIX, Fault, Site

CAUSE = re.compile(r"cancelled: step (\S+) failed")


@dataclass
class Expected:
    """How each step and the workflow end, by place, and which steps run afterwards."""

    states: dict[str, str]
    runs: set[str]


Prepared = tuple[Call, Expected]


def staged(*graph: str) -> Call:
    """The call that submits a workflow, with the predecessors of each step."""
    letters: dict[str, set[str]] = {}
    for edge in " ".join(graph).replace("event", "").split():
        letters.setdefault(edge[1:], set()).add(edge[0])
    rows = [
        part
        for n, after in enumerate(graph)
        for part in row(str(n), after, letters.get(str(n), ()))
    ]
    about = ("w", "title", "", len(graph), 60_000, 600_000, 1, 1, len(graph), 0)
    return ("workflow_stage", KEEPING, *about, *rows)


def row(place: str, after: str, letters: object = ()) -> tuple[object, ...]:
    """The arguments of one step; the last of its predecessors is an event if it is named so."""
    after, is_event, _ = after.partition("event")
    after = after.strip()
    edges = "".join(sorted(str(letter) for letter in letters)) or "-"  # type: ignore[attr-defined]
    any_failed = "1" if "f" in after else "-"
    terms = f"step w {edges} {any_failed} - {after}".rstrip()
    name = "await:go" if is_event else "m:Task"
    return (f"w:{place}", name, "normal:small", 0, "", "e", "", terms)


def adding(fleet: Fleet, settled: list[str], *rows: tuple[object, ...]) -> Call:
    """Settle a step that has added others."""
    steps = (part for each in rows for part in each)
    args = settle_args(settled[:5], "done", "document", "text", 0, 1, len(rows), *steps)
    return ("settle", KEEPING, LOCK_TTL // 1000, *args)


def started(fleet: Fleet, *graph: str) -> list[str]:
    """Submit a workflow and fetch its first step."""
    fleet.run(*staged(*graph))
    (first,) = fleet.fetch()
    fleet.executed.clear()
    return first


def a_submission(fleet: Fleet) -> Prepared:
    states = {"0": "done", "1": "done", "2": "cancelled", "3": "done", "": "done"}
    return staged("", "s0", "f0", "a2"), Expected(states, {"0", "1", "3"})


def a_success(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0", "s0", "s1 s2", "f0")
    states = {**dict.fromkeys(["0", "1", "2", "3", ""], "done"), "4": "cancelled"}
    return fleet.settle_call(first, "done"), Expected(states, {"1", "2", "3"})


def a_failure(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0", "s1", "a2")
    states = {"0": "dead", "1": "cancelled", "2": "cancelled", "3": "done", "": "failed"}
    return fleet.settle_call(first, "dead"), Expected(states, {"3"})


def a_failure_taken_over(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0", "f0", "s1 a2")
    states = {"0": "dead", "1": "cancelled", "2": "done", "3": "cancelled", "": "done"}
    return fleet.settle_call(first, "dead"), Expected(states, {"2"})


def added_steps(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0")
    call = adding(fleet, first, row("0.0", "", "s"), row("0.1", "s0.0"), row("0.2", ""))
    states = dict.fromkeys(["0", "0.0", "0.1", "0.2", "1", ""], "done")
    return call, Expected(states, {"0.0", "0.1", "0.2", "1"})


def the_last_added_step(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0", "f0")
    fleet.run(*adding(fleet, first, row("0.0", "")))
    (added,) = fleet.fetch()
    fleet.executed.clear()
    states = {"0": "done", "0.0": "dead", "1": "cancelled", "2": "done", "": "done"}
    return fleet.settle_call(added, "dead"), Expected(states, {"2"})


def a_cancelled_step(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0", "s1", "f1")
    fleet.run(*fleet.settle_call(first, "retry"))
    states = {"0": "done", "1": "cancelled", "2": "cancelled", "3": "done", "": "done"}
    return fleet.cancel_call("", "w:1"), Expected(states, {"0", "3"})


def a_cancelled_workflow(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0", "a1")
    fleet.afterwards = [
        fleet.cancel_call("by somebody", "w:0", "w:1", "w:2"),
        fleet.settle_call(first, "done"),
    ]
    states = {"0": "done", "1": "cancelled", "2": "cancelled", "": "cancelled"}
    return ("workflow_cancel", KEEPING, "w", "by somebody"), Expected(states, set())


def resumed(verb: str, fleet: Fleet) -> Prepared:
    """A failed workflow, of which one verb of the resume is cut."""
    first = started(fleet, "", "s0", "f3", "a0")
    fleet.run(*fleet.settle_call(first, "dead"))
    fleet.run(*PROMOTE)
    (other,) = fleet.fetch()
    fleet.run(*fleet.settle_call(other, "done"))
    fleet.run(*PROMOTE)
    fleet.executed.clear()
    verbs: list[tuple[object, ...]] = [("begin",), ("link", "0", 0), ("link", "1", 0)]
    verbs += [("create", "0", "1"), ("start",)]
    at = [one[0] for one in verbs].index(verb)
    for one in verbs[:at]:
        fleet.run("workflow_resume", KEEPING, "w", *one)
    fleet.afterwards = [("workflow_resume", KEEPING, "w", *one) for one in verbs[at + 1 :]]
    states = {"0": "done", "1": "done", "2": "cancelled", "3": "done", "": "done"}
    return ("workflow_resume", KEEPING, "w", *verbs[at]), Expected(states, {"0", "1"})


def a_promotion(fleet: Fleet) -> Prepared:
    """It follows edges that a settle has left, if a call follows few of them."""
    first = started(fleet, "", "s0", "s0", "s0", "f0")
    fleet.run(*fleet.settle_call(first, "dead"))
    states = {"0": "dead", **dict.fromkeys("123", "cancelled"), "4": "done", "": "done"}
    return PROMOTE, Expected(states, {"4"})


def a_failure_that_is_passed_on(fleet: Fleet) -> Prepared:
    """By a promotion, if a call follows few edges."""
    first = started(fleet, "", "s0", "s1", "s2")
    fleet.run(*fleet.settle_call(first, "dead"))
    states = {"0": "dead", **dict.fromkeys("123", "cancelled"), "": "failed"}
    return PROMOTE, Expected(states, set())


def a_walk(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0", "f0")
    fleet.site.client.delete(f"{PREFIX}n:w:0")
    fleet.run(*fleet.settle_call(first, "dead"))
    fleet.walk()
    fleet.now += 4 * LEASE
    states = {"0": "dead", "1": "cancelled", "2": "done", "": "done"}
    return MEND, Expected(states, {"2"})


def a_reclaim(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0", "f0")
    fleet.run(*fleet.cancel_call("by somebody", "w:0"))
    states = {"0": "cancelled", "1": "cancelled", "2": "done", "": "done"}
    return fleet.forgotten(first), Expected(states, {"2"})


SIGNAL: Call = ("workflow_signal", KEEPING, "w", "1", "ann", "document")


def an_event_that_comes(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0 event", "s1", "f1")
    fleet.run(*fleet.settle_call(first, "done"))
    states = {**dict.fromkeys(["0", "1", "2", ""], "done"), "3": "cancelled"}
    return SIGNAL, Expected(states, {"2"})


def an_event_that_came_before(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0 event", "s1")
    fleet.run(*SIGNAL)
    return fleet.settle_call(first, "done"), Expected(
        dict.fromkeys(["0", "1", "2", ""], "done"), {"2"}
    )


def an_awaited_event(fleet: Fleet) -> Prepared:
    first = started(fleet, "", "s0 event", "s1")
    fleet.afterwards = [SIGNAL]
    return fleet.settle_call(first, "done"), Expected(
        dict.fromkeys(["0", "1", "2", ""], "done"), {"2"}
    )


HISTORIES = {
    each.__name__: each
    for each in (
        *(a_submission, a_success, a_failure, a_failure_taken_over, added_steps),
        *(the_last_added_step, a_cancelled_step, a_cancelled_workflow, a_promotion),
        *(a_failure_that_is_passed_on, a_walk, a_reclaim),
        *(an_event_that_comes, an_event_that_came_before, an_awaited_event),
    )
}
RESUMES = {
    f"resume: {verb}": partial(resumed, verb) for verb in ("begin", "link", "create", "start")
}


def problems_of(fleet: Fleet, expected: Expected) -> Iterator[str]:
    results = fleet.site.look().results
    ended = {id: value.partition("|")[0] for id, value in results.items()}
    wanted = {f"w:{place}".rstrip(":"): state for place, state in expected.states.items()}
    if ended != wanted:
        yield f"ended are {ended}, not {wanted}"
    for id, value in results.items():
        cause = CAUSE.search(value)
        if cause and CAUSE.search(results[cause[1]]):
            yield f"{id} names {cause[1]}, which did not fail first"
    ran = {id.partition(":")[2] for id in fleet.executed}
    if ran != expected.runs:
        yield f"{ran} ran, not {expected.runs}"


@scales(3, 1)
@pytest.mark.parametrize("faults", [(), FEW_EDGES], ids=["whole", "in parts"])
@pytest.mark.parametrize("name", HISTORIES | RESUMES)
def test_a_cut_script_loses_nothing(
    redis_server: RedisServer, name: str, faults: tuple[Fault, ...], scale: int
) -> None:
    """After a cut at any call, a repetition and a sweep each step has ended as it should."""
    with redis_server.client() as client:
        site = Site(client, faults)
        assert list(cuts(site, (HISTORIES | RESUMES)[name], problems_of, stride=scale)) == []
