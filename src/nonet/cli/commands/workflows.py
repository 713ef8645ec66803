"""``task-run workflows``: tasks that run in an order; their steps, what they wait for, resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from nonet.base.errors import ConfigurationError
from nonet.cli.completion import workflow_ids
from nonet.cli.options import Json
from nonet.cli.output import echo, print_answer, print_fields, print_json, print_rows
from nonet.cli.pages import page_at, with_page
from nonet.cli.process import is_at_terminal, print_error, run
from nonet.cli.target import Target, flat, operation
from nonet.daemon.service import ExitCode
from nonet.rules.findings import remedies
from nonet.rules.findings.peers import counted
from nonet.rules.findings.refusal import span
from nonet.rules.workflows import after_in_words, counts_in_words
from nonet.tasks.runs import State, StepState

if TYPE_CHECKING:
    from datetime import datetime

    from nonet.operate.workflows import WorkflowReport
    from nonet.stores.queue.workflow_steps import WorkflowStep
    from nonet.tasks.runs import WorkflowStatus

app = typer.Typer(rich_markup_mode=None)

Id = Annotated[
    str, typer.Argument(metavar="ID", help="Id of a workflow.", autocompletion=workflow_ids)
]


@app.callback(invoke_without_command=True)
@flat
def workflows(
    context: typer.Context,
    target: Target,
    state: Annotated[
        State | None, typer.Option(help="Only workflows in this state.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 100,
    as_json: Json = False,
) -> None:
    """List workflows, or show, cancel or resume one.

    Those whose state changed last come first. States: building (its steps are being submitted),
    running, resuming, done, failed (a step failed, and no other step took the failure over),
    cancelled. A failed workflow is kept for NONET_WORKFLOW_TTL, others for NONET_RESULT_TTL.

    Column 'steps': how many steps have ended, of how many. Column 'age': time since it was
    submitted.

    \b
    task-run workflows --state failed
    """
    if context.invoked_subcommand is None:
        run(target.debug, lambda: _list(target, state, limit, as_json))


async def _list(target: Target, state: str | None, limit: int, as_json: bool) -> None:
    async with target.stores() as stores:
        found = await stores.workflows.page([state] if state else (), limit=limit)
        now = await stores.broker.logical_now()
    if as_json:
        print_json(found.rows)
    else:
        rows = [_row(item, now) for item in found.rows]
        print_rows(rows, False, f"no workflow{f' is {state}' if state else ''}", least=("title",))
    if found.cursor:
        echo(f"there are more than {limit}: raise --limit", err=True)


@app.command()
@operation
async def show(
    target: Target,
    id: Id,
    state: Annotated[
        StepState | None,
        typer.Option(help="Only steps in this state; blocked: they wait for other steps."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many steps.")] = 50,
    offset: Annotated[int, typer.Option(min=0, help="Leave out this many of them first.")] = 0,
    as_json: Json = False,
) -> None:
    """Show one workflow: what it waits for, what failed, and its steps in their order.

    Column 'after' names the steps before a step as its author did: 0 must be done, failed(0) must
    have failed, ended(0) may have ended in any way. The id of a step is that of the workflow, a
    colon and its place: 'task-run explain ID:3' tells about one step.

    Exit codes: 0 shown, 4 unknown id.

    \b
    task-run workflows show nightly-2026-11-25
    task-run workflows show nightly-2026-11-25 --state dead
    """
    from nonet.operate.workflows import workflow_report  # it imports redis

    async with target.observer() as nonet:
        found = await workflow_report(id, nonet.client, offset=offset, limit=limit, state=state)
        now = await nonet.broker.logical_now()
    page = page_at(f"/workflows/{quote(id, safe='')}")
    if as_json:
        print_json(with_page(_document(found), page))
        return
    print_fields(_fields(found, now))
    if found.next:
        echo(f"next: {found.next}")
    if page:
        echo(f"page: {page}")
    echo("")
    nothing = f"no step is {state}" if state else "no step at this offset"
    print_rows([_step_row(item) for item in found.steps], False, nothing, least=("attempt",))
    end = offset + len(found.steps)
    if found.matched > len(found.steps):
        more = f": --offset {end} shows more" if end < found.matched else ""
        echo(f"{len(found.steps):,} of {counted(found.matched, 'step')}{more}", err=True)


@app.command()
@operation
async def cancel(
    target: Target,
    id: Id,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Cancel without asking. Required if stdin is not a terminal."),
    ] = False,
    reason: Annotated[str, typer.Option(help="Reason, shown to operators.")] = "",
    wait: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait this many seconds for running steps to end."
        ),
    ] = 15.0,
    as_json: Json = False,
) -> int:
    """Cancel a workflow: its running steps are stopped, and no other step starts.

    A cancelled workflow cannot be resumed. Steps after ended(…) do not run either. The command
    'task-run events' shows who cancelled.

    Exit codes: 0 cancelled, 1 it had ended, or running steps have not ended within --wait, 2 stdin
    is not a terminal and --yes is missing, 4 unknown id.

    \b
    task-run workflows cancel nightly-2026-11-25 --yes --reason "wrong input"
    """
    _ensure_asked(yes, "a cancelled workflow cannot be resumed", "cancel")
    async with target.observer() as nonet:
        if not yes and not typer.confirm(f"cancel all steps of {id}?", err=True):
            print_error("nothing was cancelled")
            return ExitCode.FAILED
        state = await nonet.client.cancel_workflow(id, reason)
        if state != "cancelled":
            try:
                state = (await nonet.client.workflow_ended(id, wait)).state
            except TimeoutError:
                show = remedies.of_workflow("show", id)
                print_error(f"running steps of {id} have not ended: {show}")
    if as_json:
        print_json({"id": id, "state": state})
    elif state == "cancelled":
        echo(f"{id} cancelled")
    return ExitCode.OK if state == "cancelled" else ExitCode.FAILED


@app.command()
@operation
async def resume(
    target: Target,
    id: Id,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Resume without asking. Required if stdin is not a terminal."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Run the failed steps of a workflow again, and those that were cancelled because of them.

    Steps that are done do not run again. The dead letters of the failed steps are withdrawn. The
    command 'task-run events' shows who resumed.

    Exit codes: 0 resumed, 1 it has not failed, or a dead letter of it was submitted again, 2 stdin
    is not a terminal and --yes is missing, 4 unknown id.

    \b
    task-run workflows resume nightly-2026-11-25 --yes
    """
    _ensure_asked(yes, "steps of the workflow run again", "resume")
    async with target.observer() as nonet:
        if not yes and not typer.confirm(f"run the failed steps of {id} again?", err=True):
            print_error("nothing was resumed")
            return ExitCode.FAILED
        number = await nonet.client.resume_workflow(id)
    text = f"{id} resumed: {counted(number, 'step')} run{'s' * (number == 1)} again"
    print_answer({"id": id, "steps": number}, text, as_json)
    return ExitCode.OK


def _ensure_asked(yes: bool, why: str, verb: str) -> None:
    """Refuse what cannot be undone if the command can neither ask nor was told not to."""
    if not yes and not is_at_terminal():
        raise ConfigurationError(
            f"{why}, and stdin is not a terminal, so nothing was done. Add --yes to {verb} it"
        )


def _row(item: WorkflowStatus, now: datetime) -> Mapping[str, Any]:
    return {
        "id": item.id,
        "state": item.state,
        "steps": f"{item.total - item.left:,} of {item.total:,}",
        "age": span((now - item.opened).total_seconds()),
        "title": item.title,
    }


def _fields(found: WorkflowReport, now: datetime) -> Mapping[str, Any]:
    status, why, failure = found.status, found.why, found.failure
    ran = ((status.ended or now) - status.opened).total_seconds()
    return {
        "id": status.id,
        "title": status.title,
        "state": status.state,
        "steps": counts_in_words(found.counts),
        "opened": status.opened,
        "ended": status.ended,
        "took" if status.ended else "age": span(ran),
        "resumed": f"{counted(status.runs, 'time')}" if status.runs else None,
        "submitted by": status.parent,
        "cancelled": status.reason,
        "waits for": f"step {why.id} is {why.text}" if why else None,
        "failed at": f"{failure.task.id} ({failure.task.name}): {failure.task.error}"
        if failure
        else None,
    }


def _step_row(item: WorkflowStep) -> Mapping[str, Any]:
    task = item.task
    note = "" if item.is_blocked else task.blocker  # column 'after' says it
    return {
        "step": item.place,
        "task": task.name,
        "state": item.state,
        "attempt": task.attempt,
        "after": after_in_words(item.after),
        "note": (note or str(task.progress or "") or task.error).partition("\n")[0],
    }


def _document(found: WorkflowReport) -> dict[str, Any]:
    return {
        **{name: getattr(found.status, name) for name in found.status.__slots__},
        "counts": found.counts,
        "why": found.why,
        "next": found.next,
        "steps": [
            {"place": item.place, "after": item.after, "task": item.task} for item in found.steps
        ],
        "matched": found.matched,
    }
