"""Limits of the configuration, changed while real daemons run: promise 19."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from acceptance.limit_tasks import Bulk, Limited, Unnamed
from acceptance.site import Site, submit_all
from daemons import Daemon
from waits import WAIT_SECONDS, until

from nonet import TaskFailed
from nonet.rules.limits import Limit, LimitAddress

TASKS = "acceptance.limit_tasks"
BUSY = "common: {limits: {Job: {busy: {Run: {ConcurrencyLimiter: {limit: %d}}}}}}"
FIELD = "C||job|busy|Run"


class Installation:
    """A site with a worker, a scheduler and the file that this one watches."""

    def __init__(self, site: Site, text: str) -> None:
        site.settings["NONET_TASKS"] = TASKS
        self.site = site
        self._new = Path(site.write("new.yaml", text))
        self._file = self._new.with_name("limits.yaml")
        self.configure(text)
        site.worker()
        self.scheduler: Daemon = site.scheduler("--config", str(self._file))

    def configure(self, text: str) -> None:
        """Replace the file, as an administrator's editor or a ConfigMap does."""
        self._new.write_text(text)
        self._new.replace(self._file)

    async def limit(self, value: str | None, field: str = FIELD) -> None:
        """Wait until a field of the effective limits has a value, or none."""
        redis, key = self.site.redis, self.site.key("limits")
        await until(lambda: redis.hget(key, field) == value or None, f"{field} is {value}")

    def in_use(self) -> int:
        """Slots of the limiter that are taken."""
        return int(self.site.redis.zcard(self.site.key("limiter:conc:job:busy:Run")))


async def test_a_change_in_the_file_applies_within_two_seconds(site: Site) -> None:
    """A raise in the YAML file lets waiting tasks start without a restart, within 2 s."""
    place = Installation(site, BUSY % 1)
    await place.limit("1")
    gate = site.gate()
    async with site.app(tasks=(TASKS,)) as app:
        ids = await submit_all(app, [Limited(gate) for _ in range(3)])
        await site.until_event("start")
        await until(lambda: sum(map(site.parked, ids)) == 2, "two tasks wait")
        for limit, waiting in ((2, 1), (3, 0)):
            changed = time.time()
            place.configure(BUSY % limit)
            last = (await site.until_event("start", limit))[-1]
            print(f"limit {limit}: {last.at - changed:.2f} s after the file was changed")
            assert last.at - changed <= 2
            assert sum(map(site.parked, ids)) == waiting
        site.open(gate)
        await site.all_ended()
        published = [
            item for item in await app.stores.events.last(10) if item.kind == "limits-published"
        ]
    assert place.scheduler.alive and "ERROR" not in place.scheduler.log
    assert [item.text.rpartition(": ")[2] for item in published] == [
        "not set -> 1",
        "1 -> 2",
        "2 -> 3",
    ]


async def test_an_override_wakes_at_once_and_lowering_drains(site: Site) -> None:
    """A raise by hand wakes as many as can run; after a cut nobody starts until enough ended."""
    place = Installation(site, BUSY % 2)
    await place.limit("2")
    address = LimitAddress("job", "busy", "Run")
    first, second = site.gate(), site.gate()
    async with site.app(tasks=(TASKS,)) as app:
        await submit_all(app, [Limited(first) for _ in range(4)])
        await site.until_event("start", 2)
        raised = time.time()
        await app.stores.limits.override(address, Limit(4), "test@host 1")
        started = await site.until_event("start", 4)
        print(f"started {started[-1].at - raised:.3f} s after the raise by hand")
        await app.stores.limits.override(address, Limit(1), "test@host 1")
        ids = await submit_all(app, [Limited(second) for _ in range(3)])
        await until(lambda: all(map(site.parked, ids)), "the new tasks wait")
        assert place.in_use() == 4
        site.open(first)
        await site.until_event("end", 4)
        await site.until_event("start", 5)
        assert place.in_use() == 1 and len(site.journal("start")) == 5
        assert await app.stores.limits.go_back(address, "test@host 1")
        await site.until_event("start", 6)
        assert place.in_use() == 2
        site.open(second)
        await site.all_ended()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (BUSY % 0, "Run.ConcurrencyLimiter.limit: must be a whole number"),
        (
            "common: {limits: {Job: {busy: {ConcurrencyLimiter: {limit: 9}}}, Jub: {a: {}},"
            " Task: {Limted: {ConcurrencyLimiter: {limit: 1}}}}}",
            "common.limits.Task.Limted: unknown task class 'Limted'. Did you mean Limited?",
        ),
        ("common: {limits: {Job: [", "limits.yaml:1: "),
        ("", "is empty: write {} if nothing is to be configured"),
    ],
)
async def test_a_broken_file_changes_nothing_and_is_reported(
    site: Site, broken: str, reason: str
) -> None:
    """Of a broken document nothing applies, it is told once, and the next good one applies."""
    place = Installation(site, BUSY % 2)
    await place.limit("2")
    version = site.redis.get(site.key("limits:version"))
    place.configure(broken)
    log = "configuration not applied, the last good one stays"
    await until(lambda: log in place.scheduler.log, "the scheduler reports the broken file")
    assert reason in place.scheduler.log
    assert site.redis.hgetall(site.key("limits")) == {FIELD: "2"}
    assert site.redis.get(site.key("limits:version")) == version
    # What Redis loses meanwhile is published again: the last good one.
    site.redis.delete(*site.redis.keys(site.key("limits*")))
    await place.limit("2")
    place.configure(BUSY % 3)
    await place.limit("3")
    assert place.scheduler.log.count(log) == 1 and place.scheduler.alive


async def test_a_new_leader_publishes_its_file(site: Site) -> None:
    """A standby with another file takes over with what is written there."""
    place = Installation(site, BUSY % 2)
    await place.limit("2")
    other = site.write("other.yaml", BUSY % 5)
    site.scheduler("--config", other)
    assert site.redis.hget(site.key("limits"), FIELD) == "2"
    place.scheduler.kill()
    await place.limit("5")


async def test_the_limit_of_a_class_needs_no_limiter_in_it(site: Site) -> None:
    """``Task: <Class>`` holds for a class whose own locks name no limiter, from its next start."""
    place = Installation(
        site, "common: {limits: {Task: {Unnamed: {ConcurrencyLimiter: {limit: 1}}}}}"
    )
    await place.limit("1", "C||task|Unnamed|")
    gate = site.gate()
    async with site.app(tasks=(TASKS,)) as app:
        await submit_all(app, [Unnamed(gate) for _ in range(3)])
        others = await submit_all(app, [Limited(gate) for _ in range(2)])
        for id in others:
            await site.started(id)
        (first,) = site.journal("start", task="Unnamed")
        site.open(gate)
        await site.all_ended()
    times = [(event.event, event.id) for event in site.journal(task="Unnamed")]
    assert times[0] == ("start", first.id)
    for start, end in zip(times[::2], times[1::2], strict=True):
        assert (start[0], end[0], start[1]) == ("start", "end", end[1]), "two ran at a time"


async def test_what_runs_is_counted_once_a_limit_is_set(site: Site) -> None:
    """Tasks that started without a limit count against it after their next renewal."""
    place = Installation(site, "{}")
    gate = site.gate()
    async with site.app(tasks=(TASKS,)) as app:
        await submit_all(app, [Limited(gate) for _ in range(2)])
        await site.until_event("start", 2)
        assert place.in_use() == 0
        place.configure(BUSY % 2)
        await until(lambda: place.in_use() == 2, "both are counted")
        (late,) = await submit_all(app, [Limited(gate)])
        await until(lambda: site.parked(late), "the next one waits")
        site.open(gate)
        await site.all_ended()
    assert place.in_use() == 0


async def test_what_no_limit_allows_is_dead(site: Site) -> None:
    """A task that counts for more than the configured limit is a dead letter with that reason."""
    text = "common: {limits: {Job: {bulk: {RateLimiter: {limit: 4, window_seconds: 60}}}}}"
    place = Installation(site, text.replace("4", "5"))
    await place.limit("5|60000", "L||job|bulk|")
    async with site.app(tasks=(TASKS,)) as app:
        # Submitted while it could run; then the limit is lowered.
        later = datetime.now(UTC) + timedelta(hours=1)
        handle = await app.submit(Bulk(), id="bulk", at_time=later)
        place.configure(text)
        await place.limit("4|60000", "L||job|bulk|")
        site.hurry(handle)
        with pytest.raises(TaskFailed, match="allows 4, one execution counts 5") as failed:
            await handle.result(timeout=WAIT_SECONDS)
        assert failed.value.error_type == "LimitImpossible"
        assert (await handle.status()).attempt == 0, "nothing has run"
        (letter,) = await (await app.dead_letters()).list()
        assert (letter.task_id, letter.reason) == ("bulk", "limit-impossible")
        place.configure(text.replace("4", "5"))
        await place.limit("5|60000", "L||job|bulk|")
        await (await app.submit(Bulk())).result(timeout=WAIT_SECONDS)
    assert [event.event for event in site.journal()] == ["start"]
