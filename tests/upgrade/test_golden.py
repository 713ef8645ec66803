"""How tasks are written today, against a golden file."""

from __future__ import annotations

import json

import msgspec
from upgrade.golden import DOCUMENTS, GOLDEN, written

from nonet.stores.queue.broker import Broker


async def test_tasks_are_written_as_before(broker: Broker) -> None:
    """What others have to read has not changed; or it has, and so has the number."""
    golden, now = json.loads(GOLDEN.read_text()), await written(broker)
    advice = (
        "how tasks are written has changed. If older code could not read it: raise FORMAT in "
        "src/nonet/base/messages/formats.py, and keep a reader, see tests/upgrade/README.md"
    )
    assert now["format"] >= golden["format"], "a format is never used again"
    assert now == golden, advice


def test_two_fields_that_are_swapped_would_show() -> None:
    """No field of the golden documents is left at its default, and no two are the same."""
    for document in DOCUMENTS:
        values = msgspec.structs.asdict(document)
        fields = msgspec.structs.fields(type(document))
        assert [field.name for field in fields if values[field.name] == field.default] == []
        assert len({repr(value) for value in values.values()}) == len(values), document
