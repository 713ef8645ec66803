"""``task-run classes``: the task classes that this terminal loads."""

from __future__ import annotations

from nonet.cli.options import Json
from nonet.cli.output import print_view
from nonet.cli.process import warn
from nonet.cli.target import CodeTarget, operation
from nonet.operate import classes
from nonet.operate.classes import ClassQuery
from nonet.scheduler.startup import checked_hooks

_COLUMNS = "name priority size retry_policy=policy dlq_eligible periodic location package"


@operation
async def list_classes(target: CodeTarget, query: ClassQuery, as_json: Json = False) -> None:
    """List the task classes that are registered here.

    Likely mistakes in a class, such as an attribute that Nonet does not know, are warnings on
    stderr.

    \b
    task-run classes --tasks mytasks
    """

    nonet = target.application()
    checked_hooks(nonet.settings, nonet.injector())
    for warning in nonet.registry.warnings():
        warn(warning)
    nothing = "this terminal knows no task class: install their package, or pass --tasks MODULE"
    found = await classes.find(nonet.registry, query)
    print_view(found, as_json, _COLUMNS, f"no task class{query.chosen}" if query.text else nothing)
