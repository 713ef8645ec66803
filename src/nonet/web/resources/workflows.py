"""Workflows: ``/api/v1/workflows``, and their pages with the graph."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field

from nonet.base.errors import InvalidArgumentsError, NotFoundError
from nonet.operate import workflows
from nonet.operate.audited import Cancelled
from nonet.operate.lists import Page
from nonet.operate.workflows import (
    Drawing,
    Resumed,
    StepPage,
    StepQuery,
    WorkflowQuery,
    WorkflowView,
)
from nonet.rules.permissions import Principal
from nonet.tasks.runs import Signalled, State, WorkflowStatus
from nonet.web.bars import axis
from nonet.web.graph import HEIGHT, WIDTH, is_too_large, layer_counts, picture
from nonet.web.rendering import back, path_of, render
from nonet.web.routing import NO_REASON, Body, FormText, Reason, Text, resource
from nonet.web.site import Site, SiteOf, Viewer, may

api, pages = resource("workflows"), APIRouter(include_in_schema=False)

_MOST_LAYERS = 100

Id = Annotated[str, Path(pattern=r"^[!-~]{1,90}$", description="Id of the workflow.")]
Canceller = Annotated[Principal, may(workflows.cancel)]
Signaller = Annotated[Principal, may(workflows.signal)]
Resumer = Annotated[Principal, may(workflows.resume)]
Listed = Annotated[WorkflowQuery, Query()]
Steps = Annotated[StepQuery, Query()]


class Signal(Body):
    """An event of a workflow."""

    event: Text = Field(description="Name of the event.")
    payload: Any = Field(default=None, description="The result of the step that waits for it.")


async def _get(site: Site, who: Principal, id: str) -> WorkflowView:
    """Read one workflow as `who` may see it."""
    found = await site.read(workflows.get, site.client, id, site.shared.read)
    if found.why is None or who.sees_texts:
        return found
    explained = None
    with suppress(NotFoundError):  # it has just ended
        explained, _ = await site.explain(found.why.id, who)
    return replace(found, why=explained)


@api.get("/workflows")
async def list_workflows(site: SiteOf, who: Viewer, query: Listed) -> Page[WorkflowStatus]:
    """List the workflows that are kept, those whose state changed last first."""
    return await site.read(workflows.find, site.stores.workflows, query)


@api.get("/workflows/{id:path}/steps")
async def list_steps(id: Id, site: SiteOf, who: Viewer, query: Steps) -> StepPage:
    """List the steps of a workflow, in the order of their places."""
    return await site.read(workflows.steps, site.client, id, query, site.shared.read)


@api.get("/workflows/{id:path}")
async def get_workflow(id: Id, site: SiteOf, who: Viewer) -> WorkflowView:
    """Return how far a workflow is, and what it waits for."""
    return await _get(site, who, id)


@api.post("/workflows/{id:path}/cancel")
async def cancel_workflow(
    id: Id, site: SiteOf, who: Canceller, body: Reason = NO_REASON
) -> Cancelled:
    """Cancel all steps of a workflow that have not ended; it cannot be resumed."""
    return await site.perform(who, workflows.cancel, site.client, id, body.reason)


@api.post("/workflows/{id:path}/signal")
async def signal_workflow(id: Id, site: SiteOf, who: Signaller, body: Signal) -> Signalled:
    """Let an event come that a step waits for. A repetition with the same payload is safe."""
    return await site.perform(who, workflows.signal, site.client, id, body.event, body.payload)


@api.post("/workflows/{id:path}/resume")
async def resume_workflow(id: Id, site: SiteOf, who: Resumer) -> Resumed:
    """Run the failed steps of a workflow again, and what was cancelled because of them."""
    return await site.perform(who, workflows.resume, site.client, id)


@pages.get("/workflows", name="workflows")
async def show_workflows(request: Request, site: SiteOf, who: Viewer, query: Listed) -> Response:
    """Show workflows, those whose state changed last first."""
    found = await site.read(workflows.find, site.stores.workflows, query)
    return render(request, "workflows.html", found=found, query=query, states=get_args(State))


@pages.get("/workflows/{id:path}", name="workflow")
async def show_workflow(
    request: Request, site: SiteOf, id: str, who: Viewer, query: Steps
) -> Response:
    """Show a workflow: what it waits for, its graph, and some of its steps."""
    client = site.client
    workflow = await _get(site, who, id)
    steps = await site.read(workflows.steps, client, id, query, site.shared.read)
    now = await site.nonet.broker.logical_now()
    return render(
        request,
        "workflow.html",
        workflow=workflow,
        steps=steps,
        axis=axis([step.spans for step in steps.items], now),
        query=query,
        now=now,
        **_graph(await workflows.drawing(client, id, site.shared.read)),
    )


def _graph(found: Drawing) -> dict[str, Any]:
    """Return the picture of a workflow, or the counts of its layers if it is too large."""
    after = {place: before for place, (_, before) in found.graph.items()}
    names = {place: name for place, (name, _) in found.graph.items()}
    if not is_too_large(after):
        values = {"picture": picture(after), "names": names, "states": found.states}
        return {**values, "width": WIDTH, "height": HEIGHT}
    layers = layer_counts(after, names, found.states)
    return {"picture": None, "layers": layers[:_MOST_LAYERS], "more": len(layers) - _MOST_LAYERS}


@pages.post("/workflows/{id:path}/cancel", name="cancel_workflow")
async def cancel(
    request: Request, site: SiteOf, id: str, who: Canceller, reason: FormText = ""
) -> Response:
    """Cancel the steps of a workflow that have not ended."""
    done = await site.perform(who, workflows.cancel, site.client, id, reason)
    path = path_of(request, "workflow", id=id)
    if done.state == "cancelled":
        return back(request, path, "Cancelled it.")
    return back(request, path, "Cancelling it: workers end its running steps within seconds.")


@pages.post("/workflows/{id:path}/signal", name="signal_workflow")
async def signal(
    request: Request,
    site: SiteOf,
    id: str,
    who: Signaller,
    event: FormText,
    payload: Annotated[str, Form(max_length=64 * 1024)] = "",
) -> Response:
    """Let an event come that a step waits for."""
    try:
        value = json.loads(payload) if payload.strip() else None
    except ValueError as error:
        raise InvalidArgumentsError(
            f"event {event}", [f"the payload is not JSON: {error}"]
        ) from None
    await site.perform(who, workflows.signal, site.client, id, event, value)
    return back(request, path_of(request, "workflow", id=id), f"Event {event} has come.")


@pages.post("/workflows/{id:path}/resume", name="resume_workflow")
async def resume(request: Request, site: SiteOf, id: str, who: Resumer) -> Response:
    """Run the failed steps of a workflow again."""
    done = await site.perform(who, workflows.resume, site.client, id)
    steps = "1 step runs" if done.steps == 1 else f"{done.steps} steps run"
    return back(request, path_of(request, "workflow", id=id), f"Resumed it: {steps} again.")
