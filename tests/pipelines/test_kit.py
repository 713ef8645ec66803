"""The four tests of `PipelineTests` pass for good pipelines, and each finds its mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from row_tables import Fleet, Fleets, Instance, Job, Jobs

from nonet.pipelines import Changes
from nonet.pipelines.testing import PipelineTests


class TestJobs(PipelineTests):
    """A good pipeline with a shared row, tested as its author would."""

    pipeline = Jobs

    async def make_row(self, session: Any) -> Job:
        instance = Instance()
        session.add(instance)
        await session.flush()
        return Job(instance_id=instance.id)


class TestFleets(PipelineTests):
    pipeline = Fleets

    async def make_row(self, session: Any) -> Fleet:
        fleet = Fleet()
        session.add(fleet)
        await session.flush()
        session.add_all([Instance(fleet_id=fleet.id), Instance(fleet_id=fleet.id)])
        return fleet


class Blind(Jobs):
    def select(self) -> Any:
        return sa.select(Job).where(Job.status == "never")


class Careless(Jobs):
    async def process(self, row: Any) -> Changes:
        row.status = "done"
        return Changes()


class Hasty(Jobs):
    def needs_related(self, row: Any) -> bool:
        return False


@pytest.mark.parametrize(
    ("pipeline", "test", "problem"),
    [
        (Blind, "test_ready_rows_are_fetched_the_oldest_first", "does select\\(\\) select"),
        (Careless, "test_a_result_is_applied_and_releases_the_row", "process changed status"),
        (Hasty, "test_a_busy_related_row_is_waited_for", "does needs_related"),
    ],
)
def test_a_mistake_fails_the_test_that_is_about_it(
    pipeline: Any, test: str, problem: str, tmp_path: Path
) -> None:
    """The message says what is wrong."""
    tests = TestJobs()
    tests.__class__ = type("Tests", (TestJobs,), {"pipeline": pipeline})
    with pytest.raises((AssertionError, TypeError), match=problem):
        getattr(tests, test)(tmp_path)
