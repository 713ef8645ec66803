"""The decision record sketches `SubmitPilots` with three constructors: each fires as configured."""

from __future__ import annotations

import re

import pytest

from nonet import BaseTask, IntervalSecondsSchedule, PeriodicVoAwareBaseTask
from nonet.testing import System


class Pilots(PeriodicVoAwareBaseTask):
    """What all three have; no task itself."""

    _schedule = IntervalSecondsSchedule(60)

    async def execute(self) -> tuple[str, bool]:
        return self.vo, re.fullmatch(vars(self)["ce_regex"], "ce1.cern.ch") is not None


def forms() -> list[type[BaseTask]]:
    """As in the record, but for the body."""

    class HandsAllToTheBase(Pilots):
        def __init__(self, *, vo: str, ce_regex: str | None = None):
            super().__init__(vo=vo, ce_regex=ce_regex)

    class CompilesItself(Pilots):
        def __init__(self, *, vo: str, ce_regex: str | None = None):
            super().__init__(vo=vo)
            self.ce_regex = re.compile(ce_regex or ".*")

    class Annotates(Pilots):
        ce_regex: re.Pattern = re.compile(".*")

    return [HandsAllToTheBase, CompilesItself, Annotates]


@pytest.mark.parametrize("cls", forms(), ids=lambda cls: cls.__name__)
async def test_each_constructor_is_called_as_configured(
    cls: type[BaseTask], redis_url: str
) -> None:
    """With the VO of the entry and its `args`, in the scheduler and again in the worker."""
    entries = [{"args": {"ce_regex": r".*\.cern\.ch"}}]
    config = {
        "vos": ["gridpp"],
        "common": {"periodic-tasks": {cls.__name__: [{"args": {"ce_regex": "ral"}}]}},
        "vo-overrides": {"lhcb": {"periodic-tasks": {cls.__name__: entries}}},
    }
    async with System([cls], config=config, redis_url=redis_url) as system:
        await system.advance(60)
        await system.run_until_idle()
        found = [await system.result(item.id) for item in system.assert_submitted(cls)]
    assert sorted(set(found)) == [("gridpp", False), ("lhcb", True)]
