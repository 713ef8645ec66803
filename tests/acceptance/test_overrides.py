"""What the configuration says of classes, changed while real daemons run: promise 19."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from acceptance.override_tasks import Failing, Patient
from acceptance.site import Site
from daemons import Daemon
from waits import WAIT_SECONDS, until

from nonet import Nonet, TaskFailed

TASKS = "acceptance.override_tasks"
OVERRIDE = "common: {tasks: {%s: {%s}}}"
TICKING = "periodic-tasks: {Tick: [{enabled: true}]}"
RETRIES = (
    "retry-policy: {class: ExponentialBackoff, args: {base_delay_seconds: 0, max_retries: %d}}"
)


class Installation:
    """A site with a worker, a scheduler and the file that this one watches."""

    def __init__(self, site: Site, text: str = "{}") -> None:
        site.settings["NONET_TASKS"] = TASKS
        self.site = site
        self._new = Path(site.write("new.yaml", text))
        self._file = self._new.with_name("config.yaml")
        self.configure(text)
        self.scheduler: Daemon = site.scheduler("--config", str(self._file))
        self.worker: Daemon = site.worker()

    def configure(self, text: str) -> None:
        """Replace the file, as an administrator's editor or a ConfigMap does."""
        self._new.write_text(text)
        self._new.replace(self._file)

    def version(self) -> str:
        """What is published."""
        return str(self.site.redis.hget(self.site.key("config"), "version") or "")

    async def published(self, before: str) -> None:
        """Wait until another version is."""
        await until(lambda: self.version() not in ("", before), "it is published")

    async def applied(self, app: Nonet) -> None:
        """Wait until the worker says that it applies what is published."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            (worker,) = await app.client.results.workers()
            if worker.config == self.version() != "":
                return
        raise AssertionError(f"{worker} does not apply {self.version()}")


@pytest.fixture
async def place(site: Site) -> Installation:
    """It has published its first configuration, so the next version is what a test writes."""
    made = Installation(site)
    await made.published("")
    return made


# Two seconds, as is printed, on a machine that does nothing else.
PATIENCE = 10.0


async def attempts(app: Nonet, task: Failing) -> int:
    """How often a task that fails is executed."""
    handle = await app.submit(task)
    with pytest.raises(TaskFailed):
        await handle.result(timeout=WAIT_SECONDS)
    return (await handle.status()).attempt


async def stream_of(app: Nonet, **labels: str) -> str:
    """Into which stream a task would go, in an hour: until then nobody executes it."""
    later = datetime.now(UTC) + timedelta(hours=1)
    return (await (await app.submit(Failing(), at_time=later, labels=labels)).status()).stream


async def test_a_retry_policy_applies_within_two_seconds(place: Installation) -> None:
    """A change in the file counts for the next attempt that fails, without a restart."""
    pid = place.worker.pid
    async with place.site.app(tasks=(TASKS,)) as app:
        assert await attempts(app, Failing()) == 1
        for retries in (2, 1):
            changed = time.time()
            place.configure(OVERRIDE % ("Failing", RETRIES % retries))
            while (found := await attempts(app, Failing())) != retries + 1:
                assert time.time() - changed < 20, f"{found} attempts"
            # The first one that was executed again so often.
            first = max(item.at for item in place.site.journal("start"))
            print(f"{retries} retries: {first - changed:.2f} s after the file was changed")
            assert first - changed <= PATIENCE
        await place.applied(app)
    assert place.worker.alive and place.worker.pid == pid


async def test_a_vo_has_its_own_policy(place: Installation) -> None:
    """The VO is that of the task, or label ``vo``; its section counts instead of the common one."""
    before = place.version()
    place.configure(
        OVERRIDE
        % ("Failing", RETRIES % 2)
        + f"\nvo-overrides: {{lhcb: {{tasks: {{Failing: {{{RETRIES % 1}}}}}}}, atlas: {{tasks: "
        "{Failing: {}}}}"
    )
    await place.published(before)
    async with place.site.app(tasks=(TASKS,)) as app:
        await place.applied(app)
        tried = {vo: await attempts(app, Failing(vo)) for vo in ("", "gridpp", "lhcb", "atlas")}
    assert tried == {"": 3, "gridpp": 3, "lhcb": 2, "atlas": 1}


async def test_priority_and_size_move_new_submissions(place: Installation) -> None:
    """Those of applications, and those of the scheduler."""
    async with place.site.app(tasks=(TASKS,)) as app:
        assert await stream_of(app) == "normal:small"
        place.configure(f"common: {{{TICKING}}}")
        await place.site.until_event("start", task="Tick")
        overrides = "tasks: {Failing: {priority: realtime, size: large}, Tick: {size: medium}}"
        place.configure(f"common: {{{TICKING}, {overrides}}}")
        deadline, stream = time.monotonic() + 20, ""
        while stream != "realtime:large" and time.monotonic() < deadline:
            stream = await stream_of(app)
        assert stream == "realtime:large"
        key = place.site.key("tasks:normal:medium")
        await until(lambda: place.site.redis.exists(key), "a tick waits for a medium worker")
        assert await stream_of(app, size="medium") == "realtime:medium"
        place.scheduler.kill()
        await until(lambda: not place.site.pending(), "nothing runs any more")
        await app.client.cancel_not_running(place.site.live())
    assert place.site.live() == []


async def test_a_limit_of_time_from_the_configuration(place: Installation) -> None:
    """It counts for attempts that begin later, and its path is what the error names."""
    before, gate = place.version(), place.site.gate()
    place.configure(OVERRIDE % ("Patient", "soft-timeout: 0.2, retry-policy: {class: NoRetry}"))
    await place.published(before)
    async with place.site.app(tasks=(TASKS,)) as app:
        await place.applied(app)
        handle = await app.submit(Patient(gate))
        with pytest.raises(TaskFailed, match=r"\(common\.tasks\.Patient\.soft-timeout\)") as raised:
            await handle.result(timeout=WAIT_SECONDS)
    assert raised.value.error_type == "TaskTimeoutError"


async def test_a_process_starts_with_what_is_published(site: Site) -> None:
    """The first task of a worker, while no scheduler runs, is judged by the published document."""
    place = Installation(site, OVERRIDE % ("Failing", RETRIES % 2))
    place.worker.kill()
    await place.published("")
    place.scheduler.kill()
    async with site.app(tasks=(TASKS,)) as app:
        handle = await app.submit(Failing())
        site.worker()
        with pytest.raises(TaskFailed):
            await handle.result(timeout=WAIT_SECONDS)
        assert (await handle.status()).attempt == 3


async def test_children_apply_what_their_worker_does_without_saying_so(site: Site) -> None:
    """Each of them begins with what is published; the log of the worker tells of it once."""
    fresh = f"isolation: fresh, {RETRIES % 2}"
    place = Installation(site, OVERRIDE % ("Failing", fresh))
    await place.published("")
    async with site.app(tasks=(TASKS,)) as app:
        await place.applied(app)
        assert await attempts(app, Failing()) == 3
    assert len({event.pid for event in site.journal("start")} - {place.worker.pid}) == 3
    assert place.worker.log.count(f"configuration applied version={place.version()}") == 1


async def test_an_idle_worker_applies_what_was_published_while_it_was_forgotten(site: Site) -> None:
    """Redis comes back with another configuration before the worker is registered again."""
    place = Installation(site, OVERRIDE % ("Failing", RETRIES % 1))
    await place.published("")
    async with site.app(tasks=(TASKS,)) as app:
        await place.applied(app)
        place.scheduler.kill()
        key = site.key("config")
        published = {**site.redis.hgetall(key), "version": "another"}
        with site.redis.pipeline() as pipe:
            pipe.flushall()
            pipe.hset(key, mapping=published)
            pipe.execute()
        await until(
            lambda: "configuration applied version=another" in place.worker.log, "it is applied"
        )
