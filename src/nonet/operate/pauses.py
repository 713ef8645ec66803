"""Pauses: which are in force; keep tasks and rows from starting, and let them start again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from nonet.base.actor import who
from nonet.base.errors import ConfigurationError, NotFoundError
from nonet.operate.audited import audited
from nonet.operate.lists import ListQuery, Page, Selection, cut
from nonet.rules.pauses import (
    EVERYTHING,
    Pause,
    as_option,
    in_words,
    meant_by,
    pipeline,
    streams,
    task,
)
from nonet.rules.permissions import Action

if TYPE_CHECKING:
    from nonet.stores.stores import Stores


class Which(Selection):
    """What to pause or to resume: everything, or some streams, classes and pipelines."""

    everything: bool = Field(default=False, description="All tasks and pipelines.")
    streams: tuple[str, ...] = Field(
        default=(),
        max_length=20,
        description="Tasks of this stream, `PRIORITY:SIZE`; `*` matches any priority or size.",
    )
    tasks: tuple[str, ...] = Field(
        default=(), max_length=100, description="Tasks of this class; a bare name will do."
    )
    pipelines: tuple[str, ...] = Field(
        default=(), max_length=100, description="Rows of this pipeline."
    )

    def __str__(self) -> str:
        return ", ".join(map(in_words, self.named()))

    @classmethod
    def of(cls, what: str) -> Which:
        """Return what a pause names, see `Pause.what`."""
        kind, _, name = what.partition(":")
        return cls.model_validate(
            {"everything": True} if kind == EVERYTHING else {f"{kind}s": [name]}
        )

    def named(self) -> list[str]:
        """Return the pauses, see `Pause.what`, without duplicates.

        Raises:
            ConfigurationError: nothing is named, or everything and a part of it, or a name is
                malformed.
        """
        chosen = [what for pattern in self.streams for what in streams(pattern)]
        chosen += [task(name) for name in self.tasks]
        chosen += [pipeline(name) for name in self.pipelines]
        if self.everything and chosen:
            raise ConfigurationError(
                "--all excludes --stream, --task and --pipeline: leave out one or the other"
            )
        if not (self.everything or chosen):
            raise ConfigurationError(
                "which tasks? Give --stream PRIORITY:SIZE (for example background:small or "
                "'*:large'), --task CLASS, --pipeline NAME, or --all"
            )
        return [EVERYTHING] if self.everything else list(dict.fromkeys(chosen))


@dataclass(frozen=True, slots=True)
class Resumed(Page[Pause]):
    """The pauses that remain.

    Attributes:
        resumed: those that ended, as in ``what`` of a pause.
    """

    resumed: Sequence[str] = ()


async def find(stores: Stores, query: ListQuery) -> Page[Pause]:
    """Return what is paused, since when, by whom and why."""
    return cut(await stores.controls.load(), query)


@audited(Action.PAUSE, "pause {which}: {reason}")
async def pause(stores: Stores, which: Which, reason: str = "") -> Page[Pause]:
    """Start no more of some or all tasks and rows until they are resumed. Running ones continue."""
    wanted = which.named()
    await stores.controls.pause(wanted, who(), reason)
    return Page([item for item in await stores.controls.load() if item.what in wanted])


@audited(Action.PAUSE, "resume {which}")
async def resume(stores: Stores, which: Which) -> Resumed:
    """End pauses; return those that remain. Each pause is ended by itself.

    Raises:
        NotFoundError: none of these pauses is in force.
    """
    found = await stores.controls.load()
    before, wanted = {item.what for item in found}, meant_by(which.named(), found)
    await stores.controls.resume(wanted, who())  # what is not paused, too: it can be repeated
    left = await stores.controls.load()
    done = [what for what in wanted if what in before]
    if not done:
        raise NotFoundError(f"{which}: not paused. {still_paused(left)}")
    return Resumed(left, resumed=done)


def still_paused(left: Sequence[Pause]) -> str:
    """Say what remains paused, with the options that resume it."""
    if not left:
        return "Nothing is paused"
    options = ", ".join(as_option(item.what) for item in left)
    return f"Still paused, see 'task-run paused': {options}"
