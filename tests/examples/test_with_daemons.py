"""The example package with real daemons and its own configuration."""

from __future__ import annotations

import re
from collections import Counter

from examples.conftest import Example
from waits import wait_until

_ELEMENTS = ("CERN-DST", "RAL-DST")


def test_the_program_of_the_readme_runs(example: Example) -> None:
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
    letters = example.json("task-run", "dlq", "list")["items"]
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


def test_storage_elements_run_as_many_removals_as_configured(example: Example) -> None:
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
