"""Lines as a process writes them: no forged fields, and pipes that are shared or not read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Any

import pytest
from waits import WAIT_SECONDS

SET_UP = """
import logging, os, sys, threading, warnings
from nonet.telemetry.logs import describe_process, set_up_logs
set_up_logs(sys.argv[1], logging.INFO)
describe_process(worker="w-1")
log = logging.getLogger("author")
"""
SAYS = """
log.info("said", extra={"level": "x", "event": "forged", "worker": "w-2", "task_id": "t", "n": 1})
log.info("two\\n2026-01-01 INFO lines\\x1b[2J\\r")
warnings.warn("be warned")
thread = threading.Thread(target=lambda: 1 / 0, name="t-1")
thread.start()
thread.join()
raise ValueError("the\\nend")
"""
IN_TURN = """
for _ in range(2):
    if not os.fork():
        break
for number in range(30):
    log.info("x" * 20_000, extra={"number": number})
"""
UNREAD = """
for number in range(1000):
    log.info("x" * 1000)
print("done", flush=True)
sys.stdin.readline()
log.info("again")
"""


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], int]]:
    end, written = os.pipe()
    with os.fdopen(end, "rb") as read:
        yield read, written


def start(script: str, form: str, stderr: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SET_UP + script, form]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, text=True)
    os.close(stderr)
    return process


def test_extra_fields_cannot_replace_those_of_a_line(pipe: tuple[IO[bytes], int]) -> None:
    read, written = pipe
    with start(SAYS, "json", written):
        lines: list[dict[str, Any]] = [json.loads(line) for line in read]
    said, _, warned, thread, end = lines
    assert (said["event"], said["level"], said["worker"], said["n"]) == ("said", "info", "w-1", 1)
    assert (said["extra_event"], said["extra_level"], said["extra_task_id"]) == ("forged", "x", "t")
    assert "task_id" not in said
    assert (warned["level"], "be warned" in warned["event"]) == ("warning", True)
    assert (thread["level"], "t-1" in thread["event"]) == ("error", True)
    assert "ZeroDivisionError" in thread["exception"]
    assert (end["level"], "ValueError: the\nend" in end["exception"]) == ("critical", True)


def test_a_text_cannot_look_like_a_line_of_its_own(pipe: tuple[IO[bytes], int]) -> None:
    read, written = pipe
    with start(SAYS, "console", written):
        lines = read.read().decode().splitlines()
    heads = [line.partition("author: ")[2] for line in lines if not line.startswith("  ")]
    assert heads[:2] == [heads[0], "two"] and len(heads) == 5
    assert "  2026-01-01 INFO lines\\x1b[2J\\x0d" in lines
    assert lines[-2:] == ["  ValueError: the", "  end"]


def test_long_lines_of_several_processes_stay_whole(pipe: tuple[IO[bytes], int]) -> None:
    """Each is longer than what a pipe takes at once; none is in the middle of another."""
    read, written = pipe
    with start(IN_TURN, "json", written):
        numbers = [json.loads(line)["number"] for line in read]
    assert sorted(numbers) == sorted([*range(30)] * 3)


def test_lines_are_dropped_while_the_pipe_is_full(pipe: tuple[IO[bytes], int]) -> None:
    read, written = pipe
    with start(UNREAD, "json", written) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "done\n"
        os.set_blocking(read.fileno(), False)
        taken = b""
        while part := read.read(1 << 16):
            taken += part
        os.set_blocking(read.fileno(), True)
        process.stdin.write("\n")
        process.stdin.flush()
        taken += read.read()
        assert process.wait(WAIT_SECONDS) == 0
    lines = taken.splitlines()
    assert 10 < len(lines) < 1000
    assert json.loads(lines[-1])["event"] == "again"
    assert [len(json.loads(line)["event"]) for line in lines[:10]] == [1000] * 10


# What code of an application does to logging; each alone made all later lines vanish.
RECONFIGURES = {
    "dictConfig": 'logging.config.dictConfig({"version": 1})',
    "dictConfig with a root": """
logging.config.dictConfig({
    "version": 1,
    "handlers": {"own": {"class": "logging.NullHandler"}},
    "root": {"handlers": ["own"], "level": "CRITICAL"},
})""",
    "basicConfig": "logging.basicConfig(force=True, handlers=[logging.NullHandler()])",
    "shutdown": "logging.shutdown()",
}


RECONFIGURE = f"""
import logging.config
from nonet.telemetry.logs import keep_logs
ours = logging.getLogger("nonet.test")
for how, code in {RECONFIGURES!r}.items():
    exec(code)
    keep_logs()
    ours.info(how)
"""


def test_lines_survive_an_application_that_configures_logging(pipe: tuple[IO[bytes], int]) -> None:
    """Ours keep their level and are written once; that they were restored is one warning."""
    read, written = pipe
    with start(RECONFIGURE, "json", written):
        lines = [json.loads(line)["event"] for line in read]
    assert [line for line in lines if line in RECONFIGURES] == list(RECONFIGURES)
    assert len([line for line in lines if "restored the log lines" in line]) == 1
    assert len(lines) == len(RECONFIGURES) + 1
