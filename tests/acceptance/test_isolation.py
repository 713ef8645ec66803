"""Tasks in child processes: promises 6, 8, 9 and 10, whatever a task does to its process."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from acceptance import isolated_tasks as tasks
from acceptance.site import LOCK_TTL, Site, result_states, submit_all
from daemons import Daemon, lives
from waits import WAIT_SECONDS, until

from nonet import Nonet, ResultUnavailable, TaskFailed
from nonet.stores.sql.database import upgrade
from nonet.worker.children.forking import ForkServer
from nonet.worker.children.processes import resident
from nonet.worker.children.wire import Channel

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


@pytest.fixture
def isolated(site: Site) -> Site:
    """A site whose daemons know the tasks of this module."""
    site.settings["NONET_TASKS"] = "acceptance.isolated_tasks"
    return site


def processes_of(worker: Daemon) -> list[int]:
    """The fork server of a worker and its children."""
    found, waiting = [], [worker.pid]
    while waiting:
        of = waiting.pop()
        for thread in Path(f"/proc/{of}/task").glob("*/children"):
            pids = [int(pid) for pid in thread.read_text().split()]
            found += pids
            waiting += pids
    return found


def exists(path: str) -> bool:
    """Whether there is a file or directory."""
    return Path(path).exists()


async def why_dead(app: Nonet, id: str) -> str:
    """How a task ended that failed for good."""
    with pytest.raises(TaskFailed) as failed:
        await app.result(id, timeout=WAIT_SECONDS)
    return str(failed.value).partition(": ")[2]


@pytest.mark.parametrize("size", ["medium", "large"])
async def test_culprits_hurt_nobody_else(isolated: Site, mariadb_url: str, size: str) -> None:
    """Each culprit ends as a dead letter with the true reason after three crashes; all neighbours
    are done, in one attempt each."""
    await upgrade(mariadb_url)
    isolated.worker("--concurrency", "4", size=size, NONET_DB_URL=mariadb_url)
    async with isolated.app(db_url=mariadb_url) as app:
        labels = {"size": size}
        before = await submit_all(app, [tasks.Neighbour(n) for n in range(12)], labels=labels)
        culprits = await submit_all(app, [made() for made in tasks.CULPRITS], labels=labels)
        after = await submit_all(app, [tasks.Neighbour(n) for n in range(12)], labels=labels)
        told = {id: await why_dead(app, id) for id in culprits}
        await isolated.all_ended(seconds=60)
        letters = await (await app.dead_letters()).list(limit=50)
        event, *_ = await app.stores.events.last(50, kind="child-lost")
        assert re.search(r"child process \d+ of \d+@\S+ died with \w+ \(\S+\): ", event.text)
        assert await result_states(app, [*before, *after]) == {"done": 24}
    by_name = dict(zip(REASONS, told.values(), strict=True))
    assert by_name == REASONS
    assert sorted((row.task_id, row.reason) for row in letters) == sorted(
        (id, "crash") for id in culprits
    )
    for id in culprits:
        assert len(isolated.journal("start", id=id)) == 3, "the crash limit"
    for id in (*before, *after):
        assert len(isolated.journal("start", id=id)) == 1, "an innocent ran again"


async def test_the_slot_is_free_soon_after_the_hard_limit(isolated: Site) -> None:
    """What holds the GIL beyond its hard limit is dead soon after, and another one runs."""
    freed = await _seconds_until_the_slot_is_free(isolated, "medium")
    assert freed < 10, "not for ever"


@pytest.mark.soak
@pytest.mark.parametrize("size", ["medium", "large"])
async def test_the_slot_is_free_two_seconds_after_the_hard_limit(isolated: Site, size: str) -> None:
    """The same as a figure, on a machine that does nothing else."""
    freed = await _seconds_until_the_slot_is_free(isolated, size)
    print(f"\n{size}: slot free {freed:.2f} s after the hard limit")
    assert freed <= 2


async def _seconds_until_the_slot_is_free(isolated: Site, size: str) -> float:
    isolated.worker("--concurrency", "1", size=size)
    async with isolated.app() as app:
        culprit = await app.submit(tasks.HoldsGil(), labels={"size": size})
        (start,) = await isolated.started(culprit)
        labels = {"priority": "realtime", "size": size}
        next_one = await app.submit(tasks.Neighbour(1), labels=labels)
        (other,) = await isolated.started(next_one)
        assert not lives(start.pid)
        await why_dead(app, culprit)
        return other.at - start.at - tasks.HARD_SECONDS


async def test_a_task_in_a_child_has_all_that_a_task_has(isolated: Site) -> None:
    """Context, labels, dependencies, checkpoint, submissions, a directory and a group of its own;
    the directory is gone at the end."""
    worker = isolated.worker(size="medium")
    async with isolated.app() as app:
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
    assert [e.event for e in isolated.journal(id=str(handle))] == ["opened", "committed"]
    assert status.usage is not None
    assert status.usage.rss > 10_000_000 and status.usage.cpu < 30


async def test_children_of_medium_tasks_are_used_again_until_worn_out(isolated: Site) -> None:
    """Ten tasks one after the other use one process, unless it is replaced after three tasks."""
    isolated.worker("--concurrency", "1", size="medium")
    async with isolated.app() as app:
        for n in range(6):
            await (await app.submit(tasks.Neighbour(n))).result(timeout=WAIT_SECONDS)
        assert len({event.pid for event in isolated.journal("start")}) == 1


async def test_a_child_is_replaced_after_so_many_tasks(isolated: Site) -> None:
    """With a limit of two tasks six of them need three processes, each ended after its last."""
    worker = isolated.worker("--concurrency", "1", size="medium", NONET_CHILD_MAX_TASKS="2")
    async with isolated.app() as app:
        for n in range(6):
            await (await app.submit(tasks.Neighbour(n))).result(timeout=WAIT_SECONDS)
        used = list(dict.fromkeys(event.pid for event in isolated.journal("start")))
        assert len(used) == 3
        await until(lambda: not any(lives(pid) for pid in used), "all have ended")
    assert worker.alive


async def test_a_child_with_too_many_zombies_is_replaced(isolated: Site) -> None:
    """What tasks leave without a parent stays with their child, up to 50 processes, not longer."""
    isolated.worker("--concurrency", "1", size="medium")
    async with isolated.app() as app:
        pids = [
            await (await app.submit(tasks.Litters(count))).result(timeout=WAIT_SECONDS)
            for count in (20, 20, 20, 0)
        ]
        assert pids[0] == pids[1] == pids[2] != pids[3]
        await until(lambda: not lives(pids[0]), "the first has ended")


async def test_a_child_with_too_much_memory_is_replaced(isolated: Site) -> None:
    """Where it may have next to none, each task gets a process of its own."""
    isolated.worker("--concurrency", "1", size="medium", NONET_CHILD_MAX_RSS="1MiB")
    async with isolated.app() as app:
        for n in range(3):
            await (await app.submit(tasks.Neighbour(n))).result(timeout=WAIT_SECONDS)
    assert len({event.pid for event in isolated.journal("start")}) == 3


async def test_large_tasks_have_a_process_and_temporary_files_of_their_own(isolated: Site) -> None:
    """Two of them share neither, and nothing is left behind."""
    isolated.worker(size="large")
    async with isolated.app() as app:
        first, second = [await (await app.submit(tasks.Roomy())).result(30) for _ in range(2)]
        pids = [event.pid for event in isolated.journal("start")]
        await until(lambda: not any(lives(pid) for pid in pids), "both processes have ended")
        assert len(set(pids)) == 2
        for directory in (*first, *second):
            await until(lambda d=directory: not exists(d), f"{directory} is gone")


async def test_small_tasks_can_be_isolated(isolated: Site) -> None:
    """By their class, or because they have a limit of memory."""
    worker = isolated.worker()
    async with isolated.app() as app:
        assert await (await app.submit(tasks.Inside())).result(30) != worker.pid
        assert await (await app.submit(tasks.SmallHog())).result(30) != worker.pid


async def test_a_child_lives_for_as_long_as_its_lease_is_renewed(isolated: Site) -> None:
    """Three leases later it has run once, and ends as it wants."""
    gate = isolated.gate()
    isolated.worker(size="medium")
    async with isolated.app() as app:
        handle = await app.submit(tasks.GatedChild(gate))
        (start,) = await isolated.started(handle)
        await until(lambda: time.time() > start.at + 3 * LOCK_TTL, "its first lease is over")
        isolated.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == start.pid
        assert (await handle.status()).worker_deaths == 0


async def test_a_worker_that_is_killed_takes_its_children_along(isolated: Site) -> None:
    """The child that held the mutex is dead before the next holder starts."""
    await _next_holder_starts_after(isolated, lambda worker: worker.kill())


async def test_a_worker_that_is_frozen_takes_its_children_along(isolated: Site) -> None:
    """The guardian ends the child when its lease is over, though its worker stands still."""
    await _next_holder_starts_after(isolated, lambda worker: worker.freeze())


async def _next_holder_starts_after(isolated: Site, end: Any) -> None:
    gates = [isolated.gate(), isolated.gate()]
    victim = isolated.worker(size="medium")
    async with isolated.app() as app:
        held = await app.submit(tasks.Beats(gates[0]))
        await isolated.started(held)
        end(victim)
        isolated.worker(size="medium")
        next_one = await app.submit(tasks.Beats(gates[1]))
        first = (await until(lambda: isolated.journal("start")[1:], "another holder starts"))[0]
        beats = isolated.journal("beat", pid=isolated.journal("start")[0].pid)
        assert max(beat.at for beat in beats) < first.at
        assert not lives(beats[0].pid)
        for gate in gates:
            isolated.open(gate)
        await app.result(held, timeout=WAIT_SECONDS)
        await app.result(next_one, timeout=WAIT_SECONDS)


async def test_a_killed_fork_server_costs_no_attempt(isolated: Site) -> None:
    """What ran under it runs again, as a suspect of its end; the worker starts another one."""
    gate = isolated.gate()
    worker = isolated.worker("--concurrency", "2", size="medium")
    async with isolated.app() as app:
        ids = await submit_all(app, [tasks.GatedChild(gate)])
        (start,) = await isolated.started(ids[0])
        server = processes_of(worker)[0]
        os.kill(server, 9)
        await until(lambda: not lives(start.pid), "its child is dead, too")
        _, again = await isolated.started(ids[0], 2)
        assert again.attempt == 1
        isolated.open(gate)
        await app.result(ids[0], timeout=WAIT_SECONDS)
        assert (await app.status(ids[0])).state == "done"
    assert worker.alive


async def test_the_policy_is_asked_in_a_process_of_its_own(isolated: Site) -> None:
    """It gets an exception that knows the signal, and what it decides is done."""
    worker = isolated.worker("--concurrency", "1", size="medium")
    async with isolated.app() as app:
        handle = await app.submit(tasks.Asks())
        text = "TaskCrashed: its process was killed by signal 9 (SIGKILL)"
        assert (await why_dead(app, str(handle))).startswith(text)
        asked = isolated.policy_calls()
    assert len(asked) == len(isolated.journal("start")) == 2
    for kind, _, pid, signal in asked:
        assert (kind, signal) == ("TaskCrashed", 9)
        assert pid != worker.pid


async def test_a_stop_ends_children_and_hands_their_tasks_back(isolated: Site) -> None:
    """One that obeys and one that does not are both handed back, without an attempt used, and no
    process is left."""
    gate = isolated.gate()
    worker = isolated.worker("--concurrency", "2", "--grace", "0.1", size="medium")
    async with isolated.app() as app:
        ids = await submit_all(app, [tasks.GatedChild(gate), tasks.Stubborn(gate)])
        for id in ids:
            await isolated.started(id)
        left = processes_of(worker)
        worker.terminate()
        assert worker.wait() == 1
        await until(lambda: not any(map(lives, left)), "no process is left")
        assert await result_states(app, ids) == {"queued": 2}
        isolated.open(gate)
        isolated.worker(size="medium")
        for id in ids:
            await app.result(id, timeout=WAIT_SECONDS)
            assert [event.attempt for event in isolated.journal("start", id=id)] == [1, 1]
            assert (await app.status(id)).worker_deaths == 0


async def test_what_a_task_started_ends_with_it(isolated: Site) -> None:
    """A process that it has put into a session of its own does not outlive a killed worker."""
    gate = isolated.gate()
    worker = isolated.worker(size="large")
    async with isolated.app() as app:
        handle = await app.submit(tasks.Spawns(gate))
        (start,) = await isolated.started(handle)
        started = start.details["started"]
        assert lives(started)
        worker.kill()
        await until(lambda: not lives(started), "what it started is dead")
        isolated.open(gate)
        isolated.worker(size="large")
        second = await app.result(handle, timeout=WAIT_SECONDS)
        await until(lambda: not lives(second), "what the second attempt started, too")


async def test_a_thread_that_goes_on_ends_before_its_locks_do(isolated: Site) -> None:
    """A soft timeout does not end a thread; its process is replaced before the task is settled."""
    isolated.worker("--concurrency", "1", "--grace", "0", size="medium")
    async with isolated.app() as app:
        gate = isolated.gate()
        handle = await app.submit(tasks.InThread(gate))
        (start,) = await isolated.started(handle)
        await app.client.cancel([str(handle)])
        await until(lambda: not isolated.live(), "it has ended")
        assert not lives(start.pid)
        assert (await app.status(handle)).state == "cancelled"


@pytest.mark.parametrize(
    "count", [pytest.param(30, id="scaled"), pytest.param(100, id="full", marks=pytest.mark.soak)]
)
async def test_poison_costs_one_worker_once(isolated: Site, mariadb_url: str, count: int) -> None:
    """Of many small tasks in a worker one kills it: those beside it are done, it is a dead letter,
    and the second worker lives."""
    gate = isolated.gate()
    await upgrade(mariadb_url)
    first = isolated.worker("--concurrency", str(count), NONET_DB_URL=mariadb_url)
    async with isolated.app(db_url=mariadb_url) as app:
        others = [tasks.Small(gate, n) for n in range(count - 1)]
        ids = await submit_all(app, [*others, tasks.Poison(gate)])
        await until(lambda: len(isolated.journal("start")) == count, "all of them run")
        isolated.open(gate)
        assert first.wait() == 3
        second = isolated.worker("--concurrency", str(count), NONET_DB_URL=mariadb_url)
        assert await why_dead(app, ids[-1]) == "TaskCrashed: its process exited with code 3"
        await isolated.all_ended(seconds=60)
        assert await result_states(app, ids) == {"done": count - 1, "dead": 1}
        (letter,) = await (await app.dead_letters()).list(limit=5)
        assert (letter.task_id, letter.reason) == (ids[-1], "crash")
    assert second.alive


async def test_a_small_task_that_never_yields_costs_one_worker_once(
    isolated: Site, mariadb_url: str
) -> None:
    """Its worker ends when its hard timeout is over; those beside it are done, it is dead."""
    gate = isolated.gate()
    await upgrade(mariadb_url)
    first = isolated.worker("--concurrency", "10", NONET_DB_URL=mariadb_url)
    async with isolated.app(db_url=mariadb_url) as app:
        ids = await submit_all(app, [tasks.Small(gate, n) for n in range(9)])
        await until(lambda: len(isolated.journal("start")) == 9, "they run")
        culprit = await app.submit(tasks.Endless())
        assert first.wait() == 1
        assert "blocked the event loop beyond its hard timeout" in first.log
        isolated.open(gate)
        second = isolated.worker("--concurrency", "10", NONET_DB_URL=mariadb_url)
        assert "hard timeout of 0.5 s exceeded" in await why_dead(app, culprit)
        await isolated.all_ended(seconds=60)
        assert await result_states(app, ids) == {"done": 9}
    assert second.alive


@pytest.mark.parametrize(
    "kind", [tasks.EndlessConstructor, tasks.EndlessLocks, tasks.EndlessPolicy]
)
async def test_also_other_code_of_a_task_ends_a_worker_that_it_blocks(
    isolated: Site, kind: type[tasks.EndlessOutside]
) -> None:
    """It names the task, and takes its registration along: nobody counts on it any more."""
    worker = isolated.worker()
    async with isolated.app() as app:
        handle = await app.submit(kind())
        assert worker.wait() == 1
        name = f"task {handle} (isolated_tasks:{kind.__name__})"
        assert f"{name} has blocked the event loop beyond its hard timeout" in worker.log
        assert await app.client.results.workers() == []
        assert "That worker no longer answers" in (await app.explain(handle)).text
        await handle.cancel()
        isolated.worker()
        await isolated.all_ended()


async def _memory_before_and_after(isolated: Site, size: int) -> tuple[int, int, int]:
    """Resident memory of the worker and all its processes, before and 2 s after a large task."""
    worker = isolated.worker(size="large")

    def all_of_it() -> int:
        return sum(map(resident, [worker.pid, *processes_of(worker)]))

    async with isolated.app() as app:
        await app.result(await app.submit(tasks.Allocates(1000)), timeout=WAIT_SECONDS)
        before = all_of_it()
        handle = await app.submit(tasks.Allocates(size))
        await app.result(handle, timeout=300)
        usage = (await app.status(handle)).usage
        assert usage is not None and usage.rss is not None
        ended = time.monotonic()
        await until(lambda: time.monotonic() - ended > 2, "two seconds have passed")
        return before, usage.rss, all_of_it()


async def test_a_large_task_gives_its_memory_back(isolated: Site) -> None:
    """Though it leaves references behind that keep whole pages from being freed."""
    before, peak, after = await _memory_before_and_after(isolated, 64 * 1024**2)
    assert peak - before > 0 or peak > 64 * 1024**2
    assert after - before < 20 * 1024**2


async def test_a_cancelled_small_task_that_goes_on_is_left_alone(isolated: Site) -> None:
    """It ends cancelled after the grace, which the log tells; its slot is free, and nothing that
    it does counts."""
    worker = isolated.worker("--concurrency", "1", NONET_CANCEL_GRACE="0.3")
    async with isolated.app() as app:
        gate = isolated.gate()
        handle = await app.submit(tasks.StubbornSmall(gate))
        await isolated.started(handle)
        await app.client.cancel([str(handle)])
        await until(lambda: not isolated.live(), "it has ended")
        assert (await app.status(handle)).state == "cancelled"
        assert f"task {handle} (isolated_tasks:StubbornSmall) still runs although" in worker.log
        next_one = await app.submit(tasks.StubbornSmall(isolated.gate()))
        await isolated.started(next_one)
        isolated.open(gate)
        await isolated.until_event("end", id=str(handle))
        assert (await app.status(handle)).state == "cancelled"
        assert not isolated.journal("end", id=str(next_one)), "only the one whose gate is open"
        await app.client.cancel([str(next_one)])
        await until(lambda: not isolated.live(), "the other one has ended")


async def test_a_cancelled_task_in_a_child_that_goes_on_is_killed(isolated: Site) -> None:
    """After the grace; its process is dead when the task has ended."""
    isolated.worker("--concurrency", "1", size="medium", NONET_CANCEL_GRACE="0.3")
    async with isolated.app() as app:
        handle = await app.submit(tasks.Stubborn(isolated.gate()))
        (start,) = await isolated.started(handle)
        await app.client.cancel([str(handle)])
        await until(lambda: not isolated.live(), "it has ended")
        assert not lives(start.pid)
        assert isolated.journal("cancelled"), "it was asked first"
        assert (await app.status(handle)).state == "cancelled"


@pytest.mark.parametrize("how", ["other environment", "fork", "double fork"])
@pytest.mark.parametrize("end", ["task", "worker"])
async def test_nothing_that_a_task_leaves_goes_on(isolated: Site, how: str, end: str) -> None:
    """Whatever it did to get away: neither after the task nor after its worker was killed."""
    gate = isolated.gate()
    worker = isolated.worker(size="large")
    async with isolated.app() as app:
        handle = await app.submit(tasks.Leaves(how, gate))
        (start,) = await isolated.started(handle)
        left = start.details["left"]
        assert lives(left)
        if end == "worker":
            worker.kill()
        else:
            isolated.open(gate)
        await until(lambda: not lives(left), "it is dead")
        isolated.open(gate)
        if end == "worker":
            isolated.worker(size="large")
        await app.result(handle, timeout=WAIT_SECONDS)
        for event in isolated.journal("start"):
            await until(lambda e=event: not lives(e.details["left"]), "all are dead")


async def test_who_kills_the_fork_server_hurts_no_innocent(
    isolated: Site, mariadb_url: str
) -> None:
    """Those beside it are done: from the third time on it has a fork server of its own."""
    await upgrade(mariadb_url)
    worker = isolated.worker("--concurrency", "4", size="medium", NONET_DB_URL=mariadb_url)
    async with isolated.app(db_url=mariadb_url) as app:
        ids = await submit_all(app, [tasks.Slow(n) for n in range(3)])
        culprit = await app.submit(tasks.KillsItsServer())
        text = "its fork server ended, and nothing else ran there"
        assert text in await why_dead(app, str(culprit))
        await isolated.all_ended(seconds=60)
        assert await result_states(app, ids) == {"done": 3}
        runs = [len(isolated.journal("start", id=id)) for id in ids]
        assert max(runs) <= 3, "they shared it twice at most"
        (letter,) = await (await app.dead_letters()).list(limit=5)
        assert (letter.task_id, letter.reason) == (str(culprit), "crash")
    assert worker.alive


async def test_a_thread_of_the_loop_ends_before_the_next_holder_starts(isolated: Site) -> None:
    """A soft timeout cancels the coroutine; its thread is dead with its process."""
    isolated.worker("--concurrency", "2", size="medium")
    async with isolated.app() as app:
        first = await app.submit(tasks.GoesOnInThread())
        await isolated.started(first)
        gate = isolated.gate()
        second = await app.submit(tasks.Beats(gate))
        (start,) = await isolated.started(second)
        isolated.open(gate)
        await app.result(second, timeout=WAIT_SECONDS)
        assert max(beat.at for beat in isolated.journal("beat", id=str(first))) < start.at


async def test_a_copy_of_a_child_does_not_answer_for_it(isolated: Site) -> None:
    """After a task that forked itself the next ones run once each, in the one process."""
    isolated.worker("--concurrency", "1", size="medium")
    async with isolated.app() as app:
        assert await (await app.submit(tasks.Copies())).result(30) == "once"
        for n in range(3):
            assert await (await app.submit(tasks.Neighbour(n))).result(30) == n
    assert len(isolated.journal("start")) == 3
    assert len({event.pid for event in isolated.journal("start")}) == 1


async def test_what_is_no_message_ends_the_child_that_sent_it(isolated: Site) -> None:
    """It is a crash, not a worker that waits for the rest for ever."""
    worker = isolated.worker("--concurrency", "1", size="medium")
    async with isolated.app() as app:
        culprit = await app.submit(tasks.Rude())
        assert "TaskCrashed" in await why_dead(app, str(culprit))
        assert await (await app.submit(tasks.Neighbour(1))).result(30) == 1
    assert worker.alive


async def test_a_child_without_its_directory_is_no_crash_of_a_task(
    isolated: Site, tmp_path: Path
) -> None:
    """Somebody has cleaned up under an idle worker: it is made again."""
    place = tmp_path / "temporary"
    place.mkdir()
    isolated.worker(size="large", TMPDIR=str(place))
    (made,) = place.glob("nonet-children-*")
    made.rmdir()
    async with isolated.app() as app:
        handle = await app.submit(tasks.Neighbour(1), labels={"size": "large"})
        assert await handle.result(30) == 1
        assert (await app.status(handle)).crashes == 0


async def test_what_is_told_of_a_child_at_once_is_heard(
    isolated: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server answers before who asked it goes on; the child is no less ready."""
    connect = Channel.open

    async def late(self: Channel, connection: socket.socket) -> None:
        await asyncio.to_thread(time.sleep, 0.2)  # the loop hears meanwhile
        await connect(self, connection)

    monkeypatch.setattr(Channel, "open", late)
    async with isolated.app() as app:
        server = ForkServer(app.settings, isolated.settings["NONET_REDIS_URL"], app.middlewares)
        await server.start()
        try:
            child = await asyncio.wait_for(server.spawn(is_fresh=True), 10)
            assert lives(child.pid)
        finally:
            await server.close()
        assert not lives(child.pid)


async def test_a_child_that_cannot_be_cleaned_up_hurts_nobody(isolated: Site) -> None:
    """Its module has put something else where stdout was; it ends, and its neighbour goes on."""
    gate = isolated.gate()
    isolated.worker("--concurrency", "2", size="large", ISOLATED_STDOUT="1")
    async with isolated.app() as app:
        labels = {"size": "large"}
        long = await app.submit(tasks.GatedChild(gate), labels=labels)
        await isolated.started(long)
        assert await (await app.submit(tasks.Neighbour(1), labels=labels)).result(30) == 1
        isolated.open(gate)
        await long.result(30)
    assert len(isolated.journal("start", id=str(long))) == 1


async def test_modules_may_meddle_with_signals(isolated: Site) -> None:
    """The fork server hears of the end of its children all the same."""
    worker = isolated.worker(size="large", ISOLATED_SIGNALS="1")
    async with isolated.app() as app:
        for n in range(3):
            handle = await app.submit(tasks.Neighbour(n), labels={"size": "large"})
            assert await handle.result(60) == n
    assert "does not end" not in worker.log and "tells of its end" not in worker.log


async def test_a_process_that_lingers_is_guarded_until_its_end(isolated: Site) -> None:
    """Its worker stands still after the task has ended; it is dead before the next one starts."""
    worker = isolated.worker(size="large")
    async with isolated.app() as app:
        first = await app.submit(tasks.Lingers())
        await isolated.until_event("lingers")
        worker.freeze()
        gate = isolated.gate()
        isolated.worker(size="large")
        await app.submit(tasks.Beats(gate), labels={"size": "large", "priority": "realtime"})
        (start,) = await isolated.until_event("start", task="Beats")
        isolated.open(gate)
        pid = isolated.journal("start", id=str(first))[0].pid
        assert max(beat.at for beat in isolated.journal("lingers", pid=pid)) < start.at
        await app.client.cancel([str(first)])
        await until(lambda: not isolated.live(), "all have ended")


async def test_a_late_kill_is_charged_to_nobody_else(isolated: Site) -> None:
    """Of tasks that exceed their limit as they end, those that follow in the process are done."""
    isolated.worker("--concurrency", "1", size="medium")
    async with isolated.app() as app:
        innocents = []
        for _ in range(30):
            await app.submit(tasks.HogsAtItsEnd())
            innocents.append(str(await app.submit(tasks.Forgets())))
        await isolated.all_ended(seconds=60)
        assert await result_states(app, innocents) == {"done": 30}


async def test_who_waits_for_a_child_is_handed_back_at_once(isolated: Site) -> None:
    """A worker that stops starts none of the suspects that wait for their turn."""
    gate = isolated.gate()
    victim = isolated.worker("--concurrency", "30")
    async with isolated.app() as app:
        ids = await submit_all(app, [tasks.SmallThread(gate, n) for n in range(30)])
        await until(lambda: len(isolated.journal("start")) == 30, "all of them run")
        victim.kill()
        worker = isolated.worker("--concurrency", "30")
        await until(lambda: len(isolated.journal("start")) == 30 + 16, "as many as may")
        worker.terminate()
        await until(lambda: "draining" in worker.log, "it stops")
        isolated.open(gate)
        assert worker.wait() == 0
        assert await result_states(app, ids) == {"done": 16, "queued": 14}
        isolated.worker("--concurrency", "30")
        await isolated.all_ended()
        assert await result_states(app, ids) == {"done": 30}


@pytest.mark.parametrize("size", ["small", "medium"])
async def test_a_result_that_is_too_long_is_left_out(isolated: Site, size: str) -> None:
    """The task is done wherever it ran, and says why there is no result."""
    isolated.worker(size=size)
    async with isolated.app() as app:
        handle = await app.submit(tasks.Long(), labels={"size": size})
        with pytest.raises(ResultUnavailable, match=r"exceeds the limit of 262144"):
            await handle.result(30)
        assert (await handle.status()).state == "done"
