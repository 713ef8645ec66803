"""Tasks in child processes: promises 6, 8, 9 and 10, whatever a task does to its process."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from acceptance import isolated_tasks as tasks
from acceptance.site import SHORT, Site, failure, result_states, run, submit_all
from acceptance.suspect_tasks import Waits, WaitsInThread
from daemons import Daemon, lives
from waits import WAIT_SECONDS, until

from nonet import Nonet, ResultUnavailable
from nonet.worker.children.forking import ForkServer
from nonet.worker.children.wire import Channel

TASKS = "acceptance.isolated_tasks,acceptance.suspect_tasks"
# What a culprit is told, by its class.
REASONS = {
    "Exits": "TaskCrashed: its process exited with code 1",
    "Segfaults": "TaskCrashed: its process was killed by signal 11 (SIGSEGV)",
    "Hogs": "MemoryLimitExceeded: its process exceeded its memory limit of 256 MiB",
    "HoldsGil": "TaskTimeoutError: hard timeout of 0.5 s exceeded (hard_timeout of HoldsGil); "
    "its process was killed",
    "Swallows": "TaskTimeoutError: hard timeout of 0.5 s exceeded (hard_timeout of Swallows); "
    "its process was killed",
    "Burns": "CpuLimitExceeded: its process exceeded its CPU limit of 0.3 s",
}


def processes_of(worker: Daemon) -> list[int]:
    """The fork server of a worker and its children."""
    return [child.pid for child in psutil.Process(worker.pid).children(recursive=True)]


def exists(path: str) -> bool:
    """Whether there is a file or directory."""
    return Path(path).exists()


async def why_dead(app: Nonet, id: str) -> str:
    """How a task ended that failed for good."""
    return str(await failure(app, id)).partition(": ")[2]


async def test_culprits_hurt_no_neighbour(site: Site) -> None:
    """Each ends as a dead letter with the true reason after three crashes; others run once."""
    site.worker("--concurrency", "4", size="medium")
    async with site.app() as app:
        before = await submit_all(app, [tasks.Neighbour(n) for n in range(12)])
        culprits = await submit_all(app, [made() for made in tasks.CULPRITS])
        after = await submit_all(app, [tasks.Neighbour(n) for n in range(12)])
        told = [await why_dead(app, id) for id in culprits]
        await site.all_ended()
        assert dict(zip(REASONS, told, strict=True)) == REASONS
        letters = {row.task_id: row for row in await (await app.dead_letters()).list(limit=50)}
        event, *_ = await app.stores.events.last(50, kind="child-lost")
        assert re.search(r"child process \d+ of \d+@\S+ died with \w+ \(\S+\): ", event.text)
        assert await result_states(app, [*before, *after]) == {"done": 24}
        hogs = await app.status(culprits[2])
    assert {id: row.reason for id, row in letters.items()} == dict.fromkeys(culprits, "crash")
    runs = Counter(event.id for event in site.journal("start"))
    assert runs == dict.fromkeys(culprits, 3) | dict.fromkeys([*before, *after], 1)
    history = letters[culprits[2]].history
    assert [attempt["attempt"] for attempt in history] == [1, 2, 3]
    assert all(attempt["error"].startswith("MemoryLimitExceeded: ") for attempt in history)
    assert all(attempt["wall"] > 0 and attempt["rss"] > tasks.MEMORY / 2 for attempt in history)
    assert (hogs.reason, hogs.crashes, hogs.attempt) == ("crash", 3, 3)
    assert hogs.usage is not None and hogs.usage.rss == history[-1]["rss"]


async def test_a_task_in_a_child_has_all_that_a_task_has(site: Site) -> None:
    """Context, labels, dependencies, checkpoint, submissions, a directory and a group of its own;
    the directory is gone at the end."""
    began = time.monotonic()
    worker = site.worker(size="medium")
    async with site.app() as app:
        handle = await app.submit(tasks.Whole("é"), labels={"campaign": "x"})
        result = await handle.result(timeout=WAIT_SECONDS)
        assert await app.result(f"{handle}-next", timeout=WAIT_SECONDS) == 7
        assert await app.result(result["child"], timeout=WAIT_SECONDS) == 3
        status = await handle.status()
    assert (result["text"], result["opened"], result["attempt"]) == ("é", "session", 1)
    assert result["labels"] == {"campaign": "x"}
    assert result["pid"] == result["group"] != worker.pid
    assert result["parent"] in processes_of(worker)
    assert not exists(result["workdir"])
    assert [e.event for e in site.journal(id=str(handle))] == ["opened", "committed"]
    assert status.usage is not None
    assert status.usage.rss > 10_000_000 and status.usage.cpu < 30
    assert 0 < status.usage.wall < time.monotonic() - began


@pytest.mark.parametrize(
    ("setting", "processes"),
    [
        pytest.param({}, 1, id="used again"),
        pytest.param({"NONET_CHILD_MAX_TASKS": "2"}, 2, id="after two tasks"),
        pytest.param({"NONET_CHILD_MAX_RSS": "1MiB"}, 4, id="with too much memory"),
    ],
)
async def test_a_child_of_medium_tasks_is_used_again_until_it_is_worn_out(
    site: Site, setting: dict[str, str], processes: int
) -> None:
    """Each process of four tasks in a row ends after its last one; the worker lives on."""
    worker = site.worker("--concurrency", "1", size="medium", **setting)
    async with site.app() as app:
        for n in range(4):
            await run(app, tasks.Neighbour(n))
        used = {event.pid for event in site.journal("start")}
        assert len(used) == processes
        if setting:
            await until(lambda: not any(map(lives, used)), "all have ended")
    assert worker.alive


async def test_what_a_task_does_to_its_child_hurts_no_later_task(site: Site) -> None:
    """It forks, exceeds its memory at its very end, returns too much, or leaves zombies."""
    site.worker("--concurrency", "1", size="medium")
    async with site.app() as app:
        assert await run(app, tasks.Copies()) == "once"
        for n in range(3):
            assert await run(app, tasks.Neighbour(n)) == n
        assert len({event.pid for event in site.journal("start")}) == 1
        with pytest.raises(ResultUnavailable, match=r"exceeds the limit of 262144"):
            await run(app, tasks.Long())
        pids = [await run(app, tasks.Litters(count)) for count in (20, 20, 20, 0)]
        assert pids[0] == pids[1] == pids[2] != pids[3], "50 processes without a parent at most"
        await until(lambda: not lives(pids[0]), "the first has ended")
        for _ in range(8):
            await app.submit(tasks.HogsAtItsEnd())
            await run(app, tasks.Forgets())
        await site.all_ended()


async def test_large_tasks_have_a_process_and_temporary_files_of_their_own(site: Site) -> None:
    """Two of them share neither, and nothing is left behind."""
    site.worker(size="large")
    async with site.app() as app:
        first, second = [await run(app, tasks.Roomy()) for _ in range(2)]
        pids = [event.pid for event in site.journal("start")]
        await until(lambda: not any(lives(pid) for pid in pids), "both processes have ended")
        assert len(set(pids)) == 2
        for directory in (*first, *second):
            await until(lambda d=directory: not exists(d), f"{directory} is gone")


async def test_a_child_lives_for_as_long_as_its_lease_is_renewed(site: Site) -> None:
    """Three leases later it has run once, and ends as it wants."""
    site.settings |= SHORT
    gate = site.gate()
    worker = site.worker(size="medium")
    async with site.app() as app:
        handle = await app.submit(tasks.GatedChild(gate))
        (start,) = await site.started(handle)
        await site.until_beats(worker, 9)
        site.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == start.pid
        assert (await handle.status()).worker_deaths == 0


@pytest.mark.parametrize("end", [Daemon.kill, Daemon.freeze])
async def test_a_worker_that_is_killed_or_frozen_takes_its_children_along(
    site: Site, end: Callable[[Daemon], None]
) -> None:
    """The child that held the mutex is dead before the next holder starts.

    The guardian ends it when its lease is over, though a frozen worker stands still.
    """
    site.settings |= SHORT
    gate, free = site.gate(), site.gate()
    victim = site.worker(size="medium")
    async with site.app() as app:
        held = await app.submit(tasks.Beats(gate))
        (first,) = await site.started(held)
        end(victim)
        site.worker(size="medium")
        await app.submit(tasks.Beats(free))
        (_, second, *_) = await site.until_event("start", 2)
        assert max(beat.at for beat in site.journal("beat", pid=first.pid)) < second.at
        assert not lives(first.pid)
        site.open(gate), site.open(free)
        await site.all_ended()


async def test_a_killed_fork_server_costs_no_attempt(site: Site) -> None:
    """What ran under it runs again, as a suspect of its end; the worker starts another one."""
    site.settings |= SHORT
    gate = site.gate()
    worker = site.worker("--concurrency", "2", size="medium")
    async with site.app() as app:
        ids = await submit_all(app, [tasks.GatedChild(gate)])
        (start,) = await site.started(ids[0])
        server = processes_of(worker)[0]
        os.kill(server, 9)
        await until(lambda: not lives(start.pid), "its child is dead, too")
        _, again = await site.started(ids[0], 2)
        assert again.attempt == 1
        site.open(gate)
        await app.result(ids[0], timeout=WAIT_SECONDS)
        assert (await app.status(ids[0])).state == "done"
    assert worker.alive


async def test_the_policy_is_asked_in_a_process_of_its_own(site: Site) -> None:
    """It gets an exception that knows the signal, and what it decides is done."""
    worker = site.worker("--concurrency", "1", size="medium")
    async with site.app() as app:
        handle = await app.submit(tasks.Asks())
        text = "TaskCrashed: its process was killed by signal 9 (SIGKILL)"
        assert (await why_dead(app, str(handle))).startswith(text)
        asked = site.policy_calls()
    assert len(asked) == len(site.journal("start")) == 2
    for kind, _, pid, signal in asked:
        assert (kind, signal) == ("TaskCrashed", 9)
        assert pid != worker.pid


async def test_a_stop_ends_children_and_hands_their_tasks_back(site: Site) -> None:
    """Obedient and stubborn tasks are both handed back, without an attempt used, and no
    process is left."""
    gate = site.gate()
    worker = site.worker("--concurrency", "2", "--grace", "0.1", size="medium")
    async with site.app() as app:
        ids = await submit_all(app, [tasks.GatedChild(gate), tasks.Stubborn(gate)])
        for id in ids:
            await site.started(id)
        left = processes_of(worker)
        worker.terminate()
        assert worker.wait() == 1
        await until(lambda: not any(map(lives, left)), "no process is left")
        assert await result_states(app, ids) == {"queued": 2}
        site.open(gate)
        site.worker(size="medium")
        for id in ids:
            await app.result(id, timeout=WAIT_SECONDS)
            assert [event.attempt for event in site.journal("start", id=id)] == [1, 1]
            assert (await app.status(id)).worker_deaths == 0


async def test_a_small_task_that_never_yields_costs_one_worker_once(site: Site) -> None:
    """Its worker ends when its hard timeout is over; those beside it are done, it is dead."""
    site.settings |= SHORT
    gate = site.gate()
    first = site.worker("--concurrency", "10")
    async with site.app() as app:
        ids = await submit_all(app, [Waits(gate, n) for n in range(9)])
        await until(lambda: len(site.journal("start")) == 9, "they run")
        culprit = await app.submit(tasks.Endless())
        assert first.wait() == 1
        assert "blocked the event loop beyond its hard timeout" in first.log
        site.open(gate)
        second = site.worker("--concurrency", "10")
        assert "hard timeout of 0.5 s exceeded" in await why_dead(app, culprit)
        await site.all_ended()
        assert await result_states(app, ids) == {"done": 9}
    assert second.alive


async def test_other_code_of_a_task_that_blocks_its_worker_ends_it(site: Site) -> None:
    """Each names its task, and removes its registration, so that no task waits for it."""
    site.settings |= SHORT
    kinds = (tasks.EndlessConstructor, tasks.EndlessLocks, tasks.EndlessPolicy)
    crew = [site.worker("--concurrency", "1") for _ in kinds]
    async with site.app() as app:
        handles = [await app.submit(kind()) for kind in kinds]
        assert [worker.wait() for worker in crew] == [1] * len(kinds)
        logs = "".join(worker.log for worker in crew)
        for kind, handle in zip(kinds, handles, strict=True):
            name = f"task {handle} (isolated_tasks:{kind.__name__})"
            assert f"{name} has blocked the event loop beyond its hard timeout" in logs
            assert "That worker no longer answers" in (await app.explain(handle)).text
        assert await app.stores.results.workers() == []
        await app.cancel(handles)
        site.worker()
        await site.all_ended()


@pytest.mark.parametrize("how", ["other environment", "fork", "double fork"])
async def test_no_process_that_a_task_leaves_lives_on(site: Site, how: str) -> None:
    """Whatever it did to get away: neither after the task nor after its worker was killed."""
    site.settings |= SHORT
    gate, closed = site.gate(), site.gate()
    worker = site.worker(size="large")
    async with site.app() as app:
        await app.submit(tasks.Leaves(how, gate))
        (first,) = await site.until_event("start")
        assert lives(first.details["left"])
        site.open(gate)
        await until(lambda: not lives(first.details["left"]), "what the task left is dead")
        await app.submit(tasks.Leaves(how, closed))
        (_, second) = await site.until_event("start", 2)
        worker.kill()
        await until(lambda: not lives(second.details["left"]), "it is dead with the worker")
        site.open(closed)
        site.worker(size="large")
        await site.all_ended()


async def test_a_task_that_kills_the_fork_server_hurts_no_innocent(site: Site) -> None:
    """Those beside it are done: from the third time on it has a fork server of its own."""
    site.settings |= SHORT
    worker = site.worker("--concurrency", "4", size="medium")
    async with site.app() as app:
        ids = await submit_all(app, [tasks.Slow(n) for n in range(3)])
        culprit = await app.submit(tasks.KillsItsServer())
        text = "its fork server ended, and nothing else ran there"
        assert text in await why_dead(app, str(culprit))
        await site.all_ended()
        assert await result_states(app, ids) == {"done": 3}
        runs = [len(site.journal("start", id=id)) for id in ids]
        assert max(runs) <= 3, "they shared it twice at most"
        (letter,) = await (await app.dead_letters()).list(limit=5)
        assert (letter.task_id, letter.reason) == (str(culprit), "crash")
    assert worker.alive


async def test_a_thread_of_the_loop_ends_before_the_next_holder_starts(site: Site) -> None:
    """A soft timeout cancels the coroutine; its thread is dead with its process."""
    site.worker("--concurrency", "2", size="medium")
    async with site.app() as app:
        first = await site.begin(app, tasks.GoesOnInThread())
        gate = site.gate()
        second = await app.submit(tasks.Beats(gate))
        (start,) = await site.started(second)
        site.open(gate)
        await app.result(second, timeout=WAIT_SECONDS)
        assert max(beat.at for beat in site.journal("beat", id=str(first))) < start.at


async def test_a_child_without_its_directory_is_no_crash_of_a_task(
    site: Site, tmp_path: Path
) -> None:
    """A directory that was removed under an idle worker is made again."""
    place = tmp_path / "temporary"
    place.mkdir()
    site.worker(size="large", TMPDIR=str(place))
    (made,) = place.glob("nonet-children-*")
    made.rmdir()
    async with site.app() as app:
        handle = await app.submit(tasks.Neighbour(1), labels={"size": "large"})
        assert await handle.result(30) == 1
        assert (await app.status(handle)).crashes == 0


async def test_a_child_that_is_reported_at_once_is_ready(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server may answer before its caller listens; the child is ready all the same."""
    connect = Channel.open

    async def late(self: Channel, connection: socket.socket) -> None:
        await asyncio.to_thread(time.sleep, 0.2)  # the loop hears meanwhile
        await connect(self, connection)

    monkeypatch.setattr(Channel, "open", late)
    async with site.app() as app:
        server = ForkServer(app.settings, site.settings["NONET_REDIS_URL"], app.middlewares)
        await server.start()
        try:
            child = await asyncio.wait_for(server.spawn(is_fresh=True), 10)
            assert lives(child.pid)
        finally:
            await server.close()
        assert not lives(child.pid)


async def test_a_child_that_cannot_be_cleaned_up_hurts_no_neighbour(site: Site) -> None:
    """Its module has put something else where stdout was; it ends, and its neighbour runs on."""
    gate = site.gate()
    site.worker("--concurrency", "2", size="large", ISOLATED_STDOUT="1")
    async with site.app() as app:
        labels = {"size": "large"}
        long = await site.begin(app, tasks.GatedChild(gate), labels=labels)
        assert await run(app, tasks.Neighbour(1), labels=labels) == 1
        site.open(gate)
        await long.result(30)
    assert len(site.journal("start", id=str(long))) == 1


async def test_modules_may_meddle_with_signals(site: Site) -> None:
    """The fork server hears of the end of its children all the same."""
    worker = site.worker(size="large", ISOLATED_SIGNALS="1")
    async with site.app() as app:
        for n in range(3):
            handle = await app.submit(tasks.Neighbour(n), labels={"size": "large"})
            assert await handle.result(60) == n
    assert "does not end" not in worker.log and "tells of its end" not in worker.log


async def test_a_process_that_lingers_is_guarded_until_its_end(site: Site) -> None:
    """Its worker stands still after the task has ended; it is dead before the next one starts."""
    site.settings |= SHORT
    worker = site.worker(size="large")
    async with site.app() as app:
        first = await app.submit(tasks.Lingers())
        await site.until_event("lingers")
        worker.freeze()
        gate = site.gate()
        site.worker(size="large")
        await app.submit(tasks.Beats(gate), labels={"size": "large", "priority": "realtime"})
        (start,) = await site.until_event("start", task="Beats")
        site.open(gate)
        pid = site.journal("start", id=str(first))[0].pid
        assert max(beat.at for beat in site.journal("lingers", pid=pid)) < start.at
        await app.client.cancel([str(first)])
        await until(lambda: not site.live(), "all have ended")


async def test_suspects_that_wait_for_a_child_are_handed_back_by_a_stop(site: Site) -> None:
    """A worker that stops starts none of the suspects that wait for their turn."""
    site.settings |= SHORT
    site.settings["NONET_THREADS"] = "30"
    gate = site.gate()
    victim = site.worker("--concurrency", "30")
    async with site.app() as app:
        ids = await submit_all(app, [WaitsInThread(gate, n) for n in range(30)])
        await until(lambda: len(site.journal("start")) == 30, "all of them run")
        victim.kill()
        worker = site.worker("--concurrency", "30")
        await until(lambda: len(site.journal("start")) == 30 + 16, "as many as may")
        worker.terminate()
        await until(lambda: "draining" in worker.log, "it stops")
        site.open(gate)
        assert worker.wait() == 0
        assert await result_states(app, ids) == {"done": 16, "queued": 14}
        site.worker("--concurrency", "30")
        await site.all_ended()
        assert await result_states(app, ids) == {"done": 30}
