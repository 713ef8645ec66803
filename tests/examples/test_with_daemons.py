"""The example package with real daemons and its own configuration."""

from __future__ import annotations

import re
from collections import Counter

from examples.conftest import Example
from waits import wait_until

_ELEMENTS = ("CERN-DST", "RAL-DST")


def test_what_the_readme_says_runs(example: Example) -> None:
    """The program writes and removes files, also again; what cannot be removed is a dead letter."""
    example.scheduler()
    example.worker()
    for _ in range(2):
        said = example.said("python", "-m", "nonet_example").splitlines()
        assert [line for line in said if "dead" not in line] == [
            "200 bytes written",
            "200 bytes freed",
            "0 files left",
        ]
    example.said("task-run", "doctor")
    letters = example.json("task-run", "dlq", "list")
    assert [letter["task_class"] for letter in letters] == ["files:RemoveFile"] * 2


def test_pilots_are_submitted_for_each_vo(example: Example) -> None:
    """Each has its entries, on the schedule that is configured for it."""
    example.scheduler()
    worker = example.worker()
    for name in ("SubmitPilotsRAL", "SubmitPilotsCERN"):  # whose hour has not come
        example.said(
            "task-run", "schedules", "run-now", "SubmitPilots", "--vo=lhcb", "--name", name
        )
    wanted = {
        "8 new pilots for dune",  # two for each of four elements
        "8 new pilots for gridpp",
        "2 new pilots for lhcb",  # at nikhef.nl, by SubmitPilotsOthers
        "4 new pilots for lhcb",  # at cern.ch
        "5 new pilots for lhcb",  # at ral.ac.uk, as its entry says
    }
    wait_until(
        lambda: wanted <= set(re.findall(r"\d+ new pilots for \w+", worker.log)), "all have fired"
    )


def test_storage_elements_get_so_much_as_is_configured(example: Example) -> None:
    """Three removals at a time at CERN-DST, five by default: never more, and not less."""
    example.scheduler()
    worker = example.worker(EXAMPLE_SECONDS="0.2")
    example.program(
        "await app.submit_many(\n"
        "    files.RemoveFile(element, f'/lhcb/{element}/{number}')\n"
        f"    for number in range(20) for element in {_ELEMENTS}\n"
        ")"
    )
    wait_until(lambda: worker.log.count(" removed /lhcb") == 40, "all are removed")
    most: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for step, element in re.findall(r"(removing|removed) \S+ at (\S+)", worker.log):
        running[element] += 1 if step == "removing" else -1
        most[element] = max(most[element], running[element])
    assert most == {"CERN-DST": 3, "RAL-DST": 5}


def test_one_file_is_removed_by_one_task_at_a_time(example: Example) -> None:
    """Two removals of a file run one after the other, although the element has room."""
    worker = example.worker(EXAMPLE_SECONDS="0.2")
    example.program(
        "await app.submit_many(files.RemoveFile('RAL-DST', '/lhcb/a') for _ in range(2))"
    )
    wait_until(lambda: worker.log.count(" removed /lhcb") == 2, "both have run")
    steps = re.findall(r"(removing|removed) \S+ at", worker.log)
    assert steps == ["removing", "removed"] * 2


HOOK_DONE = r"start-up hook done: hook=\S*submit_removals_again"


def test_what_redis_has_lost_is_submitted_again(example: Example) -> None:
    """The start-up hook finds in the database what was to be removed."""
    scheduler = example.scheduler()
    wait_until(lambda: re.search(HOOK_DONE, scheduler.log), "the hook has run")
    example.add("/lhcb/a", "RAL-DST", state="removing")
    example.add("/lhcb/b", "RAL-DST")
    example.program("await files.RemoveFile('RAL-DST', '/lhcb/a').schedule()")
    example.redis.flushall()
    wait_until(lambda: len(re.findall(HOOK_DONE, scheduler.log)) == 2, "it has run once more")
    example.worker()
    wait_until(lambda: example.states()["/lhcb/a"] == "removed", "it is removed after all")
    assert example.states()["/lhcb/b"] == "present"


def said_in_the_end(example: Example, transformation: int, which: str) -> str:
    """Clean a transformation: the result of the callback of its group, or of that for failure."""
    task = ("transformations:CleanTransformation", f"--args=[{transformation}]")
    told = example.json("task-run", "submit", *task, "--wait=60")["result"] + f".{which}"
    wait_until(lambda: example.run("task-run", "status", told).returncode == 0, f"{which} is told")
    return example.program(f"print(await app.result('{told}', timeout=60))").strip()


def test_a_group_fires_its_callback(example: Example) -> None:
    """It gets the results of all children: three bytes each."""
    example.scheduler()
    example.worker()
    for number in range(5):
        example.add(f"/lhcb/{number}", "RAL-DST", transformation=12345)
    assert said_in_the_end(example, 12345, "callback") == "15"
    assert set(example.states().values()) == {"removed"}


def test_a_group_with_a_failure_tells_the_other_task(example: Example) -> None:
    """What cannot be removed is a dead letter."""
    example.scheduler()
    example.worker()
    example.add("/lhcb/a", "RAL-DST", transformation=7)
    example.add("/lhcb/b", "NOWHERE", transformation=7)
    said = said_in_the_end(example, 7, "failure")
    assert said == "['LookupError: there is no storage element NOWHERE']"
    (letter,) = example.json("task-run", "dlq", "list")
    assert letter["task_class"] == "transformations:RemoveOutput"
    assert example.states() == {"/lhcb/a": "removed", "/lhcb/b": "present"}


_REQUESTS = """
import asyncio, httpx
from nonet_example.api import create_app

async def main():
    app = create_app()
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://example") as client,
    ):
        wanted = {"vo": "lhcb", "lfns": ["/lhcb/a"]}
        print((await client.post("/removals", json=wanted)).status_code)
        wanted["lfns"].append("/lhcb/unknown")
        print((await client.post("/removals", json=wanted)).status_code)
        print((await client.get("/tasks/unknown")).status_code)

asyncio.run(main())
"""


def test_a_route_commits_its_request_with_its_task(example: Example) -> None:
    """The file is gone in the end; a request that was refused has left nothing."""
    example.scheduler()
    example.add("/lhcb/a", "RAL-DST")
    example.add("/lhcb/b", "RAL-DST")
    assert example.said("python", "-c", _REQUESTS).split() == ["202", "404", "404"]
    assert example.states() == {"/lhcb/a": "removing", "/lhcb/b": "present"}
    example.worker()
    wait_until(lambda: example.states()["/lhcb/a"] == "removed", "the request is carried out")
