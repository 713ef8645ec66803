"""The pages of workflows, their part of the API, and links between a step and its workflow."""

from __future__ import annotations

import re

import pytest
from httpx import AsyncClient
from playwright.async_api import Page, expect
from waits import WAIT_SECONDS
from web.accessible import faults
from web.conftest import ClientOf, in_state, working
from web_tasks import Failing, Mail, Report

from nonet import Nonet, Workflow, WorkflowRun, chain, ended, failed
from nonet.rules.permissions import Role
from nonet.web.graph import MOST_STEPS

API = "/api/v1/workflows"


async def submitted(id: str = "nightly") -> WorkflowRun:
    """Three steps; the second one fails, and with it the third one."""
    workflow = Workflow("nightly import")
    first = workflow.step(Report(1))
    second = workflow.step(Failing("the password is secret"), after=first)
    workflow.step(Report(2), after=[second, ended(first)])
    return await workflow.submit(id=id)


async def failed_one(nonet: Nonet) -> WorkflowRun:
    """The same, when it has failed."""
    made = await submitted()
    async with working(nonet, Report.size):
        assert (await made.wait(timeout=WAIT_SECONDS)).state == "failed"
    return made


async def test_workflows_are_listed(client: AsyncClient) -> None:
    """A row has the title, the state and the ended steps; a state selects."""
    await submitted()
    await chain(Report(1), Report(2), title="later").submit(id="later")
    text = (await client.get("/workflows")).text
    assert re.findall(r'href="/workflows/(\w+)"', text) == ["later", "nightly"]
    assert "nightly import" in text and "0 of 3" in text
    assert "No workflow is failed." in (await client.get("/workflows?state=failed")).text
    assert (await client.get("/workflows?state=odd")).status_code == 422


def places(page: str) -> list[str]:
    """The places of the steps in the table of a page."""
    return re.findall(r'<th scope="row" class="nowrap"><a [^>]*>([\d.]+)</a>', page)


async def test_a_list_has_pages(client: AsyncClient) -> None:
    """Each workflow is on one of them."""
    for number in range(101):
        await chain(Report(number)).submit(id=f"w{number}")
    first = (await client.get("/workflows")).text
    (link,) = re.findall(r'rel="next" href="([^"]+)"', first)
    second = (await client.get(f"/workflows{link.replace('&amp;', '&')}")).text
    found = re.findall(r'href="/workflows/(w\d+)"', first + second)
    assert found == [f"w{number}" for number in reversed(range(101))]


async def test_a_workflow_that_waits(client: AsyncClient) -> None:
    """The page says what it waits for, and draws its steps with their edges."""
    await submitted()
    text = (await client.get("/workflows/nightly")).text
    assert "is queued: no medium worker is live" in text and "task-worker --size medium" in text
    assert re.findall(r'<a class="step (\w+)" [^>]*><title>(\d):', text) == [
        ("queued", "0"),
        ("blocked", "1"),
        ("blocked", "2"),
    ]
    assert re.findall(r'<g class="edge (\w+)"', text) == ["success", "success", "always"]
    assert "1, ended(0)" in text  # in the table
    assert (await client.get("/workflows/other")).status_code == 404


async def test_only_the_steps_in_a_state(client: AsyncClient) -> None:
    """The numbers on the page are links to them."""
    await submitted()
    text = (await client.get("/workflows/nightly")).text
    assert 'href="/workflows/nightly?state=blocked#steps">2 blocked' in text
    text = (await client.get("/workflows/nightly?state=blocked")).text
    assert places(text) == ["1", "2"]


async def test_a_large_one_is_counted_by_layers(client: AsyncClient) -> None:
    """There is no picture, but how many steps of each class each layer has; steps have pages."""
    workflow = Workflow()
    first = workflow.step(Mail())
    for number in range(MOST_STEPS):
        workflow.step(Report(number), after=first)
    await workflow.submit(id="large")
    text = (await client.get("/workflows/large")).text
    assert "too large for a picture" in text and 'class="graph"' not in text
    assert "Report</a>\n 200" in text and "200 blocked" in text
    assert len(places(text)) == 100
    (link,) = re.findall(r'rel="next" href="([^"]+)#steps"', text)
    text = (await client.get(f"/workflows/large{link.replace('&amp;', '&')}")).text
    assert places(text)[0] == "100"


async def test_a_step_and_its_workflow_are_linked(nonet: Nonet, client: AsyncClient) -> None:
    """Both ways, before and after the end of the step."""
    made = await failed_one(nonet)
    await submitted("other")
    link = '<a class="mono" href="/workflows/{}">'
    assert link.format("other") in (await client.get("/tasks/other:2")).text
    assert link.format("nightly") in (await client.get("/tasks/nightly:0")).text
    assert 'href="/tasks/nightly:1"' in (await client.get(f"/workflows/{made}")).text
    text = (await client.get("/tasks/other:2")).text
    assert "it comes after other:1 (web_tasks:Failing, waiting)" in text
    assert "2200" not in text and "Next check or start" not in text


async def test_the_id_of_a_workflow_leads_to_its_page(client: AsyncClient) -> None:
    """The page of a task and the search field lead to the page of the workflow."""
    made = await submitted()
    for path in (f"/tasks/{made}", f"/find?id={made}"):
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/workflows/{made}")
    await made.cancel()
    assert (await client.get(f"/tasks/{made}")).headers["location"] == f"/workflows/{made}"


async def test_resume_and_cancel_with_the_keyboard(nonet: Nonet, address: str, page: Page) -> None:
    """From the finding of the overview to the resume, and then to the end by a cancellation."""
    await failed_one(nonet)
    await page.goto(address)
    await page.get_by_role("link", name="Show nightly").press("Enter")
    await page.get_by_text("failed first: ValueError: the password is secret").wait_for()
    await page.get_by_role("button", name="Resume…").press("Enter")
    await page.get_by_role("button", name="Resume it").press("Enter")
    await page.get_by_text("Resumed it: 2 steps run again.").wait_for()
    assert (await nonet.workflow("nightly").status()).state == "running"
    await page.get_by_role("button", name="Cancel…").press("Enter")
    await page.get_by_label("Reason").fill("wrong input")
    await page.get_by_role("button", name="Cancel it").press("Enter")
    await page.get_by_text("Cancelled it.").wait_for()
    await expect(page.locator("#fields")).to_contain_text("by alice: wrong input")
    kinds = [event.kind for event in await nonet.stores.events.last(10)]
    assert kinds == ["workflow-resumed", "workflow-cancelled"]


async def test_an_event_comes_by_the_page_and_by_the_api(
    nonet: Nonet, client: AsyncClient, address: str, page: Page
) -> None:
    """Both are audited; the other's payload is refused, with who was first."""
    workflow = Workflow()
    workflow.step(Report(1), after=workflow.event("approved"))
    await workflow.submit(id="refund")
    assert (await client.get(f"{API}/refund")).json()["awaits"] == ["approved"]
    await page.goto(f"{address}/workflows/refund")
    await page.get_by_role("button", name="Event approved…").press("Enter")
    await page.get_by_label("Payload").fill('{"by": "ann"}')
    await page.get_by_role("button", name="Let it come").press("Enter")
    await page.get_by_text("Event approved has come.").wait_for()
    assert await nonet.step_result("refund", "0") == {"by": "ann"}
    body = {"event": "approved", "payload": {"by": "ann"}}
    again = await client.post(f"{API}/refund/signal", json=body)
    assert (again.status_code, again.json()["step"]) == (200, "refund:0")
    refused = await client.post(f"{API}/refund/signal", json={"event": "approved"})
    assert (refused.status_code, "alice" in refused.json()["detail"]) == (409, True)


async def test_the_picture_is_drawn_and_follows(nonet: Nonet, address: str, page: Page) -> None:
    """A browser draws it under the policy for content, updates it, and excludes no one."""
    await submitted()
    await page.goto(f"{address}/workflows/nightly")
    box = page.locator("svg .step rect").first
    assert await box.evaluate("box => getComputedStyle(box).fill") != "rgb(0, 0, 0)"
    assert (await box.bounding_box() or {})["width"] > 100
    assert await faults(page) == []
    async with working(nonet, Report.size):
        await in_state(nonet, "nightly:1", "dead")
        await page.locator("svg .step.dead").wait_for()
    await expect(page.locator("svg .edge")).to_have_count(3)


async def test_a_viewer_reads_types_of_errors_only(nonet: Nonet, client_of: ClientOf) -> None:
    """Errors may quote secrets; a viewer, which may not change a workflow, finds no button."""
    await failed_one(nonet)
    async with client_of(Role.VIEWER) as client:
        text = (await client.get("/workflows/nightly")).text
        assert "ValueError" in text and "secret" not in text and "Resume" not in text
        for path in (f"{API}/nightly", f"{API}/nightly/steps", "/api/v1/overview"):
            assert "secret" not in (await client.get(path)).text


async def test_the_api_shows_workflows(client: AsyncClient) -> None:
    """A list with pages, one workflow with its counts and cause, and its steps with pages."""
    await submitted()
    await chain(Report(1), Report(2)).submit(id="later")
    page = (await client.get(API, params={"limit": 1})).json()
    assert [item["id"] for item in page["items"]] == ["later"]
    rest = (await client.get(API, params={"cursor": page["cursor"]})).json()
    assert ([item["id"] for item in rest["items"]], rest["cursor"]) == (["nightly"], None)
    assert (await client.get(API, params={"state": "done"})).json()["items"] == []
    found = (await client.get(f"{API}/nightly")).json()
    assert (found["title"], found["total"], found["left"]) == ("nightly import", 3, 3)
    assert found["counts"] == {"queued": 1, "blocked": 2}
    assert (found["why"]["id"], found["why"]["cause"]) == ("nightly:0", "worker")
    steps = (await client.get(f"{API}/nightly/steps", params={"limit": 2})).json()
    assert [(item["place"], item["after"]) for item in steps["items"]] == [("0", []), ("1", ["s0"])]
    rest = (await client.get(f"{API}/nightly/steps", params={"cursor": steps["cursor"]})).json()
    assert [item["task"]["blocker"] for item in rest["items"]] == ["after 1, ended(0)"]
    assert (await client.get(f"{API}/other")).status_code == 404
    assert (await client.get(f"{API}/other/steps")).status_code == 404
    assert (await client.get(f"{API}/nightly/steps?cursor=odd")).status_code == 422


async def test_a_step_waits_from_when_those_before_it_ended(
    nonet: Nonet, client: AsyncClient
) -> None:
    """Steps have spans, also on a page without the steps before them; the page draws them."""
    await failed_one(nonet)
    first, second = [
        (await client.get(f"{API}/nightly/steps?limit=1&state={state}")).json()["items"][0]["spans"]
        for state in ("done", "dead")
    ]
    assert [one["what"] for one in first] == [one["what"] for one in second] == ["waited", "ran"]
    assert second[0]["begin"] == first[1]["end"]
    assert second[1]["error"] == "ValueError: the password is secret"
    text = (await client.get("/workflows/nightly")).text
    assert text.count('class="ran"') == 1 and text.count('class="ran failed"') == 1


async def test_the_api_resumes_and_cancels(nonet: Nonet, client: AsyncClient) -> None:
    """A failed one is resumed once, and a live one is cancelled once."""
    await failed_one(nonet)
    failure = (await client.get(f"{API}/nightly")).json()["failure"]
    assert failure["error"] == "ValueError: the password is secret"
    resumed = await client.post(f"{API}/nightly/resume")
    assert resumed.json() == {"id": "nightly", "steps": 2}
    assert (await client.post(f"{API}/nightly/resume")).status_code == 409
    cancelled = await client.post(f"{API}/nightly/cancel", json={"reason": "wrong input"})
    assert cancelled.json() == {"id": "nightly", "state": "cancelled"}
    assert (await client.post(f"{API}/nightly/cancel")).status_code == 409
    assert (await client.get(f"{API}/nightly")).json()["reason"] == "by alice: wrong input"
    assert (await client.post(f"{API}/other/cancel")).status_code == 404


@pytest.mark.parametrize("id", ["a/b", "50%", "ü"])
async def test_any_printable_ascii_is_an_id(client: AsyncClient, id: str) -> None:
    """Printable ASCII is an id, also where it means something in an address."""
    if not id.isascii():
        assert (await client.get(f"{API}/{id}")).status_code == 422
        return
    workflow = Workflow()
    step = workflow.step(Report(1))
    workflow.step(Report(2), after=failed(step))
    await workflow.submit(id=id)
    (link,) = re.findall(
        r'class="mono" href="(/workflows/[^"]+)"', (await client.get("/workflows")).text
    )
    assert "<h1>Workflow</h1>" in (await client.get(link)).text
    assert (await client.post(f"{API}/{link.rpartition('/')[2]}/cancel")).status_code == 200
