"""Find the pipelines of a process: `load_pipelines`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from nonet.base.errors import NotFoundError, RegistrationError
from nonet.config.settings import Settings
from nonet.pipelines.definition import check
from nonet.pipelines.eligibility import Mains, mains_of
from nonet.pipelines.leasing import Leasing
from nonet.pipelines.pipeline import Pipeline
from nonet.tasks.entry_points import entries, load
from nonet.tasks.registry import import_named
from nonet.telemetry.logs import keep_logs


class Pipelines(Mapping[str, type[Pipeline[Any]]]):
    """The pipelines that this process knows, by name."""

    def __init__(self, classes: Iterable[type[Pipeline[Any]]] = ()) -> None:
        self._classes: dict[str, type[Pipeline[Any]]] = {}
        for cls in classes:
            self.add(cls)

    def __getitem__(self, name: str) -> type[Pipeline[Any]]:
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def __len__(self) -> int:
        return len(self._classes)

    def add(self, cls: type[Pipeline[Any]]) -> None:
        """Check a class and add it.

        Raises:
            RegistrationError: it cannot run, or another class has its name.
        """
        check(cls)
        known = self._classes.setdefault(cls.name, cls)
        if known is not cls:
            raise RegistrationError(
                f"two pipelines are named {cls.name!r}, in {known.__module__} and "
                f"{cls.__module__}: set another `name` in one of them"
            )

    def find(self, name: str) -> type[Pipeline[Any]]:
        """The pipeline with this name.

        Raises:
            NotFoundError: it is unknown.
        """
        if name in self._classes:
            return self._classes[name]
        known = ", ".join(self) or "none is loaded: name their modules with --tasks"
        raise NotFoundError(f"no pipeline is named {name!r} (known: {known})")

    def mains_of(self, table: sa.Table) -> Mains:
        """The pipelines whose related rows are in a table."""
        return mains_of(self._classes.values(), table)

    def leasing(self, cls: type[Pipeline[Any]]) -> Leasing:
        """Make the store of the leases of a pipeline."""
        return Leasing(cls(), self.mains_of)


def load_pipelines(settings: Settings) -> Pipelines:
    """Load the pipelines of the entry points ``nonet.pipelines`` and of ``NONET_TASKS``.

    Raises:
        RegistrationError: one cannot be imported or cannot run.
    """
    found, prefixes = Pipelines(), settings.groups
    for entry in entries(prefixes, "pipelines"):
        cls = load(entry)
        if not _is_pipeline(cls):
            raise RegistrationError(
                f"entry point {entry.value!r} of {entry.group} is not a pipeline: name a subclass "
                "of nonet.pipelines.Pipeline"
            )
        found.add(cls)
    for name in settings.tasks:
        for cls in _in_module(name):
            found.add(cls)
    keep_logs()  # the modules may have configured logging
    return found


def _in_module(name: str) -> Iterator[type[Pipeline[Any]]]:
    module = import_named(name)
    for cls in vars(module).values():
        # A class without `process` is a base of others.
        if _is_pipeline(cls) and cls.__module__ == module.__name__ and hasattr(cls, "process"):
            yield cls


def _is_pipeline(cls: object) -> bool:
    return inspect.isclass(cls) and issubclass(cls, Pipeline) and cls is not Pipeline
