"""What the configuration says of classes, changed while real daemons run: promise 19."""

from __future__ import annotations

from acceptance.override_tasks import Failing
from acceptance.site import Site, failure
from daemons import Daemon
from waits import until

from nonet import Nonet

TASKS = "acceptance.override_tasks"
FAILING = (
    "common: {tasks: {Failing: {%s retry-policy: "
    "{class: ExponentialBackoff, args: {base_delay_seconds: 0, max_retries: %d}}}}}"
)


async def published(site: Site, text: str) -> Daemon:
    """Start a scheduler, and wait until it has published this configuration."""
    scheduler = site.scheduler("--config", site.write("config.yaml", text))
    await until(lambda: version(site), "it is published")
    return scheduler


def version(site: Site) -> str:
    return str(site.redis.hget(site.key("config"), "version") or "")


async def attempts(app: Nonet) -> int:
    """How often a task that fails is executed."""
    handle = await app.submit(Failing())
    await failure(app, handle)
    return (await handle.status()).attempt


async def test_a_retry_policy_of_the_file_applies_without_a_restart(site: Site) -> None:
    """It counts for the next attempt that fails."""
    await published(site, "{}")
    worker = site.worker()
    async with site.app() as app:
        assert await attempts(app) == 1
        for retries in (2, 1):
            before = version(site)
            site.write("config.yaml", FAILING % ("", retries))
            await until(lambda: version(site) != before, "another version is published")  # noqa: B023
            applied = f"configuration applied version={version(site)}"
            await until(lambda: applied in worker.log, "the worker applies it")  # noqa: B023
            assert await attempts(app) == retries + 1


async def test_children_apply_what_their_worker_does_and_only_it_reports_so(site: Site) -> None:
    """Each begins with the published configuration, though no scheduler runs any more."""
    (await published(site, FAILING % ("isolation: fresh,", 2))).kill()
    worker = site.worker()
    async with site.app() as app:
        assert await attempts(app) == 3
    assert len({event.pid for event in site.journal("start")} - {worker.pid}) == 3
    assert worker.log.count(f"configuration applied version={version(site)}") == 1
