"""`task-run probe`: the answer of a daemon as an exit code, fast enough to be asked often."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nonet.cli.daemons.probing import probe
from nonet.daemon.health import Health, Report

SCRIPT = str(Path(sys.executable).parent / "task-run")


@pytest.fixture
def answers() -> list[Report]:
    return [Report(ready=True)]


async def test_says_what_the_daemon_says(
    answers: list[Report], capsys: pytest.CaptureFixture[str]
) -> None:
    """0 for a 200, 1 with the daemon's reasons for a 503."""
    async with Health("127.0.0.1", 0, lambda: answers[-1]) as health:
        assert await asyncio.to_thread(probe, "livez", health.port) == 0
        assert await asyncio.to_thread(probe, "readyz", health.port) == 0
        answers.append(Report(ready=False, reasons=["Redis is away", "it drains"]))
        assert await asyncio.to_thread(probe, "livez", health.port) == 0
        assert await asyncio.to_thread(probe, "readyz", health.port) == 1
    out, err = capsys.readouterr()
    assert out == "livez: ok\nreadyz: ok\nlivez: ok\n"
    assert err == "readyz: Redis is away; it drains\n"


async def test_the_port_is_that_of_the_daemon(
    monkeypatch: pytest.MonkeyPatch, answers: list[Report]
) -> None:
    """Without --port it asks where the same environment lets a daemon listen."""
    async with Health("127.0.0.1", 0, lambda: answers[-1]) as health:
        monkeypatch.setenv("NONET_METRICS_PORT", str(health.port))
        monkeypatch.setenv("NONET_METRICS_HOST", "0.0.0.0")
        assert await asyncio.to_thread(probe, "livez") == 0


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    """1, and where it has asked, if nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert probe("livez", port) == 1
    assert capsys.readouterr().err == (
        f"livez: no answer from 127.0.0.1 port {port}: Connection refused\n"
    )


@pytest.mark.parametrize("told", ["", "0", "http", "65536"])
def test_no_port(
    told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """2, and what to set, if there is no port to ask: a mistake is no sick daemon."""
    monkeypatch.setenv("NONET_METRICS_PORT", told)
    assert probe("readyz") == 2
    assert "set it, or use --port" in capsys.readouterr().err


def test_the_command_asks_too() -> None:
    """The console script has the exit code, on both ways to the probe."""
    for words in (["livez", "--port", "1"], ["livez", "--port=1"]):
        done = subprocess.run([SCRIPT, "probe", *words], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (
            1,
            "livez: no answer from 127.0.0.1 port 1: Connection refused\n",
        )


def test_imports_next_to_nothing() -> None:
    """What is asked every few seconds loads neither typer nor asyncio."""
    code = (
        "import sys, nonet.cli.entry, nonet.cli.daemons.probing;"
        "print(*({'typer', 'asyncio', 'pydantic', 'http.client', 'redis'} & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
