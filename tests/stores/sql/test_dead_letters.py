"""Dead letters and their clusters on real databases: each test runs on SQLite and on MariaDB."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
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
    MalformedMessageError,
    NotFoundError,
    ServerUnreachableError,
)
from nonet.rules.letters import LetterFilter, NewDeadLetter, Status
from nonet.stores.sql import database as sql
from nonet.stores.sql.database import Database
from nonet.stores.sql.dead_letters import DeadLetters, dlq_tasks
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


async def test_odd_texts_are_stored(letters: DeadLetters) -> None:
    """NUL and lone surrogates escaped, emoji as they are, in every text column."""
    texts = ("task_class", "reason", "error_type", "error_message", "traceback", "vo")
    odd = dict.fromkeys((*texts, "task_id", "parent_id"), NASTY)
    history = [{NASTY: NASTY, "nan": float("nan"), "set": {1}}]
    read = await letters.get(
        await letters.add(letter(**odd, history=history, labels={NASTY: (NASTY,)}))
    )
    shown = "\U0001f4a3 NUL \\x00 surrogate \\udc80 ❌"
    assert {getattr(read, name) for name in texts} == {shown}
    assert read.labels == {shown: [shown]}
    assert read.history == [{shown: shown, "nan": "nan", "set": "{1}"}]
    assert read.task_id.startswith(shown)


async def test_the_character_set_of_the_server_does_not_matter(mariadb_url: str) -> None:
    """Emoji survive in a database that was made for latin1."""
    async with engine_of(mariadb_url) as engine, engine.begin() as connection:
        await connection.exec_driver_sql("ALTER DATABASE CHARACTER SET latin1")
    await sql.upgrade(mariadb_url)
    letters = DeadLetters(mariadb_url, "test")
    assert (await letters.get(await letters.add(letter(vo="💣")))).vo == "💣"
    await letters.close()


async def test_texts_are_cut_to_their_columns(letters: DeadLetters) -> None:
    """Endless errors keep their start and end; a long history keeps its end."""
    endless = "début " + "é" * 1_000_000 + " fin"
    texts = ("task_class", "reason", "error_type", "error_message", "traceback", "vo")
    history = [{"attempt": n, "error": endless} for n in range(1000)]
    row = await letters.add(letter(**dict.fromkeys(texts, endless), history=history))
    read = await letters.get(row)
    for text in (read.error_message, read.traceback, read.last_error, read.history[-1]["error"]):
        assert text.startswith("début")
        assert text.endswith("fin")
    assert [len(read.task_class), len(read.reason), len(read.error_type)] == [255, 64, 255]
    assert [entry["attempt"] for entry in read.history] == list(range(900, 1000))


@given(st.text(st.characters(codec=None)), st.integers(min_value=60, max_value=200))
def test_storable_text_fits_and_encodes(text: str, limit: int) -> None:
    """It is valid UTF-8 without NUL within the limit; good text is not changed."""
    data = storable(text, limit).encode()
    assert len(data) <= limit
    assert b"\0" not in data
    good = text.encode(errors="replace").replace(b"\0", b"").decode()
    assert storable(good, 4 * len(text)) == good


async def test_simultaneous_adds_make_one_row(letters: DeadLetters) -> None:
    """All callers get the same row id; a task that dies again has another one."""
    rows = await asyncio.gather(*(letters.add(letter()) for _ in range(20)))
    assert len(set(rows)) == 1
    assert len({await letters.add(letter(generation=n)) for n in (1, 2, 2**53)} | {*rows}) == 3


async def test_different_ids_stay_different(letters: DeadLetters) -> None:
    """No collation, padding, cutting or escaping makes one letter of two tasks."""
    ids = ["Task", "task", "task ", "tâche", "tache", "x" * 128 + "a", "x" * 128 + "b"]
    ids += ["a\0", "a\\x00", "a\udc80", "a\\udc80"]
    assert len({await letters.add(letter(id)) for id in ids}) == len(ids)


async def test_lists_are_newest_first(letters: DeadLetters) -> None:
    """Filters combine, and the limit cuts the oldest; arguments and tracebacks are left out."""
    kinds = [("a:A", "crash"), ("a:A", "retries"), ("b:B", "crash"), ("a:A", "crash")]
    secret = {"task_args": b"hunter2", "traceback": "long"}
    rows = [
        await letters.add(letter(f"task-{n}", task_class=name, reason=reason, **secret))
        for n, (name, reason) in enumerate(kinds)
    ]
    await dispatched(letters, rows[1], "new")
    for filters, expected in (
        ({}, [3, 2, 1, 0]),
        ({"limit": 2}, [3, 2]),
        ({"limit": 2, "before": rows[2]}, [1, 0]),
        ({"task_class": "a:A", "reason": "crash"}, [3, 0]),
        ({"status": Status.DISPATCHED}, [1]),
        ({"task_class": "A:a"}, []),
    ):
        found = await letters.list(**filters)
        assert [rows.index(each.id) for each in found] == expected
        assert {(each.task_args, each.traceback) for each in found} <= {(b"", "")}
    assert await letters.count() == {"PENDING": 3, "DISPATCHED": 1, "FAILED": 0}
    assert "hunter2" not in repr(await letters.get(rows[0]))


async def claimed(letters: DeadLetters, row: int, repeat: str, resubmissions: int = 0) -> None:
    await letters.claim(await letters.get(row), repeat, resubmissions)


async def dispatched(letters: DeadLetters, row: int, repeat: str) -> None:
    await claimed(letters, row, repeat)
    await letters.dispatch(row, repeat)


async def test_one_operator_wins_a_claim(letters: DeadLetters) -> None:
    """Of several who have read a letter; the others learn which task was begun."""
    read = await letters.get(await letters.add(letter()))
    calls = [letters.claim(read, f"new-{n}", 0) for n in range(5)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    lost = [answer for answer in answers if answer is not None]
    assert len(lost) == 4
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


async def test_a_letter_fails_with_its_own_repeat(letters: DeadLetters) -> None:
    """It is FAILED once its repeat died, and stays so."""
    row = await letters.add(letter())
    assert not await letters.mark_failed(row, "new")
    await claimed(letters, row, "new")
    assert not await letters.mark_failed(row, "dlq-1")
    assert await letters.mark_failed(row, "new")
    assert not await letters.mark_failed(row, "new")
    await letters.dispatch(row, "new")
    assert (await letters.get(row)).status is Status.FAILED


async def test_a_namespace_acts_on_its_own_letters(letters: DeadLetters, url: str) -> None:
    """Another one has a task of the same id; neither reaches the row of the other."""
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


async def test_a_discarded_row_is_gone(letters: DeadLetters) -> None:
    """Its number is not reused; a letter that changed since it was chosen is not deleted."""
    row = await letters.add(letter())
    await dispatched(letters, row, "new")
    with pytest.raises(ConflictError, match=f"dead letter {row} is DISPATCHED"):
        await letters.discard(row, only=LetterFilter(status="PENDING"))
    await letters.discard(row, only=LetterFilter(status="DISPATCHED"))
    assert await letters.list() == []
    assert await letters.add(letter()) > row


async def aged(letters: DeadLetters, ages: list[timedelta]) -> list[int]:
    """Letters that died so long ago; their rows."""
    rows = [await letters.add(letter(f"task-{n}")) for n in range(len(ages))]
    for row, age in zip(rows, ages, strict=True):
        await change(letters._database, row, created_at=datetime.now(UTC) - age)
    return rows


async def read_pages(letters: DeadLetters, selection: LetterFilter) -> list[list[int]]:
    return [page async for page in letters.pages(selection)]


async def test_letters_are_chosen_by_age(letters: DeadLetters) -> None:
    """Both ends of an age filter to the microsecond, in lists as in pages."""
    ages = [timedelta(days=days) for days in (40, 30, 20, 10)]
    rows = await aged(letters, ages)
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


async def test_a_letter_is_on_one_page(
    letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oldest first; letters that are added meanwhile are left out."""
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


async def test_a_purge_deletes_matching_letters(letters: DeadLetters) -> None:
    """In batches; the others stay."""
    month = timedelta(days=30)
    rows = await aged(letters, [month] * 3 + [timedelta(hours=1)] * 2)
    await dispatched(letters, rows[1], "new")
    old = datetime.now(UTC) - timedelta(days=7)
    gone = [n async for n in letters.purge(LetterFilter(died_before=old, status="DISPATCHED"))]
    assert gone == [1]
    assert sum([n async for n in letters.purge(LetterFilter(died_before=old))]) == 2
    assert await read_pages(letters, LetterFilter()) == [rows[3:]]


async def test_an_unknown_row_is_not_found(letters: DeadLetters) -> None:
    """Every method that takes a row id says which one does not exist."""
    gone = await letters.get(await letters.add(letter()))
    await letters.discard(gone.id)
    for call in (
        letters.get(gone.id),
        letters.claim(gone, "new", 0),
        letters.dispatch(gone.id, "new"),
        letters.discard(gone.id),
    ):
        with pytest.raises(NotFoundError, match=str(gone.id)):
            await call


async def test_a_stopped_server_is_reported(mariadb_behind_a_door: tuple[Door, str]) -> None:
    """By one readable error; after its return, or a restart while idle, calls work again."""
    door, url = mariadb_behind_a_door
    letters = DeadLetters(url, "test")
    await connect_once(letters._database)
    await door.close()
    with pytest.raises(ServerUnreachableError) as raised:
        await connect_once(letters._database)
    assert f"127.0.0.1:{door.port}" in str(raised.value)
    assert "\n" not in str(raised.value)
    for _ in range(2):
        await door.open()
        await connect_once(letters._database)
        await door.close()
    await letters.close()


async def test_a_silent_server_is_given_up(mariadb_behind_a_door: tuple[Door, str]) -> None:
    """A frozen server costs a bounded time, on an old connection and on a new one."""
    door, url = mariadb_behind_a_door
    letters = DeadLetters(url, "test", answer_seconds=2)
    await connect_once(letters._database)
    door.freeze()
    for call in (connect_once(letters._database), letters.count()):
        with pytest.raises(ServerUnreachableError, match=r"no answer within 2 s"):
            await call
    door.thaw()
    await connect_once(letters._database)
    await letters.close()


@pytest.mark.server
async def test_two_processes_upgrade_at_once(empty_url: str) -> None:
    """Processes that start together on an empty database all succeed."""
    code = """if True:
        import asyncio, sys
        from nonet.stores.sql.database import upgrade

        print(asyncio.run(upgrade(sys.argv[1])))
    """
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    command = (sys.executable, "-c", code, empty_url)
    racers = [await asyncio.create_subprocess_exec(*command, **pipes) for _ in range(2)]
    answers = await asyncio.gather(*(racer.communicate() for racer in racers))
    assert answers == [(answers[0][0], b"")] * 2
    assert await sql.check(empty_url) is sql.Schema.CURRENT


async def test_upgrades_at_once_in_one_process(tmp_path: Path) -> None:
    """Alembic keeps its state in globals: databases that open together get their own tables."""
    urls = [f"sqlite:///{tmp_path}/{n}.db" for n in range(8)]
    assert len(set(await asyncio.gather(*map(sql.upgrade, urls)))) == 1
    assert {await sql.check(url) for url in urls} == {sql.Schema.CURRENT}


async def test_a_missing_table_names_the_command(mariadb_url: str) -> None:
    """A server database is not migrated without its owner."""
    letters = DeadLetters(mariadb_url, "test")
    with pytest.raises(ConfigurationError, match="task-run db upgrade"):
        await letters.count()
    await letters.close()


async def test_sqlite_is_made_when_first_used(tmp_path: Path) -> None:
    """SQLite needs no set-up, also when its first users are concurrent, and writes ahead."""
    users = [DeadLetters(f"sqlite:///{tmp_path}/state/nonet.db", "test") for _ in range(8)]
    await asyncio.gather(*(user.add(letter(f"task-{n}")) for n, user in enumerate(users)))
    assert (await users[0].count())[Status.PENDING] == 8
    for user in users:
        await user.close()
    plain = sqlite3.connect(tmp_path / "state" / "nonet.db")
    assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    plain.close()


async def test_an_impossible_directory_is_a_wrong_setting() -> None:
    """The first letter says so."""
    letters = DeadLetters("sqlite:////proc/nonet/nonet.db", "test")
    with pytest.raises(ConfigurationError, match="cannot create its directory"):
        await letters.add(letter())
    await letters.close()


async def test_a_failed_open_starts_no_thread(tmp_path: Path) -> None:
    """The thread of the driver would outlive the event loop and write a traceback."""
    started: list[str] = []
    threading.settrace(lambda *_: started.append(threading.current_thread().name))
    try:
        with pytest.raises(ServerUnreachableError, match="unable to open database file"):
            await sql.upgrade(f"sqlite:///{tmp_path}")
    finally:
        threading.settrace(None)  # type: ignore[arg-type]  # that is how to end it
    assert [name for name in started if "connection_worker" in name] == []


async def connect_once(database: sql.Database) -> None:
    """One transaction, over a connection of its own."""
    async with database.transaction() as connection:
        await connection.execute(sa.select(1))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://nonet:secret@host:port/x", "'mysql://…': .* percent-encode"),
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


def test_opening_a_database_does_not_block_the_loop(tmp_path: Path) -> None:
    """Slow imports run in another thread."""
    command = [sys.executable, "-c", IMPORTS_OF_SQL, str(tmp_path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True
    )
    assert ended.stdout == "{False}\n"


def failed(
    number: int, *, task: str = "a:A", error: str = "KeyError", line: int = 3
) -> NewDeadLetter:
    """A letter whose error is raised in ``shop.bill:pay``."""
    message = f"invoice {number}"
    frame = f'  File "/srv/shop/bill.py", line {line}, in pay'
    trace = f"Traceback (most recent call last):\n{frame}\n{error}: {message}"
    about = {"error_type": error, "error_message": message, "traceback": trace}
    return letter(f"task-{number}", task_class=task, **about)


async def change(database: Database, row: int, **values: object) -> None:
    """Change a row behind the store."""
    async with database.transaction() as connection:
        await connection.execute(sa.update(dlq_tasks).where(dlq_tasks.c.id == row).values(values))


async def test_one_cause_is_one_cluster(letters: DeadLetters, database: Database) -> None:
    """With counts, ages, statuses and its newest letter, of this namespace."""
    now = datetime.now(UTC)
    rows = [await letters.add(failed(n, line=n)) for n in range(4)]
    for row, hours in zip(rows, (24 * 8, 30, 2, 0), strict=True):
        await change(database, row, created_at=now - timedelta(hours=hours))
    await change(database, rows[0], status="FAILED")
    other = await letters.add(failed(9, task="a:B"))
    await DeadLetters(database, "other").add(failed(10))
    newest, cluster = await letters.clusters(LetterFilter())
    assert (newest.task_class, newest.newest, newest.count) == ("a:B", other, 1)
    assert (cluster.task_class, cluster.error_type) == ("a:A", "KeyError")
    assert (cluster.location, cluster.newest) == ("shop.bill:pay", rows[-1])
    assert cluster.last_error == "KeyError: invoice 3"
    assert (cluster.count, cluster.last_hour, cluster.last_day, cluster.last_week) == (4, 1, 2, 3)
    assert cluster.statuses == {Status.PENDING: 3, Status.DISPATCHED: 0, Status.FAILED: 1}
    assert cluster.last - cluster.first == timedelta(days=8)


async def test_filters_select_the_same_letters(letters: DeadLetters, database: Database) -> None:
    """Clusters, counts and pages have the same number of letters."""
    for number in range(6):
        task, error = f"a:{'ABC'[number % 3]}", ("KeyError", "TimeoutError")[number % 2]
        row = await letters.add(failed(number, task=task, error=error))
        if number == 1:
            await change(database, row, status="DISPATCHED")
    found = {
        LetterFilter(): 6,
        LetterFilter(task_class="a:A"): 2,
        LetterFilter(task_class="A"): 2,
        LetterFilter(task_class="a:Z"): 0,
        LetterFilter(error="timeout"): 3,
        LetterFilter(task_class="a:B", error="key"): 1,
        LetterFilter(error="%"): 0,
        LetterFilter(task_id="task-5", error="%"): 0,
        LetterFilter(status="DISPATCHED"): 1,
        LetterFilter(task_id="task-5"): 1,
        LetterFilter(died_after=datetime.now(UTC)): 0,
        LetterFilter(up_to=2): 2,
    }
    for selection, number in found.items():
        clusters = await letters.clusters(selection)
        assert sum(cluster.count for cluster in clusters) == number, selection
        assert (await letters.measure(selection))[0] == number, selection
        narrow = await letters.narrowed(selection)
        pages = [page async for page in letters.pages(narrow)]
        assert sum(map(len, pages)) == number, selection


async def test_a_note_stays_with_its_letter(letters: DeadLetters) -> None:
    """A long note is cut to what the column holds."""
    row = await letters.add(failed(1))
    await letters.annotate(row, "waits for the new printer")
    assert (await letters.get(row)).note == "waits for the new printer"
    await letters.annotate(row, "é" * 2000)
    assert (await letters.get(row)).note == "é" * 1000


async def test_an_earlier_task_with_the_same_id_keeps_its_letter(letters: DeadLetters) -> None:
    """Steps that run again withdraw what was written since their workflow was submitted."""
    kept = await letters.add(letter(generation=1))
    await letters.add(letter(generation=10))
    await letters.withdraw(["task-1"], since=5)
    assert [item.id for item in await letters.list()] == [kept]


async def test_a_malformed_letter_hides_no_other(url: str, letters: DeadLetters) -> None:
    """Lists leave it out; it can be discarded."""
    good = await letters.add(letter())
    wrong = [("labels", "5"), ("labels", "[]"), ("history", "{}"), ("history", "[5, {}]")]
    # SQLite, unlike the servers, stores any text in a column for JSON.
    wrong += [("status", "LOST"), *[("history", "{")] * url.startswith("sqlite")]
    for column, value in wrong:
        bad = await letters.add(letter("task-2"))
        await damage(url, bad, column, value)
        assert good in [item.id for item in await letters.list()]
        if value == "{":
            with pytest.raises(MalformedMessageError, match=f"task-run dlq discard {bad}"):
                await letters.get(bad)
        await letters.discard(bad)


async def damage(url: str, row: int, column: str, text: str) -> None:
    """Let another program write into a row."""
    async with engine_of(url) as engine, engine.begin() as connection:
        statement = f"UPDATE dlq_tasks SET {column} = :text WHERE id = :row"
        await connection.execute(sa.text(statement), {"text": text, "row": row})
