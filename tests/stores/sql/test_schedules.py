"""The rows of schedules that programs made, against a model."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings, strategies as st

from nonet.base.synchronous import complete
from nonet.rules.periodic import StoredSchedule
from nonet.stores.sql.schedules import ScheduleRows
from nonet.stores.sql.sync_database import SyncDatabase

IDS = st.sampled_from(["a", "A", "digest-7"])
STEPS = st.tuples(st.sampled_from(["put", "remove"]), IDS, st.sampled_from(["x", "y"]))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncDatabase]:
    made = SyncDatabase(f"sqlite:///{tmp_path_factory.mktemp('schedules')}/nonet.db")
    yield made
    complete(made.close())


@given(steps=st.lists(STEPS, max_size=12))
@settings(max_examples=40, deadline=None)
def test_what_is_done_twice_is_done_once(
    database: SyncDatabase, steps: list[tuple[str, str, str]]
) -> None:
    """A repeated put or remove says that nothing changed, and leaves revision and rows alone."""
    rows, model = ScheduleRows(database, "test"), dict[str, str]()
    for item in complete(rows.list()):
        complete(rows.remove(item.id))
    for verb, id, task in steps:
        before = model.get(id)
        if verb == "put":
            model[id] = task
            first = "created" if before is None else "changed" if before != task else "unchanged"
            assert [_put(rows, id, task), _put(rows, id, task)] == [first, "unchanged"]
        else:
            model.pop(id, None)
            gone = [complete(rows.remove(id)) for _ in range(2)]
            assert gone == [before is not None, False]
        revision = complete(rows.revision())
        _put(rows, id, model[id]) if id in model else complete(rows.remove(id))
        assert complete(rows.revision()) == revision
        assert {item.id: item.task for item in complete(rows.list())} == model
    assert complete(ScheduleRows(database, "other").list()) == []


def test_of_two_equal_puts_the_second_changes_nothing(
    database: SyncDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks before the first one has committed, and compares again in its transaction."""
    rows = ScheduleRows(database, "race")

    async def before_the_first(id: str) -> None: ...

    monkeypatch.setattr(rows, "get", before_the_first)
    assert [_put(rows, "a", "x") for _ in range(2)] == ["created", "unchanged"]


def _put(rows: ScheduleRows, id: str, task: str) -> str:
    wanted = StoredSchedule(id, task, "", "IntervalSecondsSchedule(1)", datetime.now(UTC), b"e")
    return str(complete(rows.put(wanted, lambda before: before.task == task)))
