"""Start-up hooks: once for each epoch, to success, in order."""

from __future__ import annotations

from pathlib import Path

from acceptance.site import PROBES, Site
from daemons import until

TASKS = f"{PROBES},acceptance.saving_tasks"


def lines(site: Site) -> list[str]:
    path = Path(site.settings["PROBE_JOURNAL"]).with_name("hooks")
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def remove(path: str) -> None:
    Path(path).unlink()


async def test_hooks_run_once_for_each_epoch(site: Site) -> None:
    """A fresh Redis runs them once, whoever leads; an emptied one runs them again."""
    site.settings["NONET_TASKS"] = TASKS
    first = site.scheduler()
    site.worker()
    await until(lambda: lines(site) == ["reset", "second"], "both hooks have run")
    await until(lambda: len(site.journal("end", task="Quick")) == 1, "what the hook submits runs")
    first.terminate()
    second = site.scheduler()
    await until(lambda: site.redis.hget(site.key("leader"), "owner"), "somebody leads")
    await until(lambda: "leading in term" in second.log, "the second one leads")
    site.redis.flushall()
    await until(lambda: lines(site) == ["reset", "second"] * 2, "they have run again, once")
    await until(lambda: len(site.journal("end", task="Quick")) == 2, "and what they submit runs")
    await site.all_ended()


async def test_a_failing_hook_is_tried_again_before_the_next(site: Site) -> None:
    """Order is kept, the failure is an event, and the hook ends by succeeding."""
    site.settings["NONET_TASKS"] = TASKS
    fail = site.write("fail", "")
    site.worker()
    site.scheduler()
    await until(lambda: lines(site).count("reset") >= 3, "it is tried again and again")
    assert "second" not in lines(site)
    remove(fail)
    await until(lambda: lines(site)[-1:] == ["second"], "the next one runs then")
    kinds = [fields["text"] for _, fields in site.redis.xrange(site.key("events"))]
    assert [text.partition("reset: ")[2] for text in kinds[:2]] == [
        "failed: RuntimeError: the database is away",
        "done",
    ]
    await site.all_ended()


async def test_a_killed_scheduler_leaves_the_rest_to_the_next(site: Site) -> None:
    """What was done is not done again; what was not is."""
    site.settings["NONET_TASKS"] = TASKS
    fail = site.write("fail", "")
    site.worker()
    first = site.scheduler()
    await until(lambda: lines(site), "the first hook was tried")
    first.kill()
    remove(fail)
    before = len(lines(site))
    site.scheduler()
    await until(lambda: lines(site)[before:] == ["reset", "second"], "the next leader goes on")
    await site.all_ended()
