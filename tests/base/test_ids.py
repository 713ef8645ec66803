"""Ids of tasks."""

from __future__ import annotations

import os
import threading

from nonet.base.ids import LENGTH, new_id
from nonet.base.messages.message import is_id


def test_ids_are_short_and_different() -> None:
    ids = [new_id() for _ in range(5000)]
    assert len(set(ids)) == 5000
    assert {len(id) for id in ids} == {LENGTH}
    assert all(is_id(id) and id.isalnum() and id == id.lower() for id in ids)


def test_each_character_is_as_likely_as_any_other() -> None:
    ids = [new_id() for _ in range(3200)]
    for place in range(LENGTH):
        counts = [sum(id[place] == char for id in ids) for char in set("".join(ids))]
        assert len(counts) == 32
        assert min(counts) > 30 and max(counts) < 220  # 100 each, with a deviation of 10


def test_a_forked_child_makes_ids_of_its_own() -> None:
    new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, " ".join(new_id() for _ in range(100)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 65536).decode().split()
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 100
    assert not set(theirs) & {new_id() for _ in range(1000)}


def test_threads_share_no_id() -> None:
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda ids=ids: ids.extend(new_id() for _ in range(3000)))
        for ids in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id for ids in made for id in ids}) == 12000
