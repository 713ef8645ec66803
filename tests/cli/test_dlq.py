"""``task-run dlq|db``: dead letters and their tables."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli.errands import Add, Fail
from cli.terminal import Ended, TaskRun
from waits import WAIT_SECONDS

from nonet import TaskFailed
from nonet.base.messages.encryption import NO_KEY
from nonet.base.messages.message import encode, pack
from nonet.rules.letters import NewDeadLetter
from nonet.tasks.task import Options

SECRETS = ("s3cret-key", "s3cret-pw")


@pytest.fixture
async def row(task_run: TaskRun) -> int:
    """The row of a dead letter: a task that lacks the file ``later``."""
    return await _dead(task_run)


async def _dead(task_run: TaskRun) -> int:
    labels = {"run": 7, "api_token": "s3cret-pw"}
    async with task_run.worker() as app:
        handle = await app.submit(Fail(task_run.home / "later"), id="first", labels=labels)
        with pytest.raises(TaskFailed):
            await handle.result(timeout=WAIT_SECONDS)
        (letter,) = await (await app.dead_letters()).list()
    return letter.id


async def test_list_and_show_have_no_arguments(task_run: TaskRun, row: int) -> None:
    """`show` adds traceback, attempts and labels; a label with a telling name is masked."""
    ended, table = await task_run("dlq", "list", "--json"), await task_run("dlq", "list")
    (letter,) = ended.json["items"]
    assert (letter["id"], letter["task_id"], letter["task_class"]) == (row, "first", "errands:Fail")
    assert (letter["status"], letter["reason"], letter["retry_count"]) == ("PENDING", "retries", 0)
    assert not letter.keys() & {"task_args", "arguments", "traceback", "labels"}
    assert "first" in table.out
    whole, text = await task_run("dlq", "show", row, "--json"), await task_run("dlq", "show", row)
    letter = whole.json
    assert letter["traceback"].startswith("Traceback (most recent call last):\n  File ")
    assert letter["traceback"].endswith(f"\n{letter['last_error']}")
    (attempt,) = letter["history"]
    assert attempt["attempt"] == 1 and attempt["wall"] > 0
    at = datetime.fromisoformat(attempt["at"])
    assert attempt["at"].endswith("Z") and at == datetime.fromisoformat(letter["last_attempted_at"])
    assert letter["labels"] == {"run": 7, "api_token": "**********"}
    assert "arguments" not in letter
    assert "in execute" in text.out and "errands:Fail" in text.out
    assert "\nTraceback (most recent call last):\n" in text.out
    assert re.search(rf"1  {at:%Y-%m-%d %H:%M:%SZ}  FileNotFoundError.*  \d+\.\d\d\d s", text.out)
    for shown in (ended, table, whole, text):
        assert "\x1b" not in shown.out and not any(secret in shown.out for secret in SECRETS)


async def test_status_shows_the_last_attempt(task_run: TaskRun, row: int) -> None:
    """`status` prints what it took, and its traceback below the fields, masked."""
    found = (await task_run("status", "first", "--json")).json
    assert found["traceback"].startswith("Traceback (most recent call last):\n  File ")
    assert found["usage"]["wall"] > 0 and found["usage"].keys() == {"wall", "cpu", "rss"}
    assert (found["crashes"], found["worker_deaths"]) == (0, 0)
    shown = await task_run("status", "first")
    assert re.search(r"^usage +\d+\.\d\d\d s", shown.out, re.MULTILINE)
    assert "crashes" not in shown.out and "deaths" not in shown.out
    fields, _, below = shown.out.partition("\nTraceback (most recent call last):\n")
    assert "traceback" not in fields and "in execute\n    raise FileNotFoundError(" in below
    assert "\x1b" not in shown.out
    assert not any(secret in shown.out for secret in SECRETS)


async def test_no_command_prints_control_characters_of_an_error(
    task_run: TaskRun, row: int
) -> None:
    """An error that contains escape sequences cannot control the terminal of its reader."""
    commands = ("history", "status first", "result first", "explain first", "overview")
    commands += ("events", "dlq list", f"dlq show {row}", "dlq clusters")
    shown = [await task_run(*words.split()) for words in commands]
    texts = [line for ended in shown for line in (ended.out + ended.err).split("\n")]
    assert sum("\\x1b[31mno " in line for line in texts) >= 4
    assert [line for line in texts if not line.isprintable()] == []


async def test_secrets_in_arguments_are_masked(task_run: TaskRun, row: int) -> None:
    """`--show-args` masks secrets at any depth, and everything if the class is unknown."""
    show = ("dlq", "show", row, "--show-args")
    ended, text = await task_run(*show, "--json"), await task_run(*show)
    arguments = ended.json["arguments"]
    assert arguments.pop("path").endswith("/later")
    assert arguments == {"key": "**********", "login": {"user": "me", "password": "**********"}}
    assert not any(secret in ended.out + text.out for secret in SECRETS)
    unknown = await task_run(*show, "--json", "--tasks", "nonet.cli.demo.tasks")
    assert set(unknown.json["arguments"].values()) == {"**********"}
    assert "errands:Fail is not registered here" in unknown.err


async def test_encrypted_letters_are_shown_and_resubmitted_only_with_the_key(
    task_run: TaskRun,
) -> None:
    """Without the key no command shows the arguments or the error."""
    plain = dict(task_run.environment)
    keys = f"2026:{base64.b64encode(b'k' * 32).decode()}"
    task_run.environment |= {"NONET_ENCRYPTION_KEYS": keys, "NONET_ENCRYPT_ALL": "1"}
    row = await _dead(task_run)
    show = ("dlq", "show", row, "--show-args", "--json")
    shown = (await task_run(*show)).json
    assert shown["arguments"]["path"].endswith("/later")
    assert "/later" in shown["last_error"] and "in execute" in shown["traceback"]
    assert "/later" in (await task_run("status", "first")).out
    task_run.environment = plain
    ended = await task_run(*show)
    assert ended.json["arguments"] == {}
    assert f"are not shown: they are {NO_KEY}" in ended.err
    assert ended.json["last_error"] == f"FileNotFoundError: {NO_KEY}"
    assert ended.json["traceback"] == NO_KEY
    assert ended.json["error_type"] == "FileNotFoundError"
    refused = await task_run("dlq", "resubmit", row)
    assert (refused.code, NO_KEY in refused.err) == (1, True)
    for command in ("status first", "result first", "explain first", "history"):
        said = await task_run(*command.split())
        assert "/later" not in said.out + said.err


async def test_resubmit_runs_the_task_again(task_run: TaskRun, row: int) -> None:
    """`dlq resubmit` submits arguments and labels again, as a new task, and marks the letter."""
    (task_run.home / "later").touch()
    async with task_run.worker() as app:
        ended = await task_run("dlq", "resubmit", row, "--json")
        (entry,) = ended.json
        assert (ended.code, entry["row"], entry["created"]) == (0, row, True)
        assert entry["id"] != "first"
        assert await app.result(entry["id"], timeout=WAIT_SECONDS) == "fine"
    (letter,) = (await task_run("dlq", "list", "--json")).json["items"]
    assert (letter["status"], letter["resubmitted_as"]) == ("DISPATCHED", entry["id"])


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ("claimed", "if it never ran, 'task-run dlq resubmit --again"),
        ("foreign", "belongs to another task, which is delayed"),
        ("cancelled", "is cancelled; 'task-run dlq"),
    ],
)
async def test_a_doubtful_resubmission_is_repeated_only_with_again(
    task_run: TaskRun, row: int, before: str, problem: str
) -> None:
    """The operator may have died, another task may have the id, or the repeat was cancelled."""
    async with task_run.app() as app:
        letters = await app.dead_letters()
        letter = await letters.get(row)
        first = letter.identity.repeat(0).id
        if before == "claimed":
            await letters.claim(letter, first, 0)
        elif before == "foreign":
            options = Options(id=first, at_time=datetime(2100, 1, 1, tzinfo=UTC))
            other = app.client.envelopes.prepare(Add(1), options, is_step=True)
            await app.broker.submit([other])
        else:
            await task_run("dlq", "resubmit", row)
            await app.cancel([first])
    refused = await task_run("dlq", "resubmit", row)
    assert refused.code == 1 and problem in refused.err
    again = ("dlq", "resubmit", row, "--again", "--json")
    both = await asyncio.gather(task_run(*again), task_run(*again))
    (id,) = [ended.json[0]["id"] for ended in both if ended.json[0].get("created")]
    assert (id == first) is (before == "claimed")
    shown = (await task_run("dlq", "show", row, "--json")).json
    assert (shown["status"], shown["resubmitted_as"]) == ("DISPATCHED", id)


@pytest.mark.parametrize(
    ("variables", "code", "problem"),
    [
        ({"NONET_REDIS_URL": "redis://127.0.0.1:1"}, 3, "does not answer"),
        ({"NONET_TASKS": "nonet.cli.demo.tasks"}, 2, "unknown task 'errands:Fail'"),
    ],
    ids=["without Redis", "unknown class"],
)
async def test_a_resubmission_that_fails_leaves_the_letter_pending(
    task_run: TaskRun, row: int, variables: dict[str, str], code: int, problem: str
) -> None:
    """The letter can be submitted later."""
    ended = await task_run("dlq", "resubmit", row, **variables)
    assert ended.code == code and problem in ended.err and len(ended.err.splitlines()) == 1
    (letter,) = (await task_run("dlq", "list", "--json")).json["items"]
    assert (letter["status"], letter["resubmitted_as"]) == ("PENDING", None)


async def test_a_repeat_that_dies_gets_a_letter_of_its_own(task_run: TaskRun, row: int) -> None:
    """The first letter becomes FAILED, and the second one names it."""
    async with task_run.worker() as app:
        (entry,) = (await task_run("dlq", "resubmit", row, "--json")).json
        with pytest.raises(TaskFailed):
            await app.result(entry["id"], timeout=WAIT_SECONDS)
    second, first = (await task_run("dlq", "list", "--json")).json["items"]
    assert (first["id"], first["status"]) == (row, "FAILED")
    assert (second["resubmitted_from"], second["status"]) == (row, "PENDING")


async def test_a_letter_without_a_class_cannot_be_resubmitted(task_run: TaskRun, row: int) -> None:
    """It holds quarantined bytes and is no task."""
    with _database(task_run) as database:
        database.execute("UPDATE dlq_tasks SET task_class = ''")
    refused = await task_run("dlq", "resubmit", row)
    assert refused.code == 1 and "can only be discarded" in refused.err
    ended = await task_run("dlq", "show", row, "--show-args", "--json")
    assert ended.json["arguments"] == {} and "cannot be decoded" in ended.err


async def test_each_of_several_rows_is_reported(task_run: TaskRun, row: int) -> None:
    """A row that fails does not stop the others; the code is 1. A missing one alone is 4."""
    ended = await task_run("dlq", "resubmit", row + 1, row, "--json")
    assert ended.code == 1
    failed, done = ended.json
    assert failed["row"] == row + 1 and "no dead letter" in failed["error"]
    assert (done["row"], done["created"]) == (row, True)
    ended = await task_run("dlq", "discard", row, row + 1)
    assert ended.code == 1 and f"error: no dead letter {row + 1}:" in ended.err
    assert (await task_run("dlq", "list", "--json")).json["items"] == []
    for command in ("show", "resubmit", "discard"):
        assert (await task_run("dlq", command, row)).code == 4


# ---- many letters -------------------------------------------------------------------------------


@pytest.fixture
async def old_rows(task_run: TaskRun) -> list[int]:
    """Rows of letters that died 40, 30, 20, 10 and 0 days ago; the third of another class."""
    rows = []
    async with task_run.app() as app:
        letters = await app.dead_letters()
        arguments = encode(pack({"path": task_run.home / "later"}))
        for n, name in enumerate(["Fail", "Fail", "Gone", "Fail", "Fail"]):
            letter = NewDeadLetter(
                task_id=f"old-{n}",
                generation=1,
                task_class=f"errands:{name}",
                task_args=arguments,
                submitted_at=datetime(2026, 1, 1, tzinfo=UTC),
                reason="retries" if n else "crash",
            )
            rows.append(await letters.add(letter))
    with _database(task_run) as database:
        for row, days in zip(rows, (40, 30, 20, 10, 0), strict=True):
            died = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S.%f")
            database.execute("UPDATE dlq_tasks SET created_at = ? WHERE id = ?", (died, row))
    return rows


@contextmanager
def _database(task_run: TaskRun) -> Iterator[sqlite3.Connection]:
    file = Path(task_run.environment["NONET_STATE_DIR"]) / "nonet.db"
    with closing(sqlite3.connect(file)) as database, database:
        yield database


def _rows_of(ended: Ended) -> list[int]:
    return [entry["row"] for entry in ended.json]


async def test_filters_choose_the_same_letters_for_every_command(
    task_run: TaskRun, old_rows: list[int]
) -> None:
    """A dry run only reports which; the command then acts on exactly these."""
    cases: list[tuple[list[object], list[int]]] = [
        (["--all"], [0, 1, 2, 3, 4]),
        (["--all", "--limit", 2], [0, 1]),
        (["--task", "Fail"], [0, 1, 3, 4]),
        (["--newer-than", "360h"], [3, 4]),
        (["--newer-than", "25d", "--older-than", "15d"], [2]),
        (["--status", "PENDING", "--task", "errands:Gone"], [2]),
        (["--status", "DISPATCHED"], []),
        (["--reason", "retries", "--older-than", "15d"], [1, 2]),
    ]
    for options, expected in cases:
        wanted = [old_rows[n] for n in expected]
        again = ["--again"] if "DISPATCHED" in options else []
        ended = await task_run("dlq", "resubmit", *options, *again, "--dry-run", "--json")
        number = {"number": len(wanted), "up_to": max(wanted, default=0), "bulk": None}
        assert (ended.code, ended.json) == (0, number)
        assert "nothing was changed" in ended.err
        assert (await task_run("dlq", "discard", *options, "--dry-run", "--json")).json == number
    left = (await task_run("dlq", "list", "--json")).json["items"]
    assert [(letter["id"], letter["status"]) for letter in left] == [
        (row, "PENDING") for row in reversed(old_rows)
    ]
    ended = await task_run("dlq", "discard", *options, "--json")
    assert ended.json == {"discarded": len(wanted)}
    left = (await task_run("dlq", "list", "--json")).json["items"]
    assert {letter["id"] for letter in left} == set(old_rows) - set(wanted)


async def test_a_cluster_is_resubmitted_at_a_rate(task_run: TaskRun, old_rows: list[int]) -> None:
    """`dlq clusters` names it; its first task starts now, and the others wait for their time."""
    found = (await task_run("dlq", "clusters", "--json")).json["items"]
    cluster = next(item for item in found if item["count"] == 3)
    assert (cluster["task_class"], cluster["reason"]) == ("errands:Fail", "retries")
    assert cluster["statuses"] == {"PENDING": 3, "DISPATCHED": 0, "FAILED": 0}
    assert cluster["newest"] == old_rows[4]
    chosen = ("--cluster", cluster["fingerprint"])
    ended = await task_run("dlq", "resubmit", *chosen, "--rate", "0.01", "--json")
    assert _rows_of(ended) == [old_rows[1], old_rows[3], old_rows[4]]
    states = [(await task_run("status", item["id"], "--json")).json["state"] for item in ended.json]
    assert states == ["queued", "delayed", "delayed"]
    table = await task_run("dlq", "clusters", "--error", "nothing")
    assert table.out == "" and "no dead letter matches" in table.err


async def test_notes_are_kept(task_run: TaskRun, old_rows: list[int]) -> None:
    """On a letter until it is deleted, and then in the event stream."""
    row = old_rows[2]
    assert (await task_run("dlq", "note", row, "waits for the printer")).code == 0
    assert (await task_run("dlq", "show", row, "--json")).json["note"] == "waits for the printer"
    assert (await task_run("dlq", "note", 999, "x")).code == 4
    await task_run("dlq", "discard", row, "--why", "printed by hand")
    (event,) = await _events(task_run)
    assert event["text"] == f"row {row}: printed by hand"


async def test_a_letter_that_cannot_be_resubmitted_stops_no_other(
    task_run: TaskRun, old_rows: list[int]
) -> None:
    """Two operators resubmit all at once: each letter runs once, what fails is reported."""
    (task_run.home / "later").touch()
    both = await asyncio.gather(*(task_run("dlq", "resubmit", "--all", "--json") for _ in range(2)))
    good = [row for n, row in enumerate(old_rows) if n != 2]
    created = [entry["row"] for ended in both for entry in ended.json if entry.get("created")]
    assert sorted(created) == good
    for ended in both:
        assert ended.code == 1
        errors = {entry["row"]: entry["error"] for entry in ended.json if "error" in entry}
        assert errors[old_rows[2]].startswith("unknown task 'errands:Gone'")
    ids = [entry["id"] for ended in both for entry in ended.json if entry.get("created")]
    async with task_run.worker() as app:
        for id in ids:
            assert await app.result(id, timeout=WAIT_SECONDS) == "fine"
    assert sorted((task_run.home / "later").read_text().split()) == sorted(ids)
    listed = (await task_run("dlq", "list", "--status", "PENDING", "--json")).json["items"]
    assert [letter["id"] for letter in listed] == [old_rows[2]]
    # Also an operator who comes so late that only this one is left.
    left = await task_run("dlq", "resubmit", "--all")
    assert (left.code, left.err.count("dead letter")) == (1, 1)


async def test_a_discard_that_fails_reports_what_it_deleted(
    task_run: TaskRun, old_rows: list[int]
) -> None:
    """Earlier batches are reported and recorded beside the error."""
    with _database(task_run) as database:
        database.execute(f"UPDATE dlq_tasks SET id = 100000 WHERE id = {old_rows[-1]}")
        database.execute(
            "CREATE TRIGGER broken BEFORE DELETE ON dlq_tasks WHEN OLD.id = 100000 "
            "BEGIN SELECT RAISE(ABORT, 'broken'); END"
        )
    ended = await task_run("dlq", "discard", "--older-than", "0s")
    assert ended.code != 0 and ended.out == "4 dead letters discarded\n"
    assert (await _events(task_run))[0]["text"].startswith("4 rows, older_than 0s")


async def _events(task_run: TaskRun) -> list[dict[str, str]]:
    events: list[dict[str, str]] = (await task_run("events", "--json")).json["items"][::-1]
    return events


async def test_each_command_that_changes_letters_is_an_event(
    task_run: TaskRun, old_rows: list[int]
) -> None:
    """The event says how many; a command that changed nothing makes none."""
    for arguments in [
        ("resubmit", old_rows[0]),
        ("resubmit", old_rows[0]),
        ("resubmit", "--reason", "retries"),
        ("discard", old_rows[1]),
        ("discard", old_rows[1]),
        ("discard", "--task", "errands:Gone", "--dry-run"),
        ("discard", "--older-than", "15d", "--task", "errands:Gone", "--dry-run"),
        ("discard", "--older-than", "15d", "--task", "errands:Gone"),
        ("discard", "--older-than", "15d", "--task", "errands:Gone"),
        ("discard", "--all"),
    ]:
        await task_run("dlq", *arguments)
    events = await _events(task_run)
    assert [event["kind"] for event in events] == [
        *("dlq-resubmit", "dlq-resubmit", "dlq-discard", "dlq-discard", "dlq-discard")
    ]
    first, many, one, purge, every = [event["text"] for event in events]
    assert first == f"row {old_rows[0]}"
    assert many == f"3 rows, the last {old_rows[4]}"
    assert one == f"row {old_rows[1]}"
    assert purge == "1 row, task errands:Gone, older_than 15d"
    assert every == "3 rows, all"
    assert all("@" in event["who"] for event in events)


async def test_letters_are_shown_and_deleted_without_redis(
    task_run: TaskRun, old_rows: list[int]
) -> None:
    """SQL alone is needed; a warning says that no event records the deletion."""
    away = {"NONET_REDIS_URL": "redis://127.0.0.1:1"}
    assert len((await task_run("dlq", "list", "--json", **away)).json["items"]) == 5
    assert (await task_run("dlq", "show", old_rows[0], "--show-args", **away)).code == 0
    discard = await task_run("dlq", "discard", old_rows[0], "--json", **away)
    assert (discard.code, discard.json) == (0, [{"row": old_rows[0]}])
    others = await task_run("dlq", "discard", "--all", **away)
    assert (others.code, others.out) == (0, "4 dead letters discarded\n")
    for ended in (discard, others):
        (line,) = ended.err.splitlines()
        assert line.startswith("warning: done, but 'task-run events' will not show it: ")


async def test_migrations_do_not_fill_the_log_of_a_worker(task_run: TaskRun) -> None:
    """A worker makes its tables silently when the first task dies."""
    worker = await task_run.start("--size=small", script="task-worker")
    options = ("--args", '["/nowhere"]', "--id", "f", "--wait", WAIT_SECONDS)
    assert (await task_run("submit", "Fail", *options)).code == 1
    worker.terminate()
    _, log = await worker.communicate()
    assert len((await task_run("dlq", "list", "--json")).json["items"]) == 1
    assert b" ready: " in log and b"alembic" not in log


async def test_reading_creates_no_database(task_run: TaskRun) -> None:
    """Until a task dies there is no file, and no command makes one to read it."""
    assert (await task_run("dlq", "list", "--json")).json["items"] == []
    assert (await task_run("dlq", "show", 1)).code == 4
    assert (await task_run("dlq", "discard", "--all")).code == 0
    assert (await task_run("db", "check")).code == 1
    assert "state" not in os.listdir(task_run.home)


@pytest.mark.parametrize(
    "arguments",
    [
        ("dlq", "list"),
        ("dlq", "show", 1),
        ("dlq", "discard", 1, 2),
        ("dlq", "discard", "--all"),
        ("db", "upgrade"),
        ("db", "check"),
    ],
)
async def test_unreachable_sql_is_exit_code_3(
    task_run: TaskRun, arguments: tuple[object, ...]
) -> None:
    """Without the database a command says so in one line, with the password masked."""
    url = "mysql://nonet:s3cret@127.0.0.1:1/nonet"
    ended = await task_run(*arguments, NONET_DB_URL=url)
    assert (ended.code, ended.out) == (3, "")
    assert len(ended.err.splitlines()) == 1
    assert "mysql://nonet:***@127.0.0.1:1/nonet" in ended.err and "s3cret" not in ended.err


async def test_only_db_upgrade_makes_the_tables_of_a_server(
    task_run: TaskRun, mariadb_url: str
) -> None:
    """`db check` exits with 1, and `dlq list` with 2, until the tables exist."""
    task_run.environment["NONET_DB_URL"] = mariadb_url
    absent = await task_run("db", "check", "--json")
    assert (absent.code, absent.json["state"]) == (1, "absent")
    refused = await task_run("dlq", "list")
    assert refused.code == 2
    assert "task-run db upgrade" in absent.err and "task-run db upgrade" in refused.err
    first, second = (await task_run("db", "upgrade", "--json")), (await task_run("db", "upgrade"))
    assert first.code == second.code == 0 and first.json["revision"]
    current = await task_run("db", "check", "--json")
    assert (current.code, current.json["state"]) == (0, "current")
    assert (await task_run("dlq", "list", "--json")).json["items"] == []
