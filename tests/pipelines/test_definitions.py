"""Definitions of pipelines that cannot work: each is one line at the start."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import sqlalchemy as sa
from pipelines.hosting import Note
from row_tables import Event, Fleet, Instance, Instances, on

from nonet import Depends, Nonet
from nonet.base.errors import RegistrationError
from nonet.pipelines import Changes, Children, Pipeline, RowDatabase, Shared
from nonet.pipelines.host import PipelineHost

UNUSED = RowDatabase("sqlite:///unused.db")


def selecting(made: Any) -> Any:
    return type("Selecting", (Instances,), {"select": lambda self: made})


def ordered(order: Any) -> Any:
    query = sa.select(Instance).join(Fleet, Fleet.id == Instance.fleet_id).order_by(order)
    return selecting(query)


class Plain(Pipeline[Any]):
    """Its table has no lease columns."""

    model = Event

    async def process(self, row: Any) -> None:
        """Do nothing."""


class Demanding(Instances):
    def __init__(self, cloud: str) -> None:
        """Need an argument."""


class Raising(Instances):
    def select(self) -> Any:
        raise KeyError("CLOUD")


def cloud() -> str:
    return "a cloud"


async def coroutine(self: Any, *arguments: Any) -> Any:
    """Do nothing."""


async def without_row(self: Any) -> Any:
    """Do nothing."""


@pytest.mark.parametrize(
    ("cls", "attributes", "problem"),
    [
        (ordered(Instance.status), {}, "no index of table instances begins with"),
        (ordered(Fleet.due_at), {}, "no index of table instances begins with fleets.due_at"),
        (ordered(Instance.fleet_id.asc().nulls_first()), {}, "begins with instances.fleet_id"),
        (selecting("SELECT * FROM instances"), {}, r"select\(\) returned 'SELECT \* FROM"),
        (selecting(sa.select(Fleet)), {}, "does not select from table instances"),
        (selecting(sa.select(Instance).limit(5)), {}, "has a limit or an offset: remove it"),
        (selecting(sa.select(Instance).distinct()), {}, "has DISTINCT or GROUP BY"),
        (Raising, {}, "its definition fails: KeyError: 'CLOUD'"),
        (Demanding, {}, "its definition fails: TypeError: .*'cloud'"),
        (Plain, {}, "has no lease columns"),
        (Instances, {"process": lambda self, row: None}, "write `async def process"),
        (Instances, {"process": without_row}, "process has no parameter for the row"),
        (Instances, {"select": coroutine}, "select must be a plain method"),
        (Instances, {"needs_related": coroutine}, "needs_related must be a plain method"),
        (Instances, {"workers": 0}, "workers=0 must be"),
        (Instances, {"queue": 0}, "queue=0 must be an integer of at least 1"),
        (Instances, {"lease": 0.5}, "lease=0.5 must be"),
        (Instances, {"interval": None}, "interval=None must be"),
        (Instances, {"interval": float("inf")}, "interval=inf must be"),
        (Instances, {"retry_policy": 3}, "retry_policy=3 must be a retry policy"),
        (Instances, {"related": Shared(Fleet, Instance.fleet_id)}, "must be a tuple of Children"),
        (Instances, {"related": (Fleet,)}, "must be a tuple of Children"),
        (Instances, {"related": (Children(dict, "id"),)}, "its model is no mapped class"),
        (Instances, {"related": (Shared(Fleet, "fleet_id"),)}, "is no column of table instances"),
        (Instances, {"name": "a b"}, "name must have"),
        (Instances, {"process_as": Note}, "must be a subclass of nonet.pipelines.RowTask"),
    ],
)
def test_a_pipeline_that_cannot_work_is_refused(
    cls: Any, attributes: dict[str, Any], problem: str
) -> None:
    """The error names the pipeline and the attribute, in one line."""
    with pytest.raises(RegistrationError, match=problem) as refused:
        on(UNUSED, cls, **attributes)
    assert "\n" not in str(refused.value)


@pytest.mark.server
async def test_a_parameter_that_nothing_provides_is_refused_at_the_start(nonet: Nonet) -> None:
    """A pipeline with a provider for it starts."""

    class Odd(Instances):
        async def process(self, row: Instance, cloud: dict[str, int]) -> Changes:
            return Changes()

    class Fine(Instances):
        async def process(self, row: Instance, cloud: Annotated[str, Depends(cloud)]) -> Changes:
            return Changes()

    async with nonet.injector() as injector:
        with pytest.raises(RegistrationError, match=r"pipeline instances .*cloud"):
            PipelineHost(nonet.client, injector, on(UNUSED, Odd), ["instances"])
        PipelineHost(nonet.client, injector, on(UNUSED, Fine), ["instances"])
