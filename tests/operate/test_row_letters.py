"""Dead letters of rows: operators make the rows due again, each letter once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cli.row_errands import Base, Volume

from nonet import ConflictError, Nonet
from nonet.base.errors import NonetError, NotFoundError, ServerUnreachableError
from nonet.pipelines.burial import letter_of
from nonet.pipelines.lease import Exhausted
from nonet.rules.letters import DeadLetter

pytestmark = pytest.mark.server


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sa.Engine:
    """A database with the row 17 of the pipeline ``volumes``, which is exhausted."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/rows.db")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        exhausted = {"id": 17, "status": "new", "due_at": None, "attempts": 3}
        connection.execute(sa.insert(Volume).values(exhausted))
    monkeypatch.setenv("ROWS_URL", str(engine.url))
    return engine


@pytest.fixture
async def nonet(redis_url: str, tmp_path: Path, rows: sa.Engine) -> AsyncIterator[Nonet]:
    """An application that knows the pipeline."""
    async with Nonet.from_settings(
        redis_url=redis_url, namespace="test", state_dir=tmp_path, tasks=("cli.row_errands",)
    ) as opened:
        yield opened


async def dead(nonet: Nonet, pipeline: str = "volumes", key: Any = 17, series: int = 1) -> int:
    """The number of a new letter."""
    letter = letter_of(pipeline, key, Exhausted(3, series), None, datetime.now(UTC))
    return await (await nonet.dead_letters()).add(letter)


async def letter(nonet: Nonet, number: int) -> DeadLetter:
    """A letter as it is now."""
    return await (await nonet.dead_letters()).get(number)


def volume(rows: sa.Engine) -> tuple[bool, int]:
    """Whether row 17 is due, and its failed attempts."""
    with rows.begin() as connection:
        query = sa.select(Volume.due_at, Volume.attempts).where(Volume.id == 17)
        due_at, attempts = connection.execute(query).one()
        return due_at is not None, attempts


async def test_a_resubmission_makes_the_row_due_with_all_its_attempts(
    nonet: Nonet, rows: sa.Engine
) -> None:
    """It becomes no task; once more needs to be asked for."""
    number = await dead(nonet)
    await nonet.resubmit(number)
    assert volume(rows) == (True, 0)
    assert (await letter(nonet, number)).status == "DISPATCHED"
    assert not (await nonet.list_tasks()).rows
    with pytest.raises(ConflictError, match=f"dlq resubmit --again {number}"):
        await nonet.resubmit(number)
    await nonet.resubmit(number, again=True)


async def test_operators_at_once_resubmit_once(nonet: Nonet, rows: sa.Engine) -> None:
    """One may take up what another began: all that succeed name the same task."""
    number = await dead(nonet)
    many = (nonet.resubmit(number) for _ in range(5))
    ended = await asyncio.gather(*many, return_exceptions=True)
    resubmitted = [one for one in ended if not isinstance(one, ConflictError)]
    assert set(resubmitted) == {"row:volumes:17:1"}
    assert volume(rows) == (True, 0)
    assert (await letter(nonet, number)).status == "DISPATCHED"


@pytest.mark.parametrize(
    ("pipeline", "key", "error", "text"),
    [
        ("disks", 17, NotFoundError, "no pipeline is named 'disks'"),
        ("volumes", 99, NotFoundError, "row 99 of pipeline volumes does not exist any more"),
    ],
)
async def test_a_letter_whose_row_cannot_be_found_stays_open(
    nonet: Nonet, pipeline: str, key: int, error: type[NonetError], text: str
) -> None:
    """The error names what is missing, and a later try is possible."""
    number = await dead(nonet, pipeline, key)
    for _ in range(2):
        with pytest.raises(error, match=text):
            await nonet.resubmit(number)
        assert (await letter(nonet, number)).status == "PENDING"


async def test_a_letter_stays_open_while_the_database_of_the_row_is_away(
    nonet: Nonet, rows: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead letters may be in a database that works."""
    number = await dead(nonet)
    monkeypatch.setenv("ROWS_URL", f"sqlite:///{tmp_path}/no/such/rows.db")
    with pytest.raises(ServerUnreachableError):
        await nonet.resubmit(number)
    found = await letter(nonet, number)
    assert (found.status, found.resubmitted_as) == ("PENDING", None)


async def test_a_row_that_is_exhausted_again_has_another_letter(nonet: Nonet) -> None:
    """Its series tells the letters apart; written twice, a letter is one."""
    first, again, second = await dead(nonet), await dead(nonet), await dead(nonet, series=2)
    assert first == again != second


async def test_a_long_key_is_kept(nonet: Nonet) -> None:
    """It does not fit into the id of the letter, by which a row is found otherwise."""
    key = "/data/" + "long/" * 60
    number = await dead(nonet, key=key)
    assert (await letter(nonet, number)).row_key == key
    [listed] = await (await nonet.dead_letters()).list()
    assert (listed.row_key or "").startswith("/data/long/")
