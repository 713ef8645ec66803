"""Fork servers that are late or stuck."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from acceptance.site import Site
from daemons import lives
from waits import until

from nonet.config.settings import load_settings
from nonet.tasks.middleware import Middlewares
from nonet.worker.children import forking
from nonet.worker.children.children import Children
from nonet.worker.children.forking import ForkServerError


@pytest.fixture
async def children(site: Site, tmp_path: Path) -> AsyncIterator[Children]:
    """A pool whose fork server is ready."""
    url = site.settings["NONET_REDIS_URL"]
    settings = load_settings(redis_url=url, state_dir=tmp_path, tasks=("acceptance.probe_tasks",))
    pool = Children(settings, url, Middlewares())
    await pool.start()
    yield pool
    await pool.close()


def server_of(pool: Children) -> forking.ForkServer:
    assert pool._server is not None
    return pool._server


async def test_late_children_are_waited_for(
    children: Children, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is late at first; all are ready in the end, from the same fork server."""
    monkeypatch.setattr(forking, "_FORK_SECONDS", 0.002)
    server = server_of(children)
    for _ in range(5):
        async with children.lent(fresh=True) as child:
            assert child.server is server and server.is_alive
    assert "no child process was ready in 0.002 s" in caplog.text


async def test_a_fork_server_that_does_not_answer_is_replaced(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It guards no child: it is killed, and another one is started when it is needed."""
    server = server_of(children)
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr(forking, "_FORK_SECONDS", 0.3)
        impatient.setattr(forking, "_PING_SECONDS", 0.3)
        with pytest.raises(ForkServerError, match="does not answer"):
            async with children.lent(fresh=True):
                pass
    await until(lambda: not server.is_alive, "it is known to be dead")
    children._not_before = 0.0  # the first one was started a moment ago
    async with children.lent(fresh=True) as child:
        assert child.server is not server


async def spare_of(pool: Children) -> int:
    """The process that the pool forks ahead while it lends another one."""
    async with pool.lent(fresh=True) as child:
        await until(lambda: len(pool.pids) == 2, "a spare is there")
        (spare,) = set(pool.pids) - {child.pid}
        assert pool._spare is not None
        await pool._spare
    assert server_of(pool).in_flight == 0, "it counts for nothing"
    return spare


async def test_the_next_fresh_child_is_forked_meanwhile(children: Children) -> None:
    """It is lent next, and ends with the pool."""
    spare = await spare_of(children)
    async with children.lent(fresh=True) as child:
        assert child.pid == spare
    last = await spare_of(children)
    await children.close()
    assert not lives(last)


async def test_a_spare_that_has_ended_is_not_lent(children: Children) -> None:
    """Neither a killed spare, nor the spare of a fork server that was replaced."""
    spare = await spare_of(children)
    os.kill(spare, signal.SIGKILL)
    await until(lambda: spare not in children.pids, "its end is known")
    async with children.lent(fresh=True) as child:
        assert child.pid != spare
    spare, server = await spare_of(children), server_of(children)
    server.kill()
    await until(lambda: not server.is_alive and not lives(spare), "both are dead")
    children._not_before = 0.0  # the first one was started a moment ago
    async with children.lent(fresh=True) as child:
        assert child.server is not server
