"""Copies of a process that runs an event loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from copying import cases, expected
from waits import WAIT_SECONDS

_TESTS = str(Path(__file__).parents[1])
_MAIN = """
import asyncio, json, os, socket, sys
from copying import KINDS, cases
from nonet.base.forks import ending_copies
from nonet.base.loop import is_deaf, run

here = os.getpid()

async def neighbour():
    while True:
        await asyncio.sleep(0)
        if os.getpid() != here:
            print("a neighbour runs in a copy", flush=True)

async def main():
    neighbours = [asyncio.create_task(neighbour()) for _ in range(20)]
    await (await asyncio.create_subprocess_exec("true")).wait()
    codes = {}
    for kind, way in cases():
        with ending_copies():
            codes[kind + " " + way] = await KINDS[kind](way)
    assert not is_deaf()
    print(json.dumps(codes))

async def callback():
    loop, forked = asyncio.get_running_loop(), asyncio.Event()
    loop.call_soon(lambda: (pids.append(os.fork()), forked.set()))
    pids = []
    await forked.wait()
    print(os.waitpid(pids[0], 0)[1])

async def listening():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    await asyncio.sleep(0.01)  # uvloop watches it from its next poll on
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    server.close()
    await server.wait_closed()
    while True:
        try:
            with socket.create_server(address):
                return print("free")
        except OSError:
            await asyncio.sleep(0.01)
"""


def outcome(main: str, loop: str) -> str:
    """What a coroutine of `_MAIN` prints; nothing of it may be printed twice."""
    script = f"{_MAIN}\nrun({main}(), with_uvloop={loop == 'uvloop'})"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": _TESTS},
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@LOOPS
def test_a_copy_ends_with_the_code_that_forked_it(loop: str) -> None:
    """With the exit code of a script; nothing else of its event loop runs in it."""
    codes = json.loads(outcome("main", loop))
    assert codes == {f"{kind} {way}": expected(kind, way) for kind, way in cases()}


@LOOPS
def test_a_copy_that_a_callback_forks_ends(loop: str) -> None:
    assert outcome("callback", loop) == "0\n"


@LOOPS
def test_a_copy_holds_no_port_of_its_parent(loop: str) -> None:
    """Another process can listen on a port that the parent has closed."""
    assert outcome("listening", loop) == "free\n"
