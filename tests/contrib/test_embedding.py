"""Workers and a scheduler in the event loop of a program: on a real Redis, in a real FastAPI."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
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


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


async def test_tasks_run_in_the_program(make_app: MakeApp) -> None:
    """Workers are registered when the block begins; small tasks run in the same process."""
    app = make_app()
    async with app.running(sizes=["small", Size.MEDIUM]) as daemons:
        assert daemons.ready and daemons.reasons == []
        assert {item.size for item in await app.client.results.workers()} == {"small", "medium"}
        small = await app.submit(Where(), labels={"size": "small"})
        medium = await app.submit(Where())
        assert await small.result(timeout=WAIT_SECONDS) == os.getpid()
        assert await medium.result(timeout=WAIT_SECONDS) != os.getpid()
        assert await app.leader() is not None
    with pytest.raises(Exception, match="not open"):
        await app.submit(Where())


async def test_the_scheduler_runs_delayed_and_periodic_tasks(make_app: MakeApp) -> None:
    """It leads when the block begins, so nothing waits for a first election."""
    app = make_app()
    async with app.running(sizes="small"):
        soon = await app.broker.now() + timedelta(seconds=0.2)
        handle = await app.submit(Where(), labels={"size": "small"}, at_time=soon)
        assert await handle.result(timeout=WAIT_SECONDS) == os.getpid()

        async def has_beaten() -> bool:
            entries = await app.stores.periodic.statuses()
            return any(entry.last is not None for entry in entries if Beat.__name__ in entry.task)

        await eventually(has_beaten)


async def test_without_a_scheduler_none_leads(make_app: MakeApp) -> None:
    """A program may leave that to others."""
    app = make_app()
    async with app.running(sizes=["small"], scheduler=False):
        assert await app.leader() is None


async def test_an_open_application_stays_open(make_app: MakeApp) -> None:
    """The block neither opens nor closes it, and may be entered again."""
    async with make_app() as app:
        for _ in range(2):
            async with app.running(sizes=["small"], scheduler=False):
                handle = await app.submit(Where(), labels={"size": "small"})
                assert await handle.result(timeout=WAIT_SECONDS) == os.getpid()
            assert await app.client.results.workers() == []
        assert (await app.status(handle)).state == "done"


async def test_running_tasks_may_end_at_the_end_of_the_block(
    make_app: MakeApp, tmp_path: Path
) -> None:
    """Within the grace period, as at SIGTERM."""
    async with make_app() as app:
        async with app.running(sizes=["small"], scheduler=False):
            handle = await app.submit(Gated(str(tmp_path)))
            await until(lambda: runs(tmp_path), "it runs")
            asyncio.get_running_loop().call_later(0.3, (tmp_path / "gate").touch)
        assert (await app.status(handle)).state == "done"


async def test_tasks_that_do_not_end_are_handed_back(make_app: MakeApp, tmp_path: Path) -> None:
    """After the grace period, without an attempt used; the next block runs them."""
    async with make_app(grace=0.1) as app:
        async with app.running(sizes=["small"], scheduler=False):
            handle = await app.submit(Gated(str(tmp_path)))
            await until(lambda: runs(tmp_path), "it runs")
        assert (await app.status(handle)).state == "queued"
        (tmp_path / "gate").touch()
        async with app.running(sizes=["small"], scheduler=False):
            assert await handle.result(timeout=WAIT_SECONDS) == "through"
        assert (await app.status(handle)).attempt == 1


async def test_a_worker_that_an_operator_drains_is_no_failure(make_app: MakeApp) -> None:
    """It ends, and the others go on; the program sees why it is not ready any more."""
    async with make_app() as app, app.running(sizes=["small", "medium"]) as daemons:
        (small,) = [item for item in await app.client.results.workers() if item.size == "small"]
        await drain(app.broker.scripts, [small.worker], "operator@host 1")

        async def has_left() -> bool:
            return [item.size for item in await app.client.results.workers()] == ["medium"]

        await eventually(has_left)
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


async def test_a_task_that_blocks_the_loop_does_not_end_the_program(
    make_app: MakeApp, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker process would end, so that others run its tasks; a program is not Nonet's to end."""
    async with make_app() as app, app.running(sizes=["small", "medium"], scheduler=False):
        ended = threading.Timer(3, (tmp_path / "gate").touch)
        handle = await app.submit(Blocks(str(tmp_path)))
        ended.start()

        async def has_ended() -> bool:
            return (await app.status(handle)).state in ("done", "dead")

        await eventually(has_ended)
    (told,) = [line for line in caplog.messages if "the event loop was blocked" in line]
    assert f"task {handle} (embedded_tasks:Blocks)" in told, "one of the workers tells it, once"


async def test_an_unreachable_redis_is_the_reason_for_not_starting(make_app: MakeApp) -> None:
    """A program that must answer in time says how long it waits."""
    app = make_app(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(TimeoutError, match="scheduler: Redis has not answered yet"):
        async with app.running(sizes=["small"], timeout=0.5):
            raise AssertionError("the block must not begin")


async def test_an_unsuitable_configuration_is_raised_at_the_start(
    make_app: MakeApp, tmp_path: Path
) -> None:
    """The error of the scheduler, as ``task-scheduler`` prints it; the workers have ended."""
    config = tmp_path / "config.yaml"
    config.write_text("common: {limitz: {}}\n")
    app = make_app(config=str(config))
    with pytest.raises(Exception, match="limitz"):
        async with app.running(sizes=["small"]):
            raise AssertionError("the block must not begin")


async def test_what_cannot_be_run_is_refused(make_app: MakeApp) -> None:
    """Before anything is started or opened."""
    with pytest.raises(ValueError, match="nothing to run"):
        async with make_app().running(sizes=[], scheduler=False):
            pass
    with pytest.raises(ValueError, match="'huge' is no size"):
        async with make_app().running(sizes=["huge"]):
            pass


async def test_probes_are_served_if_there_is_a_port_for_them(make_app: MakeApp) -> None:
    """As by a daemon, for all of them together."""
    port = free_port()
    app = make_app(metrics_port=port, metrics_host="127.0.0.1")
    async with app.running(sizes=["small"]), httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        metrics = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    assert "nonet_worker_slots" in metrics and "nonet_scheduler_is_leader" in metrics


def test_they_run_in_a_loop_of_a_thread(make_app: MakeApp) -> None:
    """As that of a test client: no signal handler could be set there."""

    async def program() -> int:
        async with make_app().running(sizes=["small"], scheduler=False) as _:
            handle = await Where().schedule(labels={"size": "small"})
            return await handle.result(timeout=WAIT_SECONDS)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, program()).result(60) == os.getpid()


# ---- FastAPI -------------------------------------------------------------------------------------


@pytest.fixture
def served(redis_url: str, tmp_path: Path) -> Any:
    """A real uvicorn with the application, and its URL."""
    port = free_port()
    environment = {
        "NONET_REDIS_URL": redis_url,
        "NONET_NAMESPACE": NAMESPACE,
        "NONET_STATE_DIR": str(tmp_path / "state"),
    }
    command = ("uvicorn", "contrib.embedding_app:web", "--host", "127.0.0.1", f"--port={port}")
    with Daemon(*command, environment=environment, log=tmp_path / "uvicorn.log") as server:
        wait_until(
            lambda: "Application startup complete" in server.log or not server.alive, "it serves"
        )
        assert server.alive, server.log
        yield server, f"http://127.0.0.1:{port}"


def test_a_web_server_executes_its_own_tasks(served: tuple[Daemon, str]) -> None:
    """Small ones in the process of the server, medium ones in its child processes."""
    server, url = served
    with httpx.Client(base_url=url, timeout=WAIT_SECONDS) as client:
        assert client.get("/ready").json() == []
        assert client.post("/where/small").json() == server.pid
        assert client.post("/where/medium").json() != server.pid


def test_a_web_server_drains_when_it_stops(served: tuple[Daemon, str], tmp_path: Path) -> None:
    """uvicorn heeds SIGTERM, and its lifespan ends when the running task has."""
    server, url = served
    httpx.post(f"{url}/gated", params={"place": str(tmp_path)}).raise_for_status()
    wait_until(lambda: runs(tmp_path), "it runs")
    server.terminate()
    wait_until(lambda: "Waiting for application shutdown" in server.log, "it stops")
    time.sleep(0.2)
    assert server.alive, "it waits for the task"
    (tmp_path / "gate").touch()
    assert server.wait() in (0, -signal.SIGTERM), server.log  # uvicorn raises the signal again
    assert "Application shutdown complete" in server.log
