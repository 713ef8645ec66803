"""Dead letters on real databases: each test runs on SQLite and on MariaDB."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from doors import Door
from hypothesis import given, strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine
from waits import WAIT_SECONDS

from nonet.base.errors import (
    ConfigurationError,
    ConflictError,
    NotFoundError,
    ServerUnreachableError,
)
from nonet.stores.sql import database as sql
from nonet.stores.sql.dead_letters import (
    DeadLetter,
    DeadLetters,
    LetterFilter,
    NewDeadLetter,
    Status,
    dlq_tasks,
)
from nonet.stores.sql.letters import storable

SUBMITTED = datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=UTC)


@asynccontextmanager
async def engine_of(url: str) -> AsyncIterator[AsyncEngine]:
    engine = sql.open_engine(url)
    try:
        yield engine
    finally:
        await engine.dispose()


@pytest.fixture
async def letters(url: str) -> AsyncIterator[DeadLetters]:
    store = DeadLetters(url, "test")
    yield store
    await store.close()


def letter(task_id: str = "task-1", **changes: Any) -> NewDeadLetter:
    values: dict[str, Any] = {
        "task_id": task_id,
        "generation": 1,
        "task_class": "files:RemoveFile",
        "task_args": b"\x93\x01\x02\x03",
        "submitted_at": SUBMITTED,
        "reason": "retries",
    }
    return NewDeadLetter(**values | changes)


GONE = DeadLetter(
    **{name: getattr(letter(), name) for name in NewDeadLetter.__dataclass_fields__},
    id=404,
    namespace="test",
    status=Status.PENDING,
    last_error="",
    resubmitted_as=None,
    resubmissions=0,
    created_at=SUBMITTED,
)


async def outcomes(calls: list[Awaitable[Any]]) -> tuple[list[Any], list[BaseException]]:
    """What succeeded and what was raised, of calls made at the same time."""
    done = await asyncio.gather(*calls, return_exceptions=True)
    raised = [each for each in done if isinstance(each, BaseException)]
    return [each for each in done if not isinstance(each, BaseException)], raised


# ---- writing and reading ------------------------------------------------------------------------


async def test_everything_comes_back_as_written(letters: DeadLetters) -> None:
    """Each field, also every byte of 1 MiB of arguments; a time of another zone comes in UTC."""
    new = letter(
        task_args=bytes(range(256)) * 4096,
        submitted_at=SUBMITTED.astimezone(timezone(timedelta(hours=2))),
        retry_count=5,
        max_retries=5,
        last_attempted_at=SUBMITTED + timedelta(microseconds=1),
        error_type="OSError",
        error_message="[Errno 13] Permission denied",
        traceback="Traceback …\nOSError: [Errno 13] Permission denied",
        history=[{"attempt": 1, "error": "OSError", "at": "2026-03-29T02:30:00Z"}],
        labels={"vo": "lhcb", "n": 1, "deep": {"list": [1, None, True, 0.5]}},
        parent_id="task-0",
        resubmitted_from=7,
        vo="lhcb",
    )
    read = await letters.get(await letters.add(new))
    for name in NewDeadLetter.__dataclass_fields__:
        assert getattr(read, name) == getattr(new, name), name
    assert read.submitted_at.tzinfo is UTC
    assert read.status is Status.PENDING
    assert read.last_error == "OSError: [Errno 13] Permission denied"
    assert read.resubmitted_as is None
    assert abs(datetime.now(UTC) - read.created_at) < timedelta(minutes=1)


NASTY = "\U0001f4a3 NUL \0 surrogate \udc80 ❌"


async def test_odd_texts_do_not_keep_a_letter_out(letters: DeadLetters) -> None:
    """NUL and lone surrogates are stored escaped, emoji as they are, in every text column."""
    row = await letters.add(
        letter(
            task_id=NASTY,
            task_class=NASTY,
            reason=NASTY,
            error_type=NASTY,
            error_message=NASTY,
            traceback=NASTY,
            history=[{NASTY: NASTY, "nan": float("nan"), "set": {1}}],
            labels={NASTY: (NASTY,)},
            parent_id=NASTY,
            vo=NASTY,
        )
    )
    read = await letters.get(row)
    shown = "\U0001f4a3 NUL \\x00 surrogate \\udc80 ❌"
    assert read.task_class == read.reason == read.error_type == read.error_message == shown
    assert read.traceback == read.vo == shown
    assert read.labels == {shown: [shown]}
    assert read.history == [{shown: shown, "nan": "nan", "set": "{1}"}]
    assert read.task_id.startswith(shown)


async def test_default_character_set_does_not_matter(mariadb_url: str) -> None:
    """Emoji survive in a database that was made for latin1."""
    async with engine_of(mariadb_url) as engine, engine.begin() as connection:
        await connection.exec_driver_sql("ALTER DATABASE CHARACTER SET latin1")
    await sql.upgrade(mariadb_url)
    letters = DeadLetters(mariadb_url, "test")
    assert (await letters.get(await letters.add(letter(vo="💣")))).vo == "💣"
    await letters.close()


async def test_texts_are_cut_to_what_the_column_holds(letters: DeadLetters) -> None:
    """Endless errors keep their start and end; a long history keeps its end."""
    endless = "début " + "é" * 1_000_000 + " fin"
    row = await letters.add(
        letter(
            task_class=endless,
            reason=endless,
            error_type=endless,
            error_message=endless,
            traceback=endless,
            history=[{"attempt": n, "error": endless} for n in range(1000)],
            vo=endless,
        )
    )
    read = await letters.get(row)
    for text in (read.error_message, read.traceback, read.last_error, read.history[-1]["error"]):
        assert text.startswith("début")
        assert text.endswith("fin")
    assert [len(read.task_class), len(read.reason), len(read.error_type)] == [255, 64, 255]
    assert [entry["attempt"] for entry in read.history] == list(range(900, 1000))


@given(st.text(st.characters(codec=None)), st.integers(min_value=60, max_value=200))
def test_storable_text_fits_and_encodes(text: str, limit: int) -> None:
    """Whatever the text, the stored one is valid UTF-8 without NUL within the limit."""
    data = storable(text, limit).encode()
    assert len(data) <= limit
    assert b"\0" not in data


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50))
def test_storable_text_leaves_good_text_alone(text: str) -> None:
    """What every database takes is not touched."""
    assert storable(text, 200) == text


# ---- never doubled, never lost ------------------------------------------------------------------


async def test_twenty_adds_at_once_make_one_row(letters: DeadLetters) -> None:
    """All callers of a race get the same row id."""
    rows, raised = await outcomes([letters.add(letter()) for _ in range(20)])
    assert raised == []
    assert len(set(rows)) == 1
    assert await letters.count() == {"PENDING": 1, "DISPATCHED": 0, "FAILED": 0}


async def test_each_generation_has_its_own_row(letters: DeadLetters) -> None:
    """The same task, dead again after a requeue, is a second letter."""
    rows = {await letters.add(letter(generation=n)) for n in (1, 2, 2**53)}
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Task", "task"),
        ("tâche", "tache"),
        ("task", "task "),
        ("x" * 128 + "a", "x" * 128 + "b"),
        ("a\0", "a\\x00"),
        ("a\udc80", "a\\udc80"),
    ],
)
async def test_different_ids_stay_different(letters: DeadLetters, one: str, other: str) -> None:
    """No collation, padding, cutting or escaping makes one letter of two tasks."""
    assert await letters.add(letter(one)) != await letters.add(letter(other))


# ---- lists --------------------------------------------------------------------------------------


async def test_list_filters_newest_first(letters: DeadLetters) -> None:
    """Filters combine, the newest comes first, the limit cuts the oldest."""
    rows = [
        await letters.add(letter(f"task-{n}", task_class=name, reason=reason))
        for n, (name, reason) in enumerate(
            [("a:A", "crash"), ("a:A", "retries"), ("b:B", "crash"), ("a:A", "crash")]
        )
    ]
    await dispatched(letters, rows[1], "new")

    async def found(**filters: Any) -> list[int]:
        return [rows.index(each.id) for each in await letters.list(**filters)]

    assert await found() == [3, 2, 1, 0]
    assert await found(limit=2) == [3, 2]
    assert await found(task_class="a:A") == [3, 1, 0]
    assert await found(task_class="a:A", reason="crash") == [3, 0]
    assert await found(status=Status.DISPATCHED) == [1]
    assert await found(task_class="A:a") == []
    assert await letters.count() == {"PENDING": 3, "DISPATCHED": 1, "FAILED": 0}


async def test_list_is_without_arguments_and_traceback(letters: DeadLetters) -> None:
    """A list reads no large columns, and no printed letter shows arguments."""
    row = await letters.add(letter(task_args=b"hunter2", traceback="long"))
    (listed,) = await letters.list()
    assert (listed.task_args, listed.traceback) == (b"", "")
    assert "hunter2" not in repr(await letters.get(row))


# ---- resubmission -------------------------------------------------------------------------------


async def claimed(letters: DeadLetters, row: int, repeat: str, resubmissions: int = 0) -> None:
    await letters.claim(await letters.get(row), repeat, resubmissions)


async def dispatched(letters: DeadLetters, row: int, repeat: str) -> None:
    await claimed(letters, row, repeat)
    await letters.dispatch(row, repeat)


@pytest.mark.parametrize("operators", [2, 10])
async def test_one_operator_wins_a_claim(letters: DeadLetters, operators: int) -> None:
    """Of several operators who have read a letter one gets it; the others are told who did."""
    read = await letters.get(await letters.add(letter()))
    calls = [letters.claim(read, f"new-{n}", 0) for n in range(operators)]
    won, lost = await outcomes(calls)
    assert (len(won), len(lost)) == (1, operators - 1)
    now = await letters.get(read.id)
    for error in lost:
        assert isinstance(error, ConflictError)
        assert f"resubmission begun as task {now.resubmitted_as}" in str(error)


async def test_a_letter_is_dispatched_after_its_claim(letters: DeadLetters) -> None:
    """A claim leaves it PENDING; only for the claimed task it becomes DISPATCHED, and once."""
    row = await letters.add(letter())
    await claimed(letters, row, "new", 3)
    begun = await letters.get(row)
    assert (begun.status, begun.resubmitted_as, begun.resubmissions) == (Status.PENDING, "new", 3)
    with pytest.raises(ConflictError, match="not claimed for task other"):
        await letters.dispatch(row, "other")
    await letters.dispatch(row, "new")
    await letters.dispatch(row, "new")
    assert (await letters.get(row)).status is Status.DISPATCHED


async def test_a_released_letter_is_as_it_was_read(letters: DeadLetters) -> None:
    """After a refusal, of a first resubmission or of one more; not once it is dispatched."""
    row = await letters.add(letter())
    for _ in range(2):
        read = await letters.get(row)
        await letters.claim(read, "next", 7)
        await letters.release(read, "other")
        assert (await letters.get(row)).resubmitted_as == "next"
        await letters.release(read, "next")
        assert await letters.get(row) == read
        await claimed(letters, row, "first")
        await letters.dispatch(row, "first")
        await letters.release(read, "first")
        assert (await letters.get(row)).status is Status.DISPATCHED


async def test_a_letter_fails_with_its_own_repeat_only(letters: DeadLetters) -> None:
    """A letter is FAILED once its repeat died, and stays so, whoever records the submission."""
    row = await letters.add(letter())
    assert not await letters.mark_failed(row, "new")
    await claimed(letters, row, "new")
    assert not await letters.mark_failed(row, "dlq-1")
    assert await letters.mark_failed(row, "new")
    assert not await letters.mark_failed(row, "new")
    await letters.dispatch(row, "new")
    assert (await letters.get(row)).status is Status.FAILED


# ---- namespaces ---------------------------------------------------------------------------------


async def test_a_namespace_acts_on_its_own_letters(letters: DeadLetters, url: str) -> None:
    """Two namespaces have a task of one id and generation; neither reaches the other's row."""
    other = DeadLetters(url, "other")
    row, theirs = await letters.add(letter()), await other.add(letter())
    assert row != theirs
    assert [each.id for each in await letters.list()] == [row]
    assert {each.id for each in await letters.list(every_namespace=True)} == {row, theirs}
    assert (await letters.count())[Status.PENDING] == 1
    with pytest.raises(
        NotFoundError, match="belongs to namespace other, not to test: use --namespace"
    ):
        await letters.get(theirs)
    with pytest.raises(NotFoundError):
        await letters.discard(theirs)
    assert [rows async for rows in letters.pages(LetterFilter())] == [[row]]
    assert [count async for count in letters.purge(LetterFilter())] == [1]
    assert [each.id for each in await other.list()] == [theirs]
    await other.close()


async def test_discarded_row_is_gone_and_its_number_not_reused(letters: DeadLetters) -> None:
    """What refers to a discarded letter never means another one."""
    row = await letters.add(letter())
    await letters.discard(row)
    assert await letters.list() == []
    assert await letters.add(letter()) > row


async def test_discard_spares_what_no_longer_fits(letters: DeadLetters) -> None:
    """A letter that somebody acted on since it was chosen is not deleted."""
    row = await letters.add(letter())
    await dispatched(letters, row, "new")
    with pytest.raises(ConflictError, match=f"dead letter {row} is DISPATCHED"):
        await letters.discard(row, only=LetterFilter(status="PENDING"))
    await letters.discard(row, only=LetterFilter(status="DISPATCHED"))
    with pytest.raises(NotFoundError):
        await letters.get(row)


# ---- many letters -------------------------------------------------------------------------------


async def aged(url: str, ages: list[timedelta]) -> list[int]:
    """Letters that died so long ago; their rows."""
    store = DeadLetters(url, "test")
    rows = [await store.add(letter(f"task-{n}")) for n in range(len(ages))]
    await store.close()
    async with engine_of(url) as engine, engine.begin() as connection:
        for row, age in zip(rows, ages, strict=True):
            died = dlq_tasks.update().where(dlq_tasks.c.id == row)
            await connection.execute(died.values(created_at=datetime.now(UTC) - age))
    return rows


async def read_pages(letters: DeadLetters, selection: LetterFilter) -> list[list[int]]:
    return [page async for page in letters.pages(selection)]


async def test_letters_are_chosen_by_age(url: str, letters: DeadLetters) -> None:
    """Both ends of an age filter to the microsecond, in lists as in pages."""
    ages = [timedelta(days=days) for days in (40, 30, 20, 10)]
    rows = await aged(url, ages)
    middle = (await letters.get(rows[1])).created_at
    tick = timedelta(microseconds=1)
    for filters, expected in (
        ({"died_before": middle}, rows[:1]),
        ({"died_before": middle + tick}, rows[:2]),
        ({"died_after": middle}, rows[2:]),
        ({"died_after": middle - tick}, rows[1:]),
        ({"died_after": middle - tick, "died_before": middle + tick}, rows[1:2]),
    ):
        found = [each.id for each in await letters.list(**filters)]
        assert sorted(found) == expected
        assert await read_pages(letters, LetterFilter(**filters)) == [expected]


async def test_pages_pass_over_gaps_and_end_where_they_began(
    letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages have each letter once, oldest first; what is added while they are read is not met."""
    monkeypatch.setattr("nonet.stores.sql.dead_letters._PAGE_ROWS", 20)
    rows = [await letters.add(letter(f"task-{n}")) for n in range(49)]
    for row in rows[4:36]:
        await letters.discard(row)
    kept = rows[:4] + rows[36:]
    met: list[int] = []
    sizes: list[int] = []
    async for page in letters.pages(LetterFilter()):
        sizes.append(len(page))
        met += page
        await letters.add(letter(f"late-{len(sizes)}"))
    assert met == kept
    assert max(sizes) <= 20 and len(sizes) < 5


async def test_purge_deletes_what_fits_and_nothing_else(url: str, letters: DeadLetters) -> None:
    """Older letters go in batches, the others stay."""
    month = timedelta(days=30)
    rows = await aged(url, [month] * 3 + [timedelta(hours=1)] * 2)
    await dispatched(letters, rows[1], "new")
    old = datetime.now(UTC) - timedelta(days=7)
    gone = [n async for n in letters.purge(LetterFilter(died_before=old, status="DISPATCHED"))]
    assert gone == [1]
    assert sum([n async for n in letters.purge(LetterFilter(died_before=old))]) == 2
    assert await read_pages(letters, LetterFilter()) == [rows[3:]]


@pytest.mark.parametrize(
    "call",
    [
        lambda letters: letters.get(404),
        lambda letters: letters.claim(GONE, "new", 0),
        lambda letters: letters.dispatch(404, "new"),
        lambda letters: letters.discard(404),
    ],
    ids=["get", "claim", "dispatch", "discard"],
)
async def test_unknown_row_is_not_found(
    letters: DeadLetters, call: Callable[[DeadLetters], Awaitable[Any]]
) -> None:
    """Every method that takes a row id says which one does not exist."""
    with pytest.raises(NotFoundError, match="404"):
        await call(letters)


# ---- a server that goes away --------------------------------------------------------------------


async def test_stopped_server_is_reported_and_its_return_noticed(
    mariadb_behind_a_door: tuple[Door, str],
) -> None:
    """A stopped server gives one readable error at once; the same object works afterwards."""
    door, url = mariadb_behind_a_door
    letters = DeadLetters(url, "test")
    await connect_once(letters._database)
    await door.close()
    started = time.monotonic()
    with pytest.raises(ServerUnreachableError) as raised:
        await connect_once(letters._database)
    assert time.monotonic() - started < 5
    assert f"127.0.0.1:{door.port}" in str(raised.value)
    assert "\n" not in str(raised.value)
    await door.open()
    await connect_once(letters._database)
    await letters.close()


async def test_restart_between_two_calls_is_not_noticed(
    mariadb_behind_a_door: tuple[Door, str],
) -> None:
    """A connection that died while idle is replaced without an error."""
    door, url = mariadb_behind_a_door
    letters = DeadLetters(url, "test")
    await connect_once(letters._database)
    await door.close()
    await door.open()
    await connect_once(letters._database)
    await letters.close()


async def test_silent_server_is_given_up(mariadb_behind_a_door: tuple[Door, str]) -> None:
    """A frozen server costs a bounded time, on an old connection and on a new one."""
    door, url = mariadb_behind_a_door
    letters = DeadLetters(url, "test", answer_seconds=0.5)
    await connect_once(letters._database)
    door.freeze()
    for call in (connect_once(letters._database), letters.count()):
        with pytest.raises(ServerUnreachableError, match=r"no answer within 0\.5 s"):
            await call
    door.thaw()
    await connect_once(letters._database)
    await letters.close()


async def test_closed_store_can_be_used_again(letters: DeadLetters) -> None:
    """Closing drops connections, not the object."""
    row = await letters.add(letter())
    await letters.close()
    assert (await letters.get(row)).id == row


# ---- schema -------------------------------------------------------------------------------------


async def test_schema_is_absent_then_current(empty_url: str) -> None:
    """An upgrade makes the tables, a second one changes nothing."""
    assert await sql.check(empty_url) is sql.Schema.ABSENT
    assert await sql.check(empty_url) is sql.Schema.ABSENT
    revision = await sql.upgrade(empty_url)
    assert await sql.check(empty_url) is sql.Schema.CURRENT
    assert await sql.upgrade(empty_url) == revision


@pytest.mark.server
async def test_four_processes_upgrade_at_once(empty_url: str) -> None:
    """Processes that start together on an empty database all succeed."""
    code = """if True:
        import asyncio, sys
        from nonet.stores.sql.database import upgrade

        print(asyncio.run(upgrade(sys.argv[1])))
    """
    racers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, empty_url,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(4)
    ]  # fmt: skip
    answers = await asyncio.gather(*(racer.communicate() for racer in racers))
    assert answers == [(answers[0][0], b"")] * 4
    assert await sql.check(empty_url) is sql.Schema.CURRENT


async def test_upgrades_at_once_in_one_process(tmp_path: Path) -> None:
    """Alembic keeps its state in globals: databases that open together get their own tables."""
    urls = [f"sqlite:///{tmp_path}/{n}.db" for n in range(8)]
    assert len(set(await asyncio.gather(*map(sql.upgrade, urls)))) == 1
    assert {await sql.check(url) for url in urls} == {sql.Schema.CURRENT}


async def test_missing_table_says_what_to_run(mariadb_url: str) -> None:
    """A server database is not migrated behind its owner's back."""
    letters = DeadLetters(mariadb_url, "test")
    with pytest.raises(ConfigurationError, match="task-run db upgrade"):
        await letters.count()
    await letters.close()


async def test_sqlite_is_made_when_first_used(tmp_path: Path) -> None:
    """SQLite needs no set-up, also when its first users are concurrent, and writes ahead."""
    letters = DeadLetters(f"sqlite:///{tmp_path}/state/nonet.db", "test")
    await asyncio.gather(*(letters.add(letter(f"task-{n}")) for n in range(8)))
    assert (await letters.count())[Status.PENDING] == 8
    await letters.close()
    plain = sqlite3.connect(tmp_path / "state" / "nonet.db")
    assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    plain.close()


async def test_looking_does_not_make_a_sqlite_file(tmp_path: Path) -> None:
    """No file means no letters: neither it nor its directory appears by reading."""
    url = f"sqlite:///{tmp_path}/state/nonet.db"
    letters = DeadLetters(url, "test")
    assert (await letters.list(), await letters.count()) == ([], dict.fromkeys(Status, 0))
    for missing in (letters.get(1), letters.discard(1)):
        with pytest.raises(NotFoundError):
            await missing
    assert [n async for n in letters.purge(LetterFilter())] == []
    assert await sql.check(url) is sql.Schema.ABSENT
    assert os.listdir(tmp_path) == []
    await letters.add(letter())
    assert len(await letters.list()) == 1
    await letters.close()


async def test_a_directory_that_cannot_be_made_is_a_wrong_setting() -> None:
    """The first letter says so, in one line."""
    letters = DeadLetters("sqlite:////proc/nonet/nonet.db", "test")
    with pytest.raises(ConfigurationError, match="cannot create its directory"):
        await letters.add(letter())
    await letters.close()


async def test_a_file_that_cannot_be_opened_starts_no_thread(tmp_path: Path) -> None:
    """The driver's thread would write a traceback when it outlives the event loop, as it may."""
    started: list[str] = []
    threading.settrace(lambda *_: started.append(threading.current_thread().name))
    try:
        with pytest.raises(ServerUnreachableError, match="unable to open database file"):
            await sql.upgrade(f"sqlite:///{tmp_path}")
    finally:
        threading.settrace(None)  # type: ignore[arg-type]  # that is how to end it
    assert [name for name in started if "connection_worker" in name] == []


async def test_first_connections_to_a_sqlite_file_do_not_collide(tmp_path: Path) -> None:
    """Switching a new file to write-ahead waits for others who do the same."""
    for n in range(20):
        databases = [sql.Database(f"sqlite:///{tmp_path}/{n}.db") for _ in range(8)]
        await asyncio.gather(*map(connect_once, databases))
        for database in databases:
            await database.close()


async def connect_once(database: sql.Database) -> None:
    """One transaction, over a connection of its own."""
    async with database.transaction() as connection:
        await connection.execute(sa.select(1))


# ---- URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense", "it is no URL"),
        ("mysql://nonet:secret@host:port/x", "'mysql://…': .* percent-encode"),
        ("mysql+aiomysql://nonet:s3@secret@127.0.0.1:1/nonet", "percent-encode"),
        ("mysql+aiomysql:nonet:secret@db/nonet", "it is no URL"),
        ("host=db password=secret", "it is no URL"),
        ("oracle://nonet:secret@host/x", "'oracle' is not supported"),
        ("mysql+pymysql://nonet:secret@host/x", "async"),
        ("mysql+nothing://nonet:secret@host/x", "nothing"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
    ],
)
def test_unusable_url_is_refused(url: str, reason: str) -> None:
    """A wrong URL is a configuration error of one line without the password."""
    with pytest.raises(ConfigurationError, match=reason) as raised:
        DeadLetters(url, "test")
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its driver a database says what to install."""
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigurationError, match=r"install nonet\[postgres\]"):
        DeadLetters("postgresql://nonet@host/x", "test")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://u:pass:word@h:1/d", "mysql://u:***@h:1/d"),
        ("mysql://u:p@ss:w/rd@h:1/d", "mysql://…"),
        ("mysql://u@h/d", "mysql://u@h/d"),
        ("postgresql://h/d?user=u&password=p&ssl=1", "postgresql://h/d?user=u&password=***&ssl=1"),
        ("sqlite:////tmp/a@b.db", "sqlite:////tmp/a@b.db"),
    ],
)
def test_masked_hides_passwords_only(url: str, shown: str) -> None:
    """Whatever the password contains, nothing of it is shown."""
    assert sql.masked(url) == shown


IMPORTS_OF_SQL = """
import asyncio, importlib.abc, sys, threading
from nonet import Nonet

seen = set()

class Notes(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sqlalchemy", "aiosqlite"):
            seen.add(threading.current_thread() is threading.main_thread())

async def main():
    async with Nonet.from_settings(state_dir=sys.argv[1]) as app:
        for opened in (app.dead_letters, app.stores.outbox, app.stores.mirror):
            await opened()

sys.meta_path.insert(0, Notes())
asyncio.run(main())
print(seen)
"""


def test_opening_a_database_does_not_hold_the_event_loop_up(tmp_path: Path) -> None:
    """What must be imported first, which takes long, is imported in another thread."""
    command = [sys.executable, "-c", IMPORTS_OF_SQL, str(tmp_path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True
    )
    assert ended.stdout == "{False}\n"
