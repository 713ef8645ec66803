"""How real daemons follow the configuration while it is edited, swapped and committed."""

from __future__ import annotations

import os
import re
import subprocess
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from acceptance.site import PROBES, Site
from daemons import Daemon
from waits import until

TASKS = f"{PROBES},acceptance.periodic_tasks"
# Two seconds, as is printed, on a machine that does nothing else.
PATIENCE = 10.0


def ticks(seconds: int) -> str:
    """A configuration in which `Tick` fires every so often, and nothing else."""
    off = "".join(
        f"    {name}: [{{enabled: false}}]\n" for name in ("AtNight", "OnMondays", "Exhausted")
    )
    schedule = f"{{class: IntervalSecondsSchedule, arg: {seconds}}}"
    return f"common:\n  periodic-tasks:\n    Tick: [{{schedule: {schedule}}}]\n{off}"


def fired(site: Site) -> list[datetime]:
    """The occurrences that were executed."""
    events = site.journal("start", task="Tick")
    return [datetime.fromisoformat(event.details["occurrence"]) for event in events]


def told(written: float) -> None:
    """How long it took since a file was written."""
    took = time.monotonic() - written
    print(f"effective after {took:.2f} s")
    assert took < PATIENCE


def version(site: Site) -> str:
    return str(site.redis.hget(site.key("config"), "version"))


async def test_an_edited_file_holds_within_two_seconds(site: Site) -> None:
    """From one second to two and back: every point of the grid that held ran, once."""
    site.settings["NONET_TASKS"] = TASKS
    path = site.write("config.yaml", ticks(1))
    site.worker()
    scheduler = site.scheduler("--config", path)
    await until(lambda: len(fired(site)) >= 2, "it fires every second")
    switched = []
    for seconds in (2, 1):
        before = version(site)
        site.write("config.yaml", ticks(seconds))
        written = time.monotonic()
        await until(lambda: version(site) != before, "another version is published")  # noqa: B023
        told(written)
        switched.append(datetime.now(UTC))
        count = len(fired(site))
        await until(lambda: len(fired(site)) >= count + 3, "it goes on")  # noqa: B023
    scheduler.terminate()
    assert scheduler.wait() == 0
    await site.all_ended()
    instants = fired(site)
    assert instants == sorted(set(instants)), "an occurrence ran twice"
    # On a busy machine one may still run when the next is due, which is skipped then.
    found = re.findall(
        r"occurrence (?:FIRED|SKIPPED): entry=\S+:Tick\|\|default at=(\S+)", scheduler.log
    )
    decided = sorted({datetime.fromisoformat(instant) for instant in found})
    steps = [(one, (later - one).total_seconds()) for one, later in pairwise(decided)]
    assert {step for _, step in steps} == {1.0, 2.0}, "an occurrence is missing"
    assert {step for one, step in steps if one < switched[0] - timedelta(seconds=2)} <= {1.0}


async def test_a_mount_that_is_swapped_is_followed(site: Site) -> None:
    """As Kubernetes does it: all files of a directory change with one link."""
    site.settings["NONET_TASKS"] = TASKS
    mount = Path(site.write("marker", "")).with_name("mount")
    mount.mkdir()
    for name, seconds in (("one", 3600), ("two", 1)):
        (mount / f"..{name}").mkdir()
        (mount / f"..{name}" / "config.yaml").write_text(ticks(seconds))
    (mount / "..data").symlink_to("..one")
    (mount / "config.yaml").symlink_to("..data/config.yaml")
    site.worker()
    site.scheduler("--config", str(mount))
    await until(lambda: version(site) != "None", "the first version is published")
    before = version(site)
    (mount / "..new").symlink_to("..two")
    os.replace(mount / "..new", mount / "..data")
    written = time.monotonic()
    await until(lambda: version(site) != before, "the second version is published")
    told(written)
    await until(lambda: len(fired(site)) >= 2, "it fires every second")


async def test_a_commit_is_followed(site: Site) -> None:
    """A git branch is looked at once in its poll interval; a bad commit changes nothing."""
    site.settings |= {"NONET_TASKS": TASKS, "NONET_CONFIG_POLL": "1"}
    repository = Path(site.write("marker", "")).with_name("repository")
    git(repository.parent, "init", "-q", "-b", "main", str(repository))
    commit(repository, ticks(3600))
    site.worker()
    scheduler = site.scheduler("--config", f"git+file://{repository}#main")
    await until(lambda: version(site) != "None", "the first version is published")
    before = version(site)
    commit(repository, ticks(0))
    await until(lambda: "an interval must be between" in scheduler.log, "the bad commit is told of")
    problem = await until(lambda: site.redis.hget(site.key("config"), "problem"), "Redis tells it")
    assert "periodic-tasks.Tick" in problem
    assert version(site) == before
    commit(repository, ticks(1))
    await until(lambda: len(fired(site)) >= 2, "it fires every second")
    assert not site.redis.hget(site.key("config"), "problem")


async def test_a_vo_that_comes_and_goes_has_its_entries(site: Site) -> None:
    """Adding a VO adds its entries, removing it removes them and what waits of them."""
    site.settings["NONET_TASKS"] = TASKS
    path = site.write("config.yaml", "vos: [lhcb]\n")
    site.scheduler("--config", path)
    key = "periodic_tasks:TickOfVo|gridpp|default"

    def occurrence() -> str:
        value = site.redis.hget(site.key("periodic"), key) or ""
        return "" if not value else str(value).split("|")[1]

    site.write("config.yaml", "vos: [lhcb, gridpp]\n")
    await until(occurrence, "an occurrence of the new VO waits: there is no worker")
    waiting = occurrence()
    site.write("config.yaml", "vos: [lhcb]\n")
    await until(lambda: not occurrence(), "the entry is gone")
    assert site.redis.exists(site.key("r:") + waiting)
    assert not site.redis.exists(site.key("t:") + waiting)
    site.worker()
    await site.until_event("start", 2, task="TickOfVo")
    assert {event.details["vo"] for event in site.journal("start", task="TickOfVo")} == {"lhcb"}


async def test_hooks_come_before_the_sweeps(site: Site) -> None:
    """While a start-up hook fails nothing periodic is fired, and the scheduler says why."""
    site.settings["NONET_TASKS"] = f"{TASKS},acceptance.saving_tasks"
    fail = site.write("fail", "")
    site.worker()
    scheduler: Daemon = site.scheduler()
    await until(lambda: "the database is away" in scheduler.log, "the hook fails")
    await until(
        lambda: "the database is away" in str(site.redis.hget(site.key("leader"), "info")),
        "the leader says why nothing fires",
    )
    assert fired(site) == []
    os.unlink(fail)
    await until(lambda: len(fired(site)) >= 2, "it fires then")


def commit(repository: Path, text: str) -> None:
    """Commit a configuration."""
    (repository / "config.yaml").write_text(text)
    git(repository, "add", "config.yaml")
    git(repository, "commit", "-q", "-m", "Change the configuration")


def git(where: Path, *arguments: str) -> None:
    """Run git, whatever is configured here."""
    name = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *name, *arguments], cwd=where, check=True, env=environment)
