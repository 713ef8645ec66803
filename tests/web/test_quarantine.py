"""The quarantine, as pages and in the API."""

from __future__ import annotations

from httpx import AsyncClient
from playwright.async_api import Page, expect
from web.accessible import faults
from web.conftest import ClientOf
from web_tasks import Report

from nonet import Nonet
from nonet.rules.permissions import Role

API = "/api/v1/quarantine"
HOSTILE = b"\x93<script>alert(1)</script>\x00\xff"


async def quarantine(
    nonet: Nonet, data: bytes, task: str = "", reason: str = "the message is not signed"
) -> str:
    """Write an entry, and return its id."""
    about = {"at": "1", "reason": reason, "task": task, "stream": "", "entry": ""}
    fields = {**about, "bytes": data, "size": str(len(data))}
    entry = await nonet.broker.client.xadd("{test}:quarantine", fields)
    return str(entry.decode())


async def test_an_envelope_is_retried_and_garbage_is_discarded(
    nonet: Nonet, client: AsyncClient
) -> None:
    """The list says what each claims to be; the event has the note."""
    sent = nonet.client.envelopes.prepare(Report(7))
    good, bad = await quarantine(nonet, sent.envelope, sent.id), await quarantine(nonet, HOSTILE)
    first = (await client.get(API, params={"limit": 1})).json()
    rest = (await client.get(API, params={"cursor": first["cursor"]})).json()
    found = [*first["items"], *rest["items"]]
    assert [item["entry"] for item in found] == [bad, good] and rest["cursor"] is None
    assert found[0]["claims"] is None and found[1]["claims"]["name"] == "web_tasks:Report"
    assert (await client.post(f"{API}/{bad}/retry")).status_code == 409
    assert (await client.post(f"{API}/{good}/retry")).json()["id"] == f"q-{good}"
    answer = await client.post(f"{API}/{bad}/discard", json={"why": "a foreign program"})
    assert answer.status_code == 204
    assert (await client.get(API)).json()["items"] == []
    (event,) = await nonet.stores.events.last(1, kind="quarantine-discard")
    assert (event.who, event.text) == ("alice", f"entry {bad}: a foreign program")


async def test_a_viewer_sees_no_content(nonet: Nonet, client_of: ClientOf) -> None:
    """Reasons may quote a message, so they are hidden, too."""
    entry = await quarantine(nonet, HOSTILE, reason="field hunter2 is unknown")
    async with client_of(Role.VIEWER) as viewer:
        for path in (API, f"{API}/{entry}", "/quarantine", f"/quarantine/{entry}"):
            answer = await viewer.get(path)
            assert answer.status_code == 200 and "hunter2" not in answer.text


async def test_the_page_shows_bytes_and_discards(nonet: Nonet, address: str, page: Page) -> None:
    """With the keyboard; the bytes are inert."""
    await quarantine(nonet, HOSTILE)
    await page.goto(address)
    await page.keyboard.type("gq")
    await page.locator("tbody th a").focus()
    await page.keyboard.press("Enter")
    for name in ("Show the message…", "Show it"):
        await page.get_by_role("button", name=name, exact=True).focus()
        await page.keyboard.press("Enter")
    await expect(page.locator("#revealed pre")).to_contain_text("<script>aler")
    assert await page.locator("main script").count() == 0
    assert await faults(page) == []
    await page.get_by_role("button", name="Discard…", exact=True).focus()
    await page.keyboard.press("Enter")
    await page.get_by_label("Why").fill("garbage")
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_contain_text("The quarantine is empty")
