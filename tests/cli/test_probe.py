"""`task-run probe`: the answer of a daemon as an exit code, fast enough to be asked often."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from nonet.cli.daemons.probing import probe
from nonet.daemon.health import Health, Report


async def test_a_probe_prints_the_answer_of_the_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 0 for a 200, and 1 with the daemon's reasons for a 503."""
    answers = [Report(ready=True)]
    async with Health("127.0.0.1", 0, lambda: answers[-1]) as health:
        assert await asyncio.to_thread(probe, "livez", health.port) == 0
        assert await asyncio.to_thread(probe, "readyz", health.port) == 0
        answers.append(Report(ready=False, reasons=["Redis is away", "it drains"]))
        assert await asyncio.to_thread(probe, "livez", health.port) == 0
        assert await asyncio.to_thread(probe, "readyz", health.port) == 1
    out, err = capsys.readouterr()
    assert out == "livez: ok\nreadyz: ok\nlivez: ok\n"
    assert err == "readyz: Redis is away; it drains\n"


async def test_the_port_is_that_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --port the probe asks where the same environment lets a daemon listen."""
    async with Health("127.0.0.1", 0, lambda: Report(ready=True)) as health:
        monkeypatch.setenv("NONET_METRICS_PORT", str(health.port))
        monkeypatch.setenv("NONET_METRICS_HOST", "0.0.0.0")
        assert await asyncio.to_thread(probe, "livez") == 0


def test_a_port_without_a_daemon_is_exit_code_1() -> None:
    """The console script says which port it asked, in both spellings of the option."""
    script = str(Path(sys.executable).parent / "task-run")
    for words in (["--port", "1"], ["--port=1"]):
        done = subprocess.run([script, "probe", "livez", *words], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == "livez: no answer from 127.0.0.1 port 1: Connection refused\n"


@pytest.mark.parametrize("port", ["", "0", "http", "65536"])
def test_a_missing_port_is_exit_code_2(
    port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong setting is no sick daemon; the line says what to set."""
    monkeypatch.setenv("NONET_METRICS_PORT", port)
    assert probe("readyz") == 2
    assert "set it, or use --port" in capsys.readouterr().err


def test_a_probe_imports_next_to_nothing() -> None:
    """A command that runs every few seconds loads neither typer nor asyncio."""
    code = (
        "import sys, nonet.cli.entry, nonet.cli.daemons.probing;"
        "print(*({'typer', 'asyncio', 'pydantic', 'http.client', 'redis'} & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
