"""The pages of periodic entries: list, calendar, and to run, pause and resume them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from httpx import AsyncClient
from playwright.async_api import Page, expect
from web.conftest import ClientOf

from nonet import Nonet
from nonet.base.errors import ServerUnreachableError
from nonet.operate import schedules
from nonet.operate.schedule_views import Rule
from nonet.rules.periodic import StoredSchedule
from nonet.rules.permissions import Role
from nonet.stores.namespace.periodic import Change
from nonet.stores.sql.schedules import ScheduleRows
from nonet.tasks.schedules.description import described

ENTRY = "web_tasks:Report||default"
BEAT = "web_tasks:Beat|lhcb|default"
OWN = "web_tasks:Own||default"
BROKEN = {BEAT: "ValueError: the password is secret", "web_tasks:New||default": "TypeError: no x"}


def entry(key: str, schedule: str, **values: Any) -> Change:
    """A new entry, as the leading scheduler plans it."""
    task, vo, name = key.split("|")
    now = datetime.now(UTC)
    rule = described(schedule)
    following = rule.next_occurrence(now) if rule else now + timedelta(hours=3)
    shown = {"task": task, "vo": vo, "name": name, "schedule": schedule, "origin": "class"}
    shown |= {"enabled": True, "overlap": "", "catch_up": "one", "jitter": 0, "args": {}}
    return Change("new", key, task, now, None, ("a", "b"), following, {**shown, **values})


@pytest.fixture
async def planned(nonet: Nonet) -> Nonet:
    """An application with three planned entries and a leader."""
    told = json.dumps({"name": "7@host", "broken": BROKEN})
    term = await nonet.stores.leadership.lead("a", 300, told) or ""
    rule = "CronSchedule('30 2 * * *', 'Europe/Zurich')"
    entries = [
        entry(ENTRY, rule, args={"number": 7}),
        entry(BEAT, "IntervalSecondsSchedule(10)", args={"login": "geheim"}),
        entry(OWN, "FullMoon()"),
    ]
    await nonet.stores.periodic.plan(term, entries)
    return nonet


async def test_entries_are_listed(planned: Nonet, client: AsyncClient) -> None:
    """The list has rule, state and next occurrence in UTC and in the zone of the entry."""
    page = (await client.get("/schedules")).text
    assert "at 02:30 every day (Europe/Zurich)" in page and " 02:30:00 CE" in page
    assert "every 10 s" in page and "VO lhcb" in page and "broken" in page
    assert "7@host" in page
    assert "<code>web_tasks:New||default</code> cannot be planned: TypeError: no x" in page
    assert "Beat" not in (await client.get("/schedules?text=report")).text
    assert "Report" not in (await client.get("/schedules?vo=lhcb")).text
    assert "No periodic entry matches" in (await client.get("/schedules?state=running")).text


async def test_the_calendar_is_a_table_of_hours(planned: Nonet, address: str, page: Page) -> None:
    """Each hour is a column; a busy entry is one band; the table scrolls on a phone."""
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.goto(f"{address}/schedules")
    await page.get_by_role("link", name="Next 24 hours").press("Enter")
    table = page.locator(".calendar table")
    await table.wait_for()
    await expect(table.locator("thead th")).to_have_count(26)
    rows = [await row.inner_text() for row in await table.locator("tbody tr").all()]
    assert "every 10 s: 8" in rows[0] and "times" in rows[0]
    assert "next only" in rows[1]
    assert ":30" in rows[2]
    await expect(table.locator("tbody tr").nth(2).locator("td")).to_have_count(25)
    width = await page.evaluate("document.documentElement.scrollWidth")
    assert width == 390


async def test_an_entry_is_run_paused_and_resumed(planned: Nonet, address: str, page: Page) -> None:
    """The keyboard is enough to submit an entry's task now, and to pause and resume it."""
    await page.goto(f"{address}/schedules")
    await page.get_by_role("button", name=f"Run {ENTRY} now").press("Enter")
    await page.get_by_text("submitted task").wait_for()
    (task,) = [item async for item in planned.live()]
    assert task.name == "web_tasks:Report"
    await page.get_by_label("Reason").fill("the <b>disk</b> is full")
    await page.keyboard.press("Enter")
    await page.get_by_text("by alice: the <b>disk</b> is full").first.wait_for()
    items = {item.entry: item for item in await planned.stores.periodic.statuses()}
    assert "the <b>disk</b> is full" in items[ENTRY].paused and not items[BEAT].paused
    await page.get_by_role("button", name="Resume").press("Enter")
    await page.get_by_text("resumed").wait_for()
    assert not any(item.paused for item in await planned.stores.periodic.statuses())


async def test_all_that_match_are_paused(planned: Nonet, address: str, page: Page) -> None:
    """A filter chooses what is paused; the button says how many entries these are."""
    await page.goto(f"{address}/schedules?vo=lhcb")
    await page.get_by_role("button", name="Pause 1 …").press("Enter")
    await page.get_by_role("button", name="Pause", exact=True).press("Enter")
    await page.get_by_text("since").first.wait_for()
    paused = {item.entry for item in await planned.stores.periodic.statuses() if item.paused}
    assert paused == {BEAT}


async def test_arguments_are_revealed_to_an_admin(planned: Nonet, client_of: ClientOf) -> None:
    """Arguments are shown on request, without secrets."""
    path = "/schedules/web_tasks:Report%7C%7Cdefault"
    async with client_of(Role.ADMIN) as client:
        assert "number" not in (await client.get(path)).text
        revealed = (await client.post(path)).text
        assert "&#34;number&#34;: 7" in revealed
        hidden = (await client.post("/schedules/web_tasks:Beat%7Clhcb%7Cdefault")).text
        assert "login" in hidden and "geheim" not in hidden  # its class is not known here


async def test_a_viewer_sees_no_error(planned: Nonet, client_of: ClientOf) -> None:
    """A viewer sees that an entry is broken, but not the error of its code."""
    async with client_of(Role.VIEWER) as client:
        page = (await client.get("/schedules")).text
        page += (await client.get("/schedules/web_tasks:Beat%7Clhcb%7Cdefault")).text
        hidden = ("password", "no x", "Run now")
        assert "broken" in page and not any(text in page for text in hidden)


async def test_an_unknown_entry_is_not_found(client: AsyncClient) -> None:
    """An entry that left the configuration is not found, and nothing is paused."""
    assert (await client.get("/schedules/a:B%7C%7Cc")).status_code == 404
    answer = await client.post("/schedules/pause", data={"entry": "a:B||c"})
    assert answer.status_code == 404


async def test_the_api_shows_when_an_entry_fires(planned: Nonet, client_of: ClientOf) -> None:
    """One entry has its next occurrences, and why it does not run, without errors for a viewer."""
    url = "/api/v1/schedules"
    async with client_of(Role.VIEWER) as client:
        found = (await client.get(f"{url}/web_tasks:Report%7C%7Cdefault")).json()
        assert len(found["upcoming"]) == 10 and found["upcoming"][0] == found["next"]
        assert found["why"].startswith("fires at") and "args" not in found
        own = (await client.get(f"{url}/web_tasks:Own%7C%7Cdefault")).json()
        assert own["upcoming"] == [own["next"]]
        assert (await client.get(f"{url}/a:B%7C%7Cc")).status_code == 404
        beat = f"{url}/web_tasks:Beat%7Clhcb%7Cdefault"
        assert (await client.get(beat)).json()["why"] == "cannot be fired: ValueError"
    async with client_of(Role.OPERATOR) as client:
        assert "password is secret" in (await client.get(beat)).json()["why"]


async def test_the_api_runs_pauses_and_resumes_entries(planned: Nonet, client: AsyncClient) -> None:
    """Entries are listed page by page, and changed by their identity; one that left is skipped."""
    url = "/api/v1/schedules"
    first = (await client.get(url, params={"limit": 1})).json()
    rest = (await client.get(url, params={"cursor": first["cursor"]})).json()
    assert [item["entry"] for item in first["items"] + rest["items"]] == [BEAT, OWN, ENTRY]
    assert len(first["items"]) == 1 and "args" not in first["items"][0]
    made = (await client.post(f"{url}/run", json={"entry": ENTRY})).json()
    assert (await planned.status(made["id"])).name == "web_tasks:Report"
    some = {"entries": [BEAT, "left:Since||c", ENTRY], "reason": "to test"}
    paused = (await client.post(f"{url}/pause", json=some)).json()
    assert paused == {"changed": [BEAT, ENTRY], "gone": ["left:Since||c"]}
    one = await client.post(f"{url}/resume", json={"entries": [BEAT]})
    assert one.json() == {"changed": [BEAT], "gone": []}
    unknown = {"entries": ["web_tasks:Report||c"]}
    assert (await client.post(f"{url}/resume", json=unknown)).status_code == 404


async def test_the_api_puts_and_removes_schedules(nonet: Nonet, client_of: ClientOf) -> None:
    """Each change is audited without arguments; what is wrong with a rule is said."""
    await (await nonet.stores.outbox()).prepare()
    url, rule = (
        "/api/v1/schedules",
        {"kind": "cron", "rule": "0 8 * * *", "timezone": "Europe/Rome"},
    )
    new = {"id": "r-7", "task": "Report", "arguments": {"number": 7}, **rule}
    async with client_of(Role.OPERATOR) as client:
        assert (await client.post(url, json=new)).json() == {"id": "r-7", "change": "created"}
        assert (await client.post(url, json=new)).json()["change"] == "unchanged"
        wrong = await client.post(url, json={**new, "rule": "0 25 * * *"})
        assert wrong.status_code == 422 and "cron: " in wrong.json()["detail"]
        assert (await client.post(f"{url}/remove", json={"id": "r-7"})).status_code == 204
        assert (await client.post(f"{url}/remove", json={"id": "r-7"})).status_code == 404
    async with client_of(Role.VIEWER) as client:
        assert (await client.post(url, json=new)).status_code == 403
    said = [entry.what for entry in await (await nonet.stores.audit()).list()]
    assert "schedule r-7: Report, cron 0 8 * * *" in said and "schedule r-7: remove" in said


async def test_a_schedule_is_added_changed_and_removed_on_the_page(
    planned: Nonet, address: str, page: Page
) -> None:
    """A preview shows ten times and both offsets of the zone; a change keeps the arguments."""
    await (await planned.stores.outbox()).prepare()
    await page.goto(f"{address}/schedules")
    await page.get_by_role("link", name="Add …").press("Enter")
    await page.get_by_label("Class").fill("Report")
    await page.keyboard.press("Enter")
    texts = {"id": "r-7", "rule": "30 2 * * *", "timezone": "Europe/Zurich", "misfire_grace": "90"}
    for name, text in {**texts, "argument.number": "7"}.items():
        await page.locator(f"[name='{name}']").fill(text)
    await page.locator("[name=catch_up]").select_option("skip")
    await page.get_by_role("button", name="Preview").press("Enter")
    await expect(page.locator("main tbody tr")).to_have_count(10)
    clocks = page.get_by_text("The clocks of Europe/Zurich change at")
    await expect(clocks).to_contain_text("+01:00")
    await expect(clocks).to_contain_text("+02:00")
    assert await planned.schedules.list() == []
    await page.get_by_role("button", name="Save").press("Enter")
    await page.get_by_text("r-7 created; the leader plans it within seconds").wait_for()
    (item,) = await planned.schedules.list()
    assert (item.schedule, item.catch_up, item.misfire_grace) == (
        "CronSchedule('30 2 * * *', 'Europe/Zurich')", "skip", 90,
    )  # fmt: skip
    await plan(planned, item)
    await page.goto(f"{address}/schedules/{KEY}")
    await page.get_by_role("link", name="Change …").press("Enter")
    await page.get_by_label("Kind").select_option("every")
    await page.locator("[name=rule]").fill("15m")
    await page.locator("[name=timezone]").fill("")
    await page.get_by_role("button", name="Save").press("Enter")
    await page.get_by_text("r-7 changed").wait_for()
    (item,) = await planned.schedules.list()
    assert (item.schedule, item.catch_up) == ("IntervalSecondsSchedule(900.0)", "skip")
    assert (await planned.schedules.content("r-7"))[1].args == {"number": 7}
    await page.goto(f"{address}/schedules/{KEY}")
    await page.get_by_role("button", name="Reveal the arguments").press("Enter")
    await page.get_by_text('"number": 7').wait_for()
    await page.get_by_role("button", name="Remove …").press("Enter")
    await page.get_by_role("button", name="Remove", exact=True).press("Enter")
    await page.get_by_text("r-7 removed").wait_for()
    assert await planned.schedules.list() == []


KEY = "web_tasks:Report||r-7"


async def plan(planned: Nonet, item: StoredSchedule) -> None:
    """Plan a stored schedule, as the leading scheduler does."""
    leader = await planned.leader()
    assert leader is not None
    change = entry(f"{item.task}||{item.id}", item.schedule, origin="database")
    await planned.stores.periodic.plan(leader.term, [change])


async def test_the_form_of_a_schedule_says_what_is_wrong(
    planned: Nonet, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake has the name of its field; a loss of SQL keeps the form; a save can be repeated."""
    await (await planned.stores.outbox()).prepare()
    form, url = {"id": "r-7", "kind": "cron", "rule": "@daily"}, "/schedules/edit?task=Report"

    async def answer(**changes: str) -> tuple[int, str]:
        found = await client.post(url, data={**form, **changes})
        return found.status_code, found.text

    for name, text in {
        "rule": "0 25 * * *",
        "timezone": "Mars",
        "id": "a b",
        "misfire_grace": "-1",
        "argument.number": "<b>many</b>",
    }.items():
        status, page = await answer(**{name: text})
        wrong = "rule" if name == "timezone" else name.removeprefix("argument.")
        assert status == 422 and f"Nothing was saved: see {wrong}." in page
        assert "<b>many" not in page and (name == "rule" or "@daily" in page)
    with monkeypatch.context() as patched:
        patched.setattr(ScheduleRows, "put", lost)
        status, page = await answer()
    assert status == 503 and "SQL does not answer" in page and 'value="@daily"' in page
    assert [(await answer())[0] for _ in "ab"] == [303, 303]
    status, page = await answer(rule="@hourly")
    assert status == 409 and "there is a schedule r-7 of web_tasks:Report already" in page
    elsewhere = await client.get("/schedules/edit", params={"entry": ENTRY})
    assert elsewhere.status_code == 409 and "change its class" in elsewhere.text
    assert "change its class, or write" in (await client.get(f"/schedules/{ENTRY}")).text
    assert (await client.get("/schedules/edit?task=Gone")).status_code == 422


async def lost(*_: object) -> None:
    """Stands for a database that is lost while something is saved."""
    raise ServerUnreachableError("SQL does not answer")


async def test_a_change_of_a_schedule_keeps_no_secret(planned: Nonet, client: AsyncClient) -> None:
    """Without other arguments it keeps all; with some, secrets must be given again."""
    await (await planned.stores.outbox()).prepare()
    both, daily = ([], {"user": "me", "password": "geheim"}), Rule(kind="cron", rule="@daily")
    await schedules.put(planned.client, "s", "Login", both, daily)
    await plan(planned, (await planned.schedules.list())[0])
    path, form = "/schedules/edit?entry=web_tasks:Login||s", {"kind": "cron", "rule": "@hourly"}
    changed = await client.post(path, data={**form, "argument.user": "you"})
    assert changed.status_code == 422 and "give this secret again" in changed.text
    assert (await client.post(path, data=form)).status_code == 303
    item, content = await planned.schedules.content("s")
    assert (item.schedule, content.args) == ("CronSchedule('@hourly', 'UTC')", both[1])
