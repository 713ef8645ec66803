"""What a running task creates belongs to the tenant of that task."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from nonet import PREVIOUS, BaseTask, CallbackSpawner, Size, chain, chord, context, group
from nonet.rules.fairness import tenant_of
from nonet.testing import System

CONFIG = {"vos": ["acme", "other"], "fairness": {"by": "label:customer"}}


class Child(BaseTask):
    how: str
    size = Size.SMALL

    async def execute(self) -> str:
        running = context()
        assert "colour" not in running.labels
        tenant = tenant_of("label:customer", running.name, running.vo, running.labels)
        return f"{self.how}: {running.vo or '-'} {tenant or '-'}"


class Own(Child):
    vo: str = "other"


class Parent(BaseTask):
    """Creates tasks in all ways."""

    vo: str = "acme"
    size = Size.SMALL

    async def execute(self, spawn: CallbackSpawner) -> None:
        running = context()
        await Child("schedule").schedule(id="schedule")
        await Own("own attribute").schedule()
        await Child("own labels").schedule(labels={"vo": "", "customer": 8})
        await spawn([Child("child")], Child("callback"))
        await spawn([Child("own child").with_options(labels={"customer": 8})], Child("callback"))
        await chain(Child("chain"), Child.given(how=PREVIOUS)).submit()
        await chord([Child("part")], Child("body").with_options(labels={"vo": "other"})).submit()
        await group(Child("with labels"), labels={"customer": 8}).submit()
        running.after_commit(Child("after"))
        running.after_commit(Child("own after").with_options(labels={"vo": "other"}))
        running.add_step(Child("step"))
        running.add_step(Own.given(how="given"))


@pytest.fixture
async def system(redis_url: str) -> AsyncIterator[System]:
    tasks = [Child, Own, Parent]
    async with System(tasks=tasks, config=CONFIG, redis_url=redis_url) as system:
        yield system


async def test_what_a_task_creates_has_its_tenant_unless_it_says_otherwise(system: System) -> None:
    """The VO of its attribute and the label that makes tenants; no other label."""
    labels = {"customer": 7, "colour": "red"}
    await chain(Parent().with_options(labels=labels)).submit()
    await system.run_until_idle()
    made = [item.id for item in system.submitted if item.task != Parent()]
    found = {await system.result(id, timeout=0) for id in made}
    assert found == {
        "after: acme 7",
        "body: other 7",
        "callback: acme 7",
        "chain: acme 7",
        "chain: acme 7: acme 7",
        "child: acme 7",
        "given: other 7",
        "own after: other 7",
        "own attribute: other 7",
        "own child: acme 8",
        "own labels: - 8",
        "part: acme 7",
        "schedule: acme 7",
        "step: acme 7",
        "with labels: acme 8",
    }
