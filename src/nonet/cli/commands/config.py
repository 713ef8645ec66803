"""``task-run config``: check a configuration, show effective values, print the JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nonet.base.amounts import format_bytes
from nonet.base.errors import ConfigurationError
from nonet.cli.completion import classes
from nonet.cli.options import Json
from nonet.cli.output import echo, print_json, print_table, print_text, print_view
from nonet.cli.process import print_error, warn
from nonet.cli.target import CodeTarget, Target, operation
from nonet.config.entries import all_vos
from nonet.config.schema import json_schema
from nonet.config.sources import open_source
from nonet.config.task_loading import load_registry
from nonet.daemon.service import ExitCode
from nonet.operate import configuration
from nonet.operate.lists import Page
from nonet.scheduler.configuration import configuration_loop
from nonet.scheduler.startup import checked_hooks
from nonet.tasks.injection import Injector
from nonet.tasks.registry import vos_from_entry_points

if TYPE_CHECKING:
    from nonet.config.models import Config
    from nonet.config.settings import Settings
    from nonet.scheduler.configuration.configuration_loop import Checked
    from nonet.tasks.registry import Registry

app = typer.Typer(
    help="The central configuration: check it, and show what it sets.", rich_markup_mode=None
)

File = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE]",
        help="A file, a directory or git+URL#BRANCH, as in NONET_CONFIG.",
        show_default=False,
    ),
]


@app.command()
@operation
async def check(target: CodeTarget, file: File = None, as_json: Json = False) -> int:
    """Check a configuration as the scheduler would.

    All problems of the files are printed, or if they have none, all that does not fit the task
    classes: file, line, path and reason. The check needs the task modules (NONET_TASKS, --tasks),
    but neither Redis nor SQL. Without FILE it checks NONET_CONFIG.

    Exit codes: 0 valid, 2 invalid.

    \b
    task-run config check nonet.yaml --tasks mytasks
    """
    installation = _Installation(target)
    try:
        checked, revision = await installation.read(file)
    except ConfigurationError as error:
        problems = str(error).splitlines()
        if as_json:
            print_json({"good": False, "problems": problems})
        for problem in () if as_json else problems:
            print_error(problem)
        return ExitCode.USAGE
    if as_json:
        found = installation.summary(checked, revision)
        print_json({"good": True, "problems": [], "warnings": checked.warnings, **found})
    else:
        for warning in checked.warnings:
            warn(warning)
        echo(installation.in_words(checked, revision))
    return ExitCode.OK


@app.command()
@operation
async def show(
    target: CodeTarget,
    task: Annotated[
        str,
        typer.Option(
            "--task",
            metavar="CATEGORY:CLASS",
            help="Task class; a bare name will do.",
            autocompletion=classes,
        ),
    ],
    file: File = None,
    vo: Annotated[
        str | None, typer.Option(help="Show the values for this VO.", show_default="common values")
    ] = None,
    show_args: Annotated[
        bool,
        typer.Option(
            "--show-args", help="Show the arguments of periodic entries; secrets are masked."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the effective values for a task class, and where each comes from.

    The output names the origin of each value: the class, or a path in the configuration. Without
    FILE, the configuration published in Redis is used. All limits that can apply are listed; the
    locks of a task decide which ones do.

    Exit codes: 0 shown, 4 no such class or VO.

    \b
    task-run config show --task RemoveFile --vo lhcb nonet.yaml
    """

    installation = _Installation(target)
    registry, vos = installation.registry, installation.vos
    task_class = configuration.known_class(registry, task)
    if file:
        checked, _ = await installation.read(file)
        limits = [(address, limit, "") for address, limit in checked.limits.items()]
        found = configuration.of_class(
            checked.config, limits, registry, vos, task_class, vo, show_args=show_args
        )
    else:
        async with target.stores() as stores:
            found = await configuration.get(stores, registry, vos, task, vo, show_args=show_args)
    if not found.source:
        echo(_NOTHING_PUBLISHED, err=True)
    if as_json:
        print_json(found)
        return
    print_view(found, False, "task vo source")
    print_text("")
    values = [(item.name, _in_words(item.name, item.value), item.origin) for item in found.values]
    print_table(("name", "value", "from"), values)
    for item in found.dropped:
        of_vo = f" for VO {item.vo}" if item.vo else ""
        print_text(f"\nno entries{of_vo}: dropped by {item.by}")
    _print_part("entries", found.entries, _ENTRY + (" args" if show_args else ""))
    _print_part("limits", found.limits, _LIMIT)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for completion and checks in editors.

    \b
    task-run config schema > schema.json
    """

    for line in json.dumps(json_schema(), indent=2).splitlines():
        echo(line)


@app.command()
@operation
async def status(target: Target, as_json: Json = False) -> int:
    """Show the published configuration, problems of its source, and which workers apply it.

    Exit codes: 0 all is well, 1 the source has changes that cannot be applied, no scheduler leads,
    or a worker still applies another version 10 s after publication.

    \b
    task-run config status
    """

    async with target.stores() as stores:
        found = await configuration.status(stores)
    if as_json:
        print_json(found)
        return ExitCode.OK if found.good else ExitCode.FAILED
    if not found.version:
        echo(_NOTHING_PUBLISHED, err=True)
    print_view(found, False, _STATUS)
    if not found.leader:
        print_error("no scheduler leads, so changes are not noticed: start a task-scheduler")
    for line in found.config_problem.splitlines():
        print_error(line)
    _print_part("workers", found.workers, "worker size config behind problem=config_problem")
    return ExitCode.OK if found.good else ExitCode.FAILED


_STATUS = "version source revision since by leader problem_since"
_ENTRY = "name vo schedule enabled overlap catch_up catch_up_limit jitter misfire_grace from=origin"
_LIMIT = "object_type key action vo limiter limit=in_words window_seconds from=origin"
_NOTHING_PUBLISHED = "no configuration is published: task classes keep their own values"


class _Installation:
    """The task classes and VOs of this process, with a configuration applied to them."""

    def __init__(self, target: CodeTarget) -> None:

        self.settings: Settings = target.settings()
        self.registry: Registry = load_registry(self.settings)
        checked_hooks(self.settings, Injector())
        self.vos = vos_from_entry_points(self.settings.groups)

    async def read(self, text: str | None) -> tuple[Checked, str]:
        """Read and check a source; return its configuration and its revision.

        Raises:
            ConfigurationError: the source cannot be read, or is invalid: one line per problem.
        """

        text = text or self.settings.config
        if not text:
            raise ConfigurationError("nothing to check: give FILE, or set NONET_CONFIG")
        source = open_source(text, self.settings, self._fits)
        return self._fits(await source.read()), source.revision

    def _fits(self, config: Config) -> Checked:

        return configuration_loop.check(config, self.registry, self.vos)

    def summary(self, checked: Checked, revision: str) -> dict[str, Any]:
        """Count what a valid configuration contains."""

        return {
            "source": checked.config.source,
            "revision": revision or None,
            "version": checked.version,
            "entries": len(checked.entries),
            "enabled": sum(entry.enabled for entry in checked.entries),
            "never_fire": checked.never_fire,
            "limits": len(checked.limits),
            "overrides": sum(len(section.tasks) for _, _, section in checked.config.sections),
            "ceilings": checked.number_of_ceilings,
            "vos": all_vos(checked.config, self.vos),
        }

    def in_words(self, checked: Checked, revision: str) -> str:
        """Format the summary as one line."""
        found = self.summary(checked, revision)
        commit = f" at {revision[:12]}" if revision else ""
        off, never = found["entries"] - found["enabled"], found["never_fire"]
        without = [
            f"{number} {what}"
            for number, what in (
                (off, "disabled"),
                (never, "never fires" if never == 1 else "never fire"),
            )
            if number
        ]
        return (
            f"{found['source']}{commit}: good: "
            f"{_count(found['entries'], 'periodic entry', 'periodic entries')}"
            f"{' (' + ', '.join(without) + ')' if without else ''}, "
            f"{_count(found['limits'], 'limit')}, "
            f"{_count(found['overrides'], 'task override')}, "
            f"{_count(found['ceilings'], 'ceiling') + ', ' if found['ceilings'] else ''}"
            f"{'VOs ' + ', '.join(found['vos']) if found['vos'] else 'no VO'}"
        )


def _print_part(heading: str, items: Sequence[object], columns: str) -> None:
    if items:
        print_text(f"\n{heading}")
        print_view(Page(items), False, columns)


def _in_words(name: str, value: Any) -> Any:
    if name == "memory_limit" and value is not None:
        return format_bytes(value)
    if not isinstance(value, dict):
        return value
    arguments = ", ".join(f"{field}={item!r}" for field, item in value["args"].items())
    return f"{value['class']}({arguments})"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
