"""What those hear who wait for the end of a worker whose event loop is blocked."""

from __future__ import annotations

from acceptance.probe_tasks import Blocking
from acceptance.site import Site

# A worker whose patience with a blocked loop is short; as the console script otherwise.
IMPATIENT = """
import sys
from nonet.daemon import service
service._BLOCKED_SECONDS = 0.5
sys.argv = ["task-worker", "--size", "small", "--grace", "0.1"]
from nonet.cli.daemons.worker import main
main()
"""


async def test_drain_command_tells_of_a_blocked_worker(own_site: Site) -> None:
    """A worker that ends without its event loop leaves its exit code: nobody killed it."""
    worker = own_site.program("python", "-c", IMPATIENT).wait_ready()
    async with own_site.app() as app:
        await own_site.started(await app.submit(Blocking(3600)))
        drain = own_site.program("task-worker", "--drain")
        assert (drain.wait(), worker.wait()) == (1, 1)
    assert "event loop blocked" in worker.log
    told = f"worker {worker.name}: tasks were cut off"
    assert told in drain.log
