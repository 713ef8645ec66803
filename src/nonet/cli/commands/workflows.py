"""``task-run workflows``: tasks that run in an order; their steps, what they wait for, resume."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated
from urllib.parse import quote

import typer

from nonet.base.errors import ConfigurationError
from nonet.base.plain import counted
from nonet.cli.completion import workflow_ids
from nonet.cli.options import Json
from nonet.cli.output import echo, print_answer, print_json, print_view
from nonet.cli.pages import page_at
from nonet.cli.process import is_at_terminal, print_error, run
from nonet.cli.target import Target, flat, operation
from nonet.daemon.service import ExitCode
from nonet.operate import workflows
from nonet.operate.workflows import StepPage, StepQuery, WorkflowQuery
from nonet.rules.findings import remedies

app = typer.Typer(rich_markup_mode=None)

_FIELDS = (
    "id title state steps=steps_in_words opened ended resumed=runs submitted_by=parent "
    "cancelled=reason waits_for failed_at"
)
_STEP = "step=place task=task.name state attempt=task.attempt after=order note"

Id = Annotated[
    str, typer.Argument(metavar="ID", help="Id of a workflow.", autocompletion=workflow_ids)
]


@app.callback(invoke_without_command=True)
@flat
def workflows_(
    context: typer.Context, target: Target, query: WorkflowQuery, as_json: Json = False
) -> None:
    """List workflows, or show, cancel or resume one.

    Those whose state changed last come first. States: building (its steps are being submitted),
    running, resuming, done, failed (a step failed, and no other step handles the failure),
    cancelled. A failed workflow is kept for NONET_WORKFLOW_TTL, others for NONET_RESULT_TTL.

    Column 'steps': ended steps / all steps.

    \b
    task-run workflows --state failed
    """
    if context.invoked_subcommand is None:
        run(target.debug, lambda: _list(target, query, as_json))


async def _list(target: Target, query: WorkflowQuery, as_json: bool) -> None:
    async with target.stores() as stores:
        found = await workflows.find(stores.workflows, query)
    nothing = f"no workflow{f' is {query.state}' if query.state else ''}"
    print_view(found, as_json, "id state steps=progress opened title", nothing, least=("title",))


@app.command()
@operation
async def show(target: Target, id: Id, as_json: Json = False) -> None:
    """Show one workflow: what it waits for, what failed, and its first steps.

    Column 'after' lists the steps it depends on: 0 must be done, failed(0) must have failed,
    ended(0) may end in any state. The id of a step is the id of the workflow, a colon and the
    number of the step: 'task-run explain ID:3' explains one step.

    Exit codes: 0 shown, 4 unknown id.

    \b
    task-run workflows show nightly-2026-11-25
    """
    async with target.observer() as nonet:
        found = await workflows.get(nonet.client, id)
        some = await workflows.steps(nonet.client, id, StepQuery(limit=50))
    print_view(found, as_json, _FIELDS)
    if as_json:
        return
    if found.next:
        echo(f"next: {found.next}")
    if page := page_at(f"/workflows/{quote(id, safe='')}"):
        echo(f"page: {page}")
    echo("")
    _print_steps(some)
    if some.cursor:
        more = remedies.of_workflow("steps", id)
        echo(
            f"{len(some.items):,} of {counted(some.matched, 'step')}: '{more}' shows all", err=True
        )


@app.command()
@operation
async def steps(target: Target, id: Id, query: StepQuery, as_json: Json = False) -> None:
    """List the steps of a workflow in their order; for the columns see 'show'.

    Exit codes: 0 shown, 4 unknown id.

    \b
    task-run workflows steps nightly-2026-11-25 --state dead
    """
    async with target.observer() as nonet:
        found = await workflows.steps(nonet.client, id, query)
    _print_steps(found, as_json, f"no step is {query.state}" if query.state else "no step")


def _print_steps(found: StepPage, as_json: bool = False, nothing: str = "") -> None:
    print_view(found, as_json, _STEP, nothing, least=("attempt",))


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

    Exit codes: 0 cancelled, 1 it had ended, running steps have not ended within --wait, or you
    answered no, 2 stdin is not a terminal and --yes is missing, 4 unknown id.

    \b
    task-run workflows cancel nightly-2026-11-25 --yes --reason "wrong input"
    """
    _ensure_asked(yes, "a cancelled workflow cannot be resumed", "cancel")
    async with target.observer() as nonet:
        if not yes and not typer.confirm(f"cancel all steps of {id}?", err=True):
            print_error("nothing was cancelled")
            return ExitCode.FAILED
        done = await workflows.cancel(nonet.client, id, reason)
        if done.state != "cancelled":
            try:
                done = replace(done, state=(await nonet.client.workflow_ended(id, wait)).state)
            except TimeoutError:
                show = remedies.of_workflow("show", id)
                print_error(f"running steps of {id} have not ended: {show}")
    if as_json:
        print_json(done)
    elif done.state == "cancelled":
        echo(f"{id} cancelled")
    return ExitCode.OK if done.state == "cancelled" else ExitCode.FAILED


@app.command()
@operation
async def signal(
    target: Target,
    id: Id,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="Name of the event.")],
    payload: Annotated[
        str,
        typer.Option(metavar="JSON", help="Result of the step that waits.", show_default="null"),
    ] = "null",
    as_json: Json = False,
) -> None:
    """Let an event come that a step of a workflow waits for; the steps after it start.

    It counts once: the same command again changes nothing, and another payload is refused. The
    command 'task-run events' shows who sent it.

    Exit codes: 0 it has come, 1 it came before with another payload, or too late, 2 the payload is
    not JSON, 4 unknown workflow or event.

    \b
    task-run workflows signal refund-7 approved --payload '{"by": "ann"}'
    """
    try:
        value = json.loads(payload)
    except ValueError as error:
        raise typer.BadParameter(f"is not JSON: {error}", param_hint="--payload") from None
    async with target.observer() as nonet:
        done = await workflows.signal(nonet.client, id, event, value)
    print_answer(done, f"event {event} of {id} has come: {done.step}, sent by {done.by}", as_json)


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

    Steps that are done do not run again. The dead letters of the failed steps are deleted. The
    command 'task-run events' shows who resumed.

    Exit codes: 0 resumed, 1 it has not failed, a dead letter of it was submitted again, or you
    answered no, 2 stdin is not a terminal and --yes is missing, 4 unknown id.

    \b
    task-run workflows resume nightly-2026-11-25 --yes
    """
    _ensure_asked(yes, "steps of the workflow run again", "resume")
    async with target.observer() as nonet:
        if not yes and not typer.confirm(f"run the failed steps of {id} again?", err=True):
            print_error("nothing was resumed")
            return ExitCode.FAILED
        done = await workflows.resume(nonet.client, id)
    number = counted(done.steps, "step")
    print_answer(done, f"{id} resumed: {number} run{'s' * (done.steps == 1)} again", as_json)
    return ExitCode.OK


def _ensure_asked(yes: bool, why: str, verb: str) -> None:
    """Refuse what cannot be undone if the command can neither ask nor has ``--yes``."""
    if not yes and not is_at_terminal():
        raise ConfigurationError(
            f"{why}, and stdin is not a terminal, so nothing was done. Add --yes to {verb} it"
        )
