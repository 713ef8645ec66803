"""The other resources of the API: what they show and change, and who may do that."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from httpx import AsyncClient, Response
from web_tasks import Mail, Report

from nonet import LockedObjectType, MutexLock, Nonet
from nonet.web.openapi import described

API = "/api/v1"


async def ok(answer: Response) -> Any:
    assert answer.status_code in (200, 202), answer.text
    return answer.json()


async def test_the_history_has_pages_and_filters(client: AsyncClient, nonet: Nonet) -> None:
    """Each end is on one page; class and state select; one end is found by its id."""
    ids = [await nonet.submit(Report(n)) for n in range(12)]
    other = await nonet.submit(Mail())
    await nonet.cancel([*ids, other], reason="to test")
    found, cursor = list[str](), ""
    while True:
        query = {"task": "Report", "state": "cancelled", "limit": 5, "cursor": cursor}
        page = await ok(await client.get(f"{API}/history", params=query))
        found += [item["id"] for item in page["items"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert sorted(found) == sorted(ids)
    assert (await ok(await client.get(f"{API}/history/{other}")))["name"] == "web_tasks:Mail"
    assert (await client.get(f"{API}/history/nothing")).status_code == 404
    assert (await ok(await client.get(f"{API}/history?state=dead")))["items"] == []


async def test_queues_count_tasks(client: AsyncClient, nonet: Nonet) -> None:
    """A stream has its queued tasks, and the delayed ones are counted."""
    await nonet.submit(Report(1))
    await nonet.submit(Report(1), at_time=datetime.now(UTC) + timedelta(hours=1))
    found = await ok(await client.get(f"{API}/queues"))
    (queue,) = [item for item in found["items"] if item["queued"]]
    assert (queue["priority"], queue["size"], queue["queued"]) == ("normal", "medium", 1)
    assert found["delayed"] == 1


async def test_a_lock_is_listed_and_released(client: AsyncClient, nonet: Nonet) -> None:
    """Holders are named; a release is by name, and of a free lock a 404."""
    name = "lock:mutex:job:7"
    async with nonet.hold(MutexLock(LockedObjectType.JOB, 7), wait=5):
        (found,) = (await ok(await client.get(f"{API}/locks")))["items"]
        assert (found["lock"], found["holding"]) == (name, 1)
        assert (await ok(await client.get(f"{API}/locks/{name}")))["holders"][0]["task"] == "hold"
    free = await ok(await client.get(f"{API}/locks/{name}"))
    assert free["holding"] == 0
    assert (await client.post(f"{API}/locks/{name}/release")).status_code == 404
    assert (await client.get(f"{API}/locks/nonsense")).status_code == 422


async def test_a_limit_is_set_and_unset(client: AsyncClient) -> None:
    """A limit by hand is in force until it is removed; the event stream names who set it."""
    url = f"{API}/limits/limiter:conc:job:7"
    assert (await client.get(url)).status_code == 404
    await ok(await client.put(url, json={"limit": 3}))
    found = await ok(await client.get(url))
    assert (found["limit"], found["source"], found["by"]) == (3, "override", "alice")
    listed = await ok(await client.get(f"{API}/limits"))
    assert [item["name"] for item in listed["items"]] == ["limiter:conc:job:7"]
    assert (await client.put(url, json={"limit": -1})).status_code == 422
    assert (
        await client.put(f"{API}/limits/limiter:rate:job:7", json={"limit": 1})
    ).status_code == 422
    assert (await client.delete(url)).status_code == 204
    assert (await client.delete(url)).status_code == 404


async def test_delayed_tasks_are_started_and_cancelled(client: AsyncClient, nonet: Nonet) -> None:
    """A task that is no longer delayed stays as it is, and the answer has its state."""
    later = datetime.now(UTC) + timedelta(hours=1)
    for id in ("a", "b"):
        await nonet.submit(Report(1), id=id, at_time=later)
    await nonet.submit(Report(1), id="c")
    listed = await ok(await client.get(f"{API}/delayed"))
    assert [item["id"] for item in listed["items"]] == ["a", "b"]
    done = await ok(await client.post(f"{API}/delayed/run", json={"ids": ["a", "c", "nothing"]}))
    assert done == {"changed": ["a"], "states": {"c": "queued", "nothing": ""}}
    gone = await ok(await client.post(f"{API}/delayed/cancel", json={"ids": ["b", "c"]}))
    assert gone == {"changed": ["b"], "states": {"c": "queued"}}


async def test_a_group_is_shown(client: AsyncClient, nonet: Nonet) -> None:
    """Groups are listed, and one is found by its id."""
    id = await nonet.client.spawn_with_callback([Report(1), Report(2)], Mail())
    (found,) = (await ok(await client.get(f"{API}/groups")))["items"]
    assert (found["id"], found["pending"]) == (id, 2)
    assert (await ok(await client.get(f"{API}/groups/{id}")))["total"] == 2
    assert (await client.get(f"{API}/groups/nothing")).status_code == 404


async def test_work_is_paused_and_resumed(client: AsyncClient) -> None:
    """Streams and classes are paused with a reason; a pause that is not there is a 404."""
    body = {"streams": ["background:*"], "tasks": ["web_tasks:Mail"], "reason": "to test"}
    made = await ok(await client.post(f"{API}/pauses", json=body))
    assert len(made["items"]) == 4
    assert made["items"][0]["reason"] == "to test"
    left = await ok(await client.post(f"{API}/pauses/resume", json={"streams": ["background:*"]}))
    assert [item["what"] for item in left["items"]] == ["task:web_tasks:Mail"]
    nothing = await client.post(f"{API}/pauses/resume", json={"everything": True})
    assert nothing.status_code == 404
    assert (await client.post(f"{API}/pauses", json={})).status_code == 422
    events = await ok(await client.get(f"{API}/events", params={"kind": "pause", "limit": 1}))
    assert events["items"][0]["who"] == "alice"


async def test_events_have_pages(client: AsyncClient, nonet: Nonet) -> None:
    """The newest come first, and a cursor continues."""
    for number in range(5):
        await nonet.stores.events.log("pause", "ann", str(number))
    page = await ok(await client.get(f"{API}/events", params={"limit": 3}))
    assert [item["text"] for item in page["items"]] == ["4", "3", "2"]
    rest = await ok(await client.get(f"{API}/events", params={"cursor": page["cursor"]}))
    assert [item["text"] for item in rest["items"]] == ["1", "0"]
    assert (await client.get(f"{API}/events?kind=nothing")).status_code == 422


async def test_everything_is_described(client: AsyncClient) -> None:
    """Each operation has a name of its own, a summary and its errors; each field a description."""
    found = (await client.get(f"{API}/openapi.json")).json()
    assert found == json.loads(json.dumps(described()))
    operations = [item for path in found["paths"].values() for item in path.values()]
    names = [item["operationId"] for item in operations]
    assert len(set(names)) == len(names)
    for item in operations:
        assert item["summary"], item["operationId"]
        assert {"401", "403", "422", "503"} <= set(item["responses"])
    texts = json.dumps(found)
    assert "HTTPValidationError" not in texts
    assert found["components"]["schemas"]["TaskStatus"]["properties"]["blocker"]["description"]
