"""Load the tasks of a developer once, in a process of its own, and report what came of it.

``python -m nonet.cli.dev.trial_load FD`` writes one line of JSON to a file descriptor. Code that
cannot be loaded is found here, before it could replace code that works.
"""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nonet
from nonet.base.errors import NonetError, RegistrationError
from nonet.config.settings import Settings, load_settings
from nonet.config.task_loading import load_registry
from nonet.tasks.entry_points import entries

_NOTHING = "there are no tasks: name a file of tasks, or a module with -m, or set NONET_TASKS"


@dataclass(frozen=True)
class Loaded:
    """What came of loading the tasks.

    Attributes:
        problem: why they cannot be loaded, in one or several lines; empty if they can.
        tasks, pipelines: full names of what was found.
        files: the files that the project consists of, as far as they were loaded: neither those of
            Python, nor those of installed packages.
    """

    problem: str = ""
    tasks: Sequence[str] = ()
    pipelines: Sequence[str] = ()
    files: Sequence[str] = field(default=())


def main(fd: int) -> None:
    """Load what the environment names, and write the report."""
    error: BaseException | None = None
    tasks: list[str] = []
    pipelines: list[str] = []
    try:
        settings = load_settings()
        tasks = [item.name for item in load_registry(settings)]
        pipelines = _pipelines(settings)
        if not (tasks or pipelines):
            raise RegistrationError(_NOTHING)
    except BaseException as raised:  # modules may raise anything
        error = raised
    is_ours = _Project()
    problem = "" if error is None else _described(error, is_ours)
    files = sorted(filter(is_ours, {*_loaded(), *_blamed(error)}))
    report = Loaded(problem, tasks, pipelines, files)
    with os.fdopen(fd, "w", encoding="utf-8") as output:
        json.dump(asdict(report), output)
    os._exit(0)  # whatever threads the modules have started


def _pipelines(settings: Settings) -> list[str]:
    if "nonet.pipelines" not in sys.modules and not list(entries(settings.groups, "pipelines")):
        return []
    from nonet.pipelines.loading import load_pipelines  # it imports SQLAlchemy: 0.4 s

    return [cls.name for cls in load_pipelines(settings).values()]


class _Project:
    """Whether a file belongs to the developer's project."""

    def __init__(self) -> None:
        paths = [*site.getsitepackages(), site.getusersitepackages()]
        paths += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")]
        self._foreign = [Path(path).resolve() for path in paths]
        self._foreign.append(Path(str(nonet.__file__)).resolve().parent)

    def __call__(self, file: str) -> bool:
        path = Path(file).resolve()
        return path.suffix == ".py" and not any(map(path.is_relative_to, self._foreign))


def _loaded() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            yield os.path.abspath(file)


def _blamed(error: BaseException | None) -> Iterator[str]:
    """Yield the files in which an error occurred: their modules are not loaded."""
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            yield os.path.abspath(error.filename)
        for frame in traceback.extract_tb(error.__traceback__):
            yield os.path.abspath(frame.filename)
        error = error.__cause__ or error.__context__


def _described(error: BaseException, is_ours: _Project) -> str:
    """Describe an error, with the lines of the project that led to it."""
    cause: Any = error.__cause__ if isinstance(error, NonetError) else error
    if cause is None:
        return str(error)
    shown = traceback.TracebackException.from_exception(cause, compact=True)
    shown.stack = traceback.StackSummary.from_list(
        frame for frame in shown.stack if is_ours(frame.filename)
    )
    return "".join(shown.format(chain=False)).rstrip()


if __name__ == "__main__":
    main(int(sys.argv[1]))
