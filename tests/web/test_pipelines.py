"""The pages of pipelines, their part of the API, and the dead letters of rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from cli.row_errands import Base, Volume
from httpx import AsyncClient
from playwright.async_api import Page
from web.conftest import ClientOf

from nonet import Nonet
from nonet.pipelines.burial import letter_of
from nonet.pipelines.lease import Exhausted
from nonet.rules.permissions import Role
from nonet.rules.pipelines import Replica, RowFigures

API = "/api/v1/pipelines"
PROBLEM = "OperationalError: the password is secret"


@pytest.fixture
async def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sa.Engine:
    """A database with the row 17 of the pipeline ``volumes``, which is finished."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/rows.db")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(Volume).values(id=17, status="new", due_at=None))
    monkeypatch.setenv("ROWS_URL", str(engine.url))
    return engine


@pytest.fixture
async def nonet(redis_url: str, tmp_path: Path, rows: sa.Engine) -> AsyncIterator[Nonet]:
    """An application that knows the pipeline ``volumes``, with two reports of it."""
    async with Nonet.from_settings(
        redis_url=redis_url, namespace="test", state_dir=tmp_path, tasks=("cli.row_errands",)
    ) as opened:
        found = RowFigures(datetime.now(UTC), due=10_001, leased=2, stale=1, dying=1, oldest=95)
        one = Replica("7@host", workers=4, running=2, queued=1, rate=30, wait=0.5)
        await opened.stores.pipelines.report("a", {"volumes": one})
        other = Replica("8@host", workers=4, problem=PROBLEM)
        await opened.stores.pipelines.report("b", {"volumes": other})
        await opened.stores.pipelines.report_rows("volumes", found)
        yield opened


async def dead(nonet: Nonet) -> int:
    """The letter of row 17."""
    letter = letter_of("volumes", 17, Exhausted(3, 1_700_000_000_000_000), None, datetime.now(UTC))
    return await (await nonet.dead_letters()).add(letter)


def is_due(rows: sa.Engine) -> bool:
    """Whether row 17 is due."""
    with rows.begin() as connection:
        return connection.scalar(sa.select(Volume.due_at).where(Volume.id == 17)) is not None


async def test_pipelines_are_listed_and_shown(client: AsyncClient) -> None:
    """List and page name rows, speed, processes, and what keeps the rows waiting."""
    listed = (await client.get("/pipelines")).text
    assert "more than 10\u202f000" in listed and "1 row of a dead process" in listed
    page = (await client.get("/pipelines/volumes")).text
    assert "Rows wait: 1 row of a dead process is not taken over yet" in page
    assert "the oldest waits for 1 min 35 s" in page and "7@host" in page and PROBLEM in page
    assert "task-run pipelines show volumes --row KEY" in page
    assert (await client.get("/pipelines/disks")).status_code == 404
    assert (await client.get(f"{API}/disks")).status_code == 404


async def test_a_viewer_reads_types_of_errors_only(client_of: ClientOf) -> None:
    """Errors of databases may quote secrets; a viewer, which may not pause, finds no button."""
    async with client_of(Role.VIEWER) as client:
        page = (await client.get("/pipelines/volumes")).text
        assert "OperationalError" in page and "secret" not in page and "Pause" not in page
        assert "secret" not in (await client.get(f"{API}/volumes")).text


async def test_a_pipeline_is_paused_with_the_keyboard(
    nonet: Nonet, address: str, page: Page
) -> None:
    """From the finding of the overview to the pause, and back; an unknown one cannot be paused."""
    await nonet.stores.controls.pause(["pipeline:volumes"], "ann", "the cloud is down")
    await page.goto(address)
    await page.get_by_role("link", name="Show volumes").first.press("Enter")
    await page.get_by_text("the cloud is down. No process fetches its rows.").wait_for()
    await page.get_by_role("button", name="Resume").press("Enter")
    await page.get_by_text("pipeline volumes is resumed").wait_for()
    await page.get_by_role("button", name="Pause …").press("Enter")
    await page.get_by_label("Reason").fill("again")
    await page.get_by_role("button", name="Pause", exact=True).press("Enter")
    await page.get_by_text("pipeline volumes is paused: no further row of it").wait_for()
    [pause] = await nonet.stores.controls.load()
    assert (pause.what, pause.who, pause.reason) == ("pipeline:volumes", "alice", "again")


async def test_the_api_pauses_pipelines(client: AsyncClient) -> None:
    """Pauses of pipelines are among those of streams and classes."""
    body = {"pipelines": ["volumes"], "reason": "r"}
    [made] = (await client.post("/api/v1/pauses", json=body)).json()["items"]
    assert (made["what"], made["reason"]) == ("pipeline:volumes", "r")
    left = await client.post("/api/v1/pauses/resume", json={"pipelines": ["volumes"]})
    assert left.json()["items"] == []
    assert (await client.post("/api/v1/pauses", json={"pipelines": ["a b"]})).status_code == 422
    form = {"what": "pipeline:disks"}
    assert (await client.post("/pauses/pause", data=form)).status_code == 404


async def test_the_letter_of_a_row_names_the_row(
    nonet: Nonet, client: AsyncClient, rows: sa.Engine
) -> None:
    """No page links to a task that never existed; the button makes the row due again."""
    number = await dead(nonet)
    for path in (f"/dead-letters/{number}", "/dead-letters?view=letters&task=pipeline:volumes"):
        page = (await client.get(path)).text
        assert '<a href="/pipelines/volumes">volumes</a> row 17' in page
        assert "/tasks/row:" not in page
    found = (await client.get(f"/api/v1/dead-letters/{number}")).json()
    assert (found["pipeline"], found["row_key"]) == ("volumes", "17")
    path = f"/dead-letters/{number}"
    assert "Make its row due again" in (await client.get(path)).text
    answer = await client.post(f"{path}/resubmit", follow_redirects=True)
    assert "Row 17 of pipeline volumes is due again." in answer.text
    assert is_due(rows)
    assert "Make its row due once more" in answer.text and "which died as" not in answer.text
