"""Submitting over the API: options, validation, keys, ceilings, permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from httpx import AsyncClient
from web.conftest import ClientOf

from nonet import Nonet, carry_context
from nonet.rules.permissions import Principal, Role
from nonet.tasks import carried

TASKS = "/api/v1/tasks"
BULK = "/api/v1/tasks/bulk"
REPORT = {"task": "web_tasks:Report", "arguments": {"number": 7}}


def keyed(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


async def count(nonet: Nonet) -> int:
    return len([item async for item in nonet.live()])


async def test_a_task_is_submitted_with_its_options(client: AsyncClient, nonet: Nonet) -> None:
    """Class, arguments, id, delay, labels and deadline arrive as with `Nonet.submit`."""
    options = {"id": "mine", "delay": 3600, "start_by": 7200, "labels": {"size": "large", "n": 1}}
    answer = await client.post(TASKS, json={**REPORT, **options})
    assert (answer.status_code, answer.json()) == (202, {"id": "mine", "created": True})
    status = await nonet.status("mine")
    assert (status.name, status.state, status.stream) == (
        "web_tasks:Report", "delayed", "normal:large",
    )  # fmt: skip
    again = await client.post(TASKS, json={**REPORT, **options})
    assert again.json() == {"id": "mine", "created": False}


async def test_context_of_programs_is_not_set_from_outside(
    client: AsyncClient, nonet: Nonet
) -> None:
    """A label that tasks take as their context comes from programs that carry it only."""
    user: ContextVar[str] = ContextVar("web_user")
    carry_context(user)
    try:
        answer = await client.post(TASKS, json={**REPORT, "labels": {"web_user": "root"}})
        assert answer.status_code == 422 and "labels.web_user" in answer.json()["detail"]
        answer = await client.post(TASKS, json={**REPORT, "labels": {"team": "a", "vo": "b"}})
        assert answer.status_code == 202
    finally:
        carried._carried.pop("web_user")


# Made by their tests: each process that collects tests would make all of them.
_LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "arguments": lambda: {**REPORT, "arguments": {f"argument{n}": 0 for n in range(60_000)}},
    "a long name": lambda: {**REPORT, "arguments": {"x" * 1_000_000: 0}},
    "items": lambda: {**REPORT, "arguments": {"number": [0] * 300_000}},
    "lists": lambda: {**REPORT, "arguments": {"number": [["x"]] * 60_000}},
    "labels": lambda: {**REPORT, "labels": {f"label{n}": 0 for n in range(60_000)}},
    "fields": lambda: {**REPORT, **{f"field{n}": 0 for n in range(60_000)}},
    "fields of tasks": lambda: {
        "tasks": [{**REPORT, **{f"f{n}": 0 for n in range(1000)}} for _ in range(1000)]
    },
    "arguments of tasks": lambda: {
        "tasks": [{**REPORT, "arguments": {f"f{n}": 0 for n in range(999)}} for _ in range(200)]
    },
    "tasks": lambda: {"tasks": [0] * 1_000_000},
    "delays": lambda: {"tasks": [{**REPORT, "delay": "x"}] * 1000},
}


@pytest.mark.parametrize("large", _LARGE)
async def test_many_mistakes_have_a_short_answer(
    client: AsyncClient, nonet: Nonet, large: str
) -> None:
    """A large request with a million mistakes gets a few of them, not all."""
    body = _LARGE[large]()
    answer = await client.post(BULK if "tasks" in body else TASKS, json=body)
    assert answer.status_code in (413, 422), answer.text[:500]
    assert len(answer.content) < 5000
    assert await count(nonet) == 0


async def test_a_unique_key_merges_submissions(client: AsyncClient) -> None:
    """The answer names the task that holds the key."""
    body = {**REPORT, "unique": {"mode": "until_done", "key": "daily"}}
    first, second = [(await client.post(TASKS, json=body)).json() for _ in range(2)]
    assert second == {"id": first["id"], "created": False}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"task": "web_tasks:Rport"}, "Did you mean"),
        ({**REPORT, "arguments": {"number": "x"}}, "number"),
        ({**REPORT, "arguments": {"other": 1}}, "other"),
        ({**REPORT, "at": "2030-01-01", "delay": 1}, "not both"),
        ({**REPORT, "unique": {"mode": "for_seconds"}}, "seconds"),
        ({**REPORT, "id": "a b"}, "id"),
        ({**REPORT, "id": f"p-{0:032}"}, "of Nonet's own"),
        ({**REPORT, "labels": {"size": "huge"}}, "Size"),
        ({**REPORT, "surprise": 1}, "surprise"),
    ],
)
async def test_an_invalid_task_is_refused(
    client: AsyncClient, nonet: Nonet, body: dict[str, Any], problem: str
) -> None:
    """422 names what is wrong, and nothing is submitted."""
    answer = await client.post(TASKS, json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem in answer.json()["detail"]
    assert await count(nonet) == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"task": "web_tasks:Report", "arguments": {"number": "\\ud800"}}',
        '{"task": "web_tasks:\\ud800"}',
        '{"task": "web_tasks:Report\\u0000"}',
        '{"task": "web_tasks:Report", "arguments": {"number": NaN}}',
        '{"task": "web_tasks:Report", "arguments": {"number": 1e999}}',
        '{"task": "web_tasks:Report", "delay": NaN}',
        '{"task": "web_tasks:Report", "delay": 1e308}',
        '{"task": "web_tasks:Report", "at": "9999-12-31T23:59:59-23:59"}',
        '{"task": "web_tasks:Report", "labels": {"a": "\\ud800"}}',
        '{"task": "web_tasks:Report", "labels": {"a\\u0000": 1}}',
        '{"task": "web_tasks:Report", "labels": ' + '{"a":' * 100 + "1" + "}" * 101 + "}",
        "[" * 100_000,
        '{"task": ' + "9" * 10_000 + "}",
        "\xff",
        "",
    ],
)
async def test_a_hostile_body_is_refused(client: AsyncClient, nonet: Nonet, text: str) -> None:
    """Odd numbers, texts and depths are answered with 400 or 422, never with an error of ours."""
    answer = await client.post(
        TASKS, content=text.encode("latin-1"), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 422), answer.text
    assert await count(nonet) == 0


async def test_huge_integers_arrive(client: AsyncClient) -> None:
    """JSON knows no longest integer, and neither do arguments."""
    answer = await client.post(TASKS, json={**REPORT, "arguments": {"number": 2**200}})
    assert answer.status_code == 202


async def test_a_bulk_is_submitted_or_refused_as_a_whole(client: AsyncClient, nonet: Nonet) -> None:
    """One invalid task refuses all; the answer is in the order of the request."""
    wrong = {"tasks": [REPORT, {**REPORT, "arguments": {"number": "x"}}]}
    answer = await client.post(BULK, json=wrong)
    assert answer.status_code == 422
    assert "tasks.1" in answer.json()["detail"]
    assert await count(nonet) == 0
    right = {"tasks": [{**REPORT, "id": "a"}, {**REPORT, "delay": 60, "id": "b"}]}
    answer = await client.post(BULK, json=right)
    assert [item["id"] for item in answer.json()["tasks"]] == ["a", "b"]
    too_many = {"tasks": [REPORT] * 1001}
    assert (await client.post(BULK, json=too_many)).status_code == 422
    assert await count(nonet) == 2


async def test_a_key_makes_a_request_repeatable(client: AsyncClient, nonet: Nonet) -> None:
    """The same key and body, also at the same time, make one task; another body is refused."""
    answers = await asyncio.gather(
        *(client.post(TASKS, json=REPORT, headers=keyed("order-7")) for _ in range(10))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum(answer.json()["created"] for answer in answers) == 1
    other = {**REPORT, "arguments": {"number": 8}}
    refused = await client.post(TASKS, json=other, headers=keyed("order-7"))
    assert refused.status_code == 409
    assert "Idempotency-Key" in refused.json()["detail"]
    with_id = await client.post(TASKS, json={**REPORT, "id": "x"}, headers=keyed("order-8"))
    assert with_id.status_code == 422
    assert await count(nonet) == 1


async def test_a_key_is_remembered_after_the_end(client: AsyncClient, nonet: Nonet) -> None:
    """A task that has ended is not submitted again, and its key still refuses another body."""
    first = (await client.post(TASKS, json=REPORT, headers=keyed("a"))).json()
    await nonet.cancel([first["id"]])
    again = await client.post(TASKS, json=REPORT, headers=keyed("a"))
    assert again.json() == {"id": first["id"], "created": False}
    other = await client.post(TASKS, json={"task": "web_tasks:Failing"}, headers=keyed("a"))
    assert other.status_code == 409
    assert await count(nonet) == 0


async def test_of_two_bulks_with_one_key_one_wins(client: AsyncClient, nonet: Nonet) -> None:
    """Concurrent requests with different bodies: one submits all of its tasks, the other none."""
    bodies = [{"tasks": [{**REPORT, "arguments": {"number": n}}] * (n + 2)} for n in range(4)]
    answers = await asyncio.gather(
        *(client.post(BULK, json=body, headers=keyed("k")) for body in bodies)
    )
    won = [number for number, answer in enumerate(answers) if answer.status_code == 202]
    assert len(won) == 1
    assert [answer.status_code for answer in answers].count(409) == 3
    assert await count(nonet) == won[0] + 2


async def test_keys_of_different_callers_are_independent(client_of: ClientOf) -> None:
    """Two tokens that happen to send the same key submit two tasks."""
    ids = []
    for name in ("token:a", "token:b"):
        async with client_of(Principal(name, Role.SUBMITTER)) as caller:
            answer = await caller.post(TASKS, json=REPORT, headers=keyed("same"))
            ids.append(answer.json()["id"])
    assert ids[0] != ids[1]


async def test_a_ceiling_answers_429(client: AsyncClient, nonet: Nonet) -> None:
    """The problem has the numbers, and says when to try again."""
    term = await nonet.stores.leadership.lead("leader", 86_400, "{}")
    assert await nonet.stores.ceilings.publish(str(term), {"namespace": 1}, "test")
    assert (await client.post(TASKS, json=REPORT)).status_code == 202
    answer = await client.post(TASKS, json=REPORT)
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    problem = answer.json()
    assert (problem["scope"], problem["active"], problem["ceiling"]) == ("namespace", 1, 1)
