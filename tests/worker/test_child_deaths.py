"""Deaths of child processes as events: how many there are."""

from __future__ import annotations

import asyncio

from nonet.worker.children.deaths import ChildDeaths


async def test_many_deaths_of_children_are_one_event_in_ten_seconds() -> None:
    written: list[tuple[str, str]] = []

    async def log(kind: str, who: str, text: str) -> None:
        written.append((kind, text.partition(" died with ")[2]))

    deaths = ChildDeaths(log)
    for pid in range(5):
        deaths.report(pid, ["a (x:T)"], "killed")
    await asyncio.sleep(0)
    assert written == [("child-lost", "a (x:T): killed")]
    deaths._next = 0.0  # ten seconds later
    deaths.report(9, [str(n) for n in range(12)], "killed")
    await asyncio.sleep(0)
    text = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more: killed (4 others died since the last event)"
    assert written[1:] == [("child-lost", text)]
