"""A program that forks while its threads submit: prints what its processes saw, as JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sync.sync_tasks import Add, Kept

import nonet

CHILDREN, THREADS, TASKS = 3, 4, 10


def submit(prefix: str) -> list[str]:
    """Submit tasks from some threads, each with ids of its own."""

    def run(number: int) -> None:
        made = [Add(n).schedule_sync(id=f"{prefix}-{number}-{n}") for n in range(TASKS)]
        ids.extend(made)

    ids: list[str] = []
    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ids


def connections(app: nonet.SyncNonet) -> list[int]:
    """The ids that Redis has given to the idle connections for scripts."""
    lane = app._client().stores.broker.scripts.lane
    taken = [lane._taken() for _ in range(64)]  # type: ignore[attr-defined]  # a `SyncLane`
    wires = [wire for wire in taken if wire is not None]
    return [wire.exchange(b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n", 1)[0] for wire in wires]


def forked(work: Callable[[], Any]) -> Any:
    """Do some work in a child; return what it returned."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(said)


def main() -> None:
    """Fork children while threads of this process submit."""
    app = nonet.SyncNonet.from_settings().open()
    before = Add(1).schedule_sync(id="before")
    Kept(1).schedule_sync(id="kept-before")
    stop, background = threading.Event(), list[str]()

    def go_on() -> None:
        while not stop.is_set():
            background.append(Add(1).schedule_sync())

    def child(number: int) -> dict[str, Any]:
        ids = submit(f"child{number}")
        kept = Kept(number).schedule_sync(id=f"kept{number}")
        state = before.status().state
        return {"ids": ids, "kept": kept.created, "state": state, "uses": connections(app)}

    threads = [threading.Thread(target=go_on) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    while len(background) < 20:
        time.sleep(0.001)
    children = [forked(lambda number=number: child(number)) for number in range(CHILDREN)]
    stop.set()
    for thread in threads:
        thread.join()
    ids = submit("parent")
    for n in range(CHILDREN):
        assert app.status(f"child{n}-0-0").state == "queued"
    report = {"children": children, "parent": ids, "background": background}
    json.dump({**report, "uses": connections(app)}, sys.stdout)


if __name__ == "__main__":
    main()
