"""Workflows: the list, and one workflow with its graph and its steps."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from nonet.operate.workflows import WorkflowReport
from nonet.rules.permissions import Action
from nonet.rules.workflows import after_in_words
from nonet.tasks.runs import State
from nonet.web import shown
from nonet.web.graph import HEIGHT, WIDTH, is_too_large, layer_counts, picture
from nonet.web.pages.fields import Cursor, Offset, Reason
from nonet.web.pages.rendering import back, path_of, render
from nonet.web.site import Canceller, Resubmitter, SiteOf, Viewer

router = APIRouter(include_in_schema=False)

_LIMIT = 50
_STEPS = 50
_MOST_LAYERS = 100

STATES = ("", *get_args(State))


@router.get("/workflows", name="workflows")
async def page(
    request: Request,
    site: SiteOf,
    who: Viewer,
    state: State | Literal[""] = "",
    cursor: Cursor = "",
) -> Response:
    """Show workflows, those whose state changed last first."""
    found = await shown.workflows(site, [state] if state else [], _LIMIT, cursor)
    return render(
        request,
        "workflows.html",
        found=found,
        state=state,
        states=STATES,
        is_first=not cursor,
        now=await site.nonet.broker.logical_now(),
    )


@router.get("/workflows/{id:path}", name="workflow")
async def workflow(
    request: Request,
    site: SiteOf,
    id: str,
    who: Viewer,
    state: Annotated[str, Query(max_length=20)] = "",
    offset: Offset = 0,
) -> Response:
    """Show a workflow: what it waits for, its graph, and some of its steps."""
    found = await shown.workflow(site, who, id, state=state or None, offset=offset, limit=_STEPS)
    return render(
        request,
        "workflow.html",
        found=found,
        workflow=found.status,
        state=state,
        step=_STEPS,
        after=after_in_words,
        now=await site.nonet.broker.logical_now(),
        **_graph(found),
    )


def _graph(found: WorkflowReport) -> dict[str, Any]:
    """Return the picture of a workflow, or the counts of its layers if it is too large."""
    after = {place: before for place, (_, before) in found.graph.items()}
    names = {place: name for place, (name, _) in found.graph.items()}
    if not is_too_large(after):
        return {"picture": picture(after), "names": names, "width": WIDTH, "height": HEIGHT}
    layers = layer_counts(after, names, found.states)
    return {"picture": None, "layers": layers[:_MOST_LAYERS], "more": len(layers) - _MOST_LAYERS}


@router.post("/workflows/{id:path}/cancel", name="cancel_workflow")
async def cancel(
    request: Request, site: SiteOf, id: str, who: Canceller, reason: Reason = ""
) -> Response:
    """Cancel the steps of a workflow that have not ended."""
    async with site.changing(who, Action.CANCEL, f"workflow {id}: {reason}".removesuffix(": ")):
        state = await site.nonet.client.cancel_workflow(id, reason)
    path = path_of(request, "workflow", id=id)
    if state == "cancelled":
        return back(request, path, "Cancelled it.")
    return back(request, path, "Cancelling it: workers end its running steps within seconds.")


@router.post("/workflows/{id:path}/resume", name="resume_workflow")
async def resume(request: Request, site: SiteOf, id: str, who: Resubmitter) -> Response:
    """Run the failed steps of a workflow again."""
    async with site.changing(who, Action.RESUBMIT, f"workflow {id}: resume"):
        number = await site.nonet.client.resume_workflow(id)
    steps = "1 step runs" if number == 1 else f"{number} steps run"
    return back(request, path_of(request, "workflow", id=id), f"Resumed it: {steps} again.")
