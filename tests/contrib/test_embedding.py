"""Workers and a scheduler in the event loop of a program: on a real Redis, in a real FastAPI."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from contrib.embedded_tasks import Beat, Blocks, Gated, Where
from daemons import Daemon
from ports import free_port
from waits import WAIT_SECONDS, until, wait_until
from web.conftest import eventually

from nonet import Nonet, Size
from nonet.config.settings import plain_settings
from nonet.stores.queue.workers import drain

NAMESPACE = "test"
TASKS = "contrib.embedded_tasks"
MakeApp = Callable[..., Nonet]


@pytest.fixture
def make_app(redis_url: str, tmp_path: Path) -> MakeApp:
    """Makes applications that are not open yet."""

    def made(**options: Any) -> Nonet:
        given = {"redis_url": redis_url, "namespace": NAMESPACE, "state_dir": tmp_path}
        return Nonet(plain_settings(**{**given, "tasks": (TASKS,), **options}))

    return made


def runs(place: Path) -> list[str]:
    """The processes that have begun a task which waits at the gate of a place."""
    file = place / "runs"
    return file.read_text().split() if file.exists() else []


async def test_tasks_run_in_the_program(make_app: MakeApp) -> None:
    """Workers are registered when the block begins; small tasks run in the same process."""
    app = make_app()
    async with app.running(sizes=["small", Size.MEDIUM]) as daemons:
        assert daemons.ready and daemons.reasons == []
        assert {item.size for item in await app.stores.results.workers()} == {"small", "medium"}
        small = await app.submit(Where(), labels={"size": "small"})
        medium = await app.submit(Where())
        assert await small.result(timeout=WAIT_SECONDS) == os.getpid()
        assert await medium.result(timeout=WAIT_SECONDS) != os.getpid()
        assert await app.leader() is not None
    with pytest.raises(Exception, match="not open"):
        await app.submit(Where())


async def test_the_scheduler_runs_delayed_and_periodic_tasks(make_app: MakeApp) -> None:
    """It leads when the block begins."""
    app = make_app()
    async with app.running(sizes="small"):
        soon = await app.broker.now() + timedelta(seconds=0.2)
        handle = await app.submit(Where(), labels={"size": "small"}, at_time=soon)
        assert await handle.result(timeout=WAIT_SECONDS) == os.getpid()

        async def has_beaten() -> bool:
            entries = await app.stores.periodic.statuses()
            return any(entry.last is not None for entry in entries if Beat.__name__ in entry.task)

        await eventually(has_beaten, "it has fired")


async def test_an_open_application_stays_open(make_app: MakeApp) -> None:
    """The block neither opens nor closes it, may be entered again, and may have no scheduler."""
    async with make_app() as app:
        for _ in range(2):
            async with app.running(sizes=["small"], scheduler=False):
                assert await app.leader() is None
                handle = await app.submit(Where(), labels={"size": "small"})
                assert await handle.result(timeout=WAIT_SECONDS) == os.getpid()
            assert await app.stores.results.workers() == []
        assert (await app.status(handle)).state == "done"


async def test_tasks_that_do_not_end_are_handed_back(make_app: MakeApp, tmp_path: Path) -> None:
    """The next block runs them; no attempt is used."""
    async with make_app(grace=0.1) as app:
        async with app.running(sizes=["small"], scheduler=False):
            handle = await app.submit(Gated(str(tmp_path)))
            await until(lambda: runs(tmp_path), "it runs")
        assert (await app.status(handle)).state == "queued"
        (tmp_path / "gate").touch()
        async with app.running(sizes=["small"], scheduler=False):
            assert await handle.result(timeout=WAIT_SECONDS) == "through"
        assert (await app.status(handle)).attempt == 1


async def test_a_drained_worker_is_no_failure(make_app: MakeApp) -> None:
    """It ends and the others continue; the program sees why it is not ready."""
    async with make_app() as app, app.running(sizes=["small", "medium"]) as daemons:
        (small,) = [item for item in await app.stores.results.workers() if item.size == "small"]
        await drain(app.broker.scripts, [small.worker], "operator@host 1")

        async def has_left() -> bool:
            return [item.size for item in await app.stores.results.workers()] == ["medium"]

        await eventually(has_left, "the worker has left")
        assert daemons.reasons == ["small worker: it drains"]
        assert await (await app.submit(Where())).result(timeout=WAIT_SECONDS) != os.getpid()


async def test_signals_stay_those_of_the_program(make_app: MakeApp) -> None:
    """No handler is replaced, neither during the block nor after it."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    async with make_app().running(sizes=["small"]):
        await asyncio.sleep(0.6)  # daemons restore their own handlers within half a second
        assert [signal.getsignal(number) for number in numbers] == before
    assert [signal.getsignal(number) for number in numbers] == before


def open_later(place: Path) -> None:
    """Let the task `Blocks` end when it has blocked for long enough to be noticed."""
    wait_until((place / "begun").exists, "the task blocks")
    time.sleep(3)
    (place / "gate").touch()


async def test_a_task_that_blocks_the_loop_does_not_end_the_program(
    make_app: MakeApp, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of the workers logs it, once; a worker process would end."""
    async with make_app() as app, app.running(sizes=["small", "medium"], scheduler=False):
        handle = await app.submit(Blocks(str(tmp_path)))
        threading.Thread(target=open_later, args=(tmp_path,)).start()

        async def has_ended() -> bool:
            return (await app.status(handle)).state in ("done", "dead")

        await eventually(has_ended, "the task has ended")
        await until(lambda: "the event loop was blocked" in caplog.text, "it is logged")
    (told,) = [line for line in caplog.messages if "the event loop was blocked" in line]
    assert f"task {handle} (embedded_tasks:Blocks)" in told


async def test_without_redis_the_block_does_not_begin(make_app: MakeApp) -> None:
    """The error after the time limit has the reason."""
    app = make_app(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(TimeoutError, match="scheduler: Redis has not answered yet"):
        async with app.running(sizes=["small"], timeout=0.5):
            raise AssertionError("the block must not begin")


async def test_a_block_without_daemons_is_refused(make_app: MakeApp) -> None:
    """There must be something to run."""
    with pytest.raises(ValueError, match="nothing to run"):
        async with make_app().running(sizes=[], scheduler=False):
            pass


async def test_one_port_answers_the_probes_of_all_daemons(make_app: MakeApp) -> None:
    """Its metrics are those of all of them."""
    port = free_port()
    app = make_app(metrics_port=port, metrics_host="127.0.0.1")
    async with app.running(sizes=["small"]), httpx.AsyncClient(timeout=WAIT_SECONDS) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        metrics = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    assert "nonet_worker_slots" in metrics and "nonet_scheduler_is_leader" in metrics


def test_daemons_run_in_the_loop_of_a_thread(make_app: MakeApp) -> None:
    """No signal handler can be set there."""

    async def program() -> int:
        async with make_app().running(sizes=["small"], scheduler=False) as _:
            handle = await Where().schedule(labels={"size": "small"})
            return await handle.result(timeout=WAIT_SECONDS)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, program()).result() == os.getpid()


def test_a_web_server_executes_its_own_tasks(redis_url: str, tmp_path: Path) -> None:
    """After SIGTERM its lifespan ends when the running task has."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    variables = {"NONET_REDIS_URL": redis_url, "NONET_NAMESPACE": NAMESPACE}
    variables["NONET_STATE_DIR"] = str(tmp_path / "state")
    command = ("uvicorn", "contrib.embedding_app:web", "--host", "127.0.0.1", f"--port={port}")
    with Daemon(*command, environment=variables, log=tmp_path / "uvicorn.log") as server:
        started = "Application startup complete"
        wait_until(lambda: started in server.log or not server.alive, "it serves")
        with httpx.Client(base_url=url, timeout=WAIT_SECONDS) as client:
            assert client.get("/ready").json() == [], server.log
            assert client.post("/where/small").json() == server.pid
            assert client.post("/where/medium").json() != server.pid
            client.post("/gated", params={"place": str(tmp_path)}).raise_for_status()
        wait_until(lambda: runs(tmp_path), "it runs")
        server.terminate()
        wait_until(lambda: "Waiting for application shutdown" in server.log, "it stops")
        assert server.alive, "it waits for the task"
        (tmp_path / "gate").touch()
        assert server.wait() in (0, -signal.SIGTERM), server.log  # uvicorn raises the signal again
        assert "Application shutdown complete" in server.log
