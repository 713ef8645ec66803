"""A worker that is started without typer gets what typer would have given it."""

from __future__ import annotations

from typing import Any

import pytest

from nonet.cli.daemons import plain_worker, worker, working

LINES = [
    "--size small",
    "--size=large --tasks a,b --tasks c --namespace n --state-dir /tmp/s --debug",
    "--size medium --concurrency 7 --grace 3 --metrics-port 9090",
    "--size small --idle-exit 60.0 --max-lifetime 3600 --fleet-line 5",
]
OF_TYPER = ["", "--help", "--size tiny", "--size small --concurrency 0"]
OF_TYPER += ["--size small --max 3", "--size small --no-such x", "--size small --tasks --debug"]
OF_TYPER += ["--size small --size large"]


def test_plain_worker_and_typer_read_a_line_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sizes, settings and options are equal."""
    given: list[Any] = []
    monkeypatch.setattr(working, "work", lambda *order: given.append(order))
    monkeypatch.setattr(working, "run", lambda debug, command, **_: command())
    for line in LINES:
        given.clear()
        found = plain_worker.read(line.split())
        assert found is not None, line
        plain_worker.work(found)
        worker.app(line.split(), standalone_mode=False)
        of_plain, of_typer = ((size, order) for size, _, order in given)
        settings = [
            {name: str(value) for name, value in order[1].settings.items() if value is not None}
            for order in (of_plain, of_typer)
        ]
        assert settings[0] == settings[1], line
        for name in ("concurrency", "idle_exit", "max_lifetime", "fleet_line", "debug"):
            assert getattr(of_plain[1], name) == getattr(of_typer[1], name), line
        assert of_plain[0] is of_typer[0]


@pytest.mark.parametrize("line", OF_TYPER)
def test_other_lines_are_left_to_typer(line: str) -> None:
    """Typer has the words for help and mistakes."""
    assert plain_worker.read(line.split()) is None
