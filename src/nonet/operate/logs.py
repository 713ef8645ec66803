"""What the code of a task has logged, attempt by attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nonet.client.client import Client
from nonet.client.reading import logs_of
from nonet.operate.tasks import details


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """The last lines of one attempt.

    Attributes:
        attempt: its number.
        log: the lines. Those of a running attempt are up to two seconds old.
    """

    attempt: int
    log: str


@dataclass(frozen=True, slots=True)
class TaskLog:
    """The lines that a task has logged.

    Attributes:
        id: of the task.
        state: its state.
        attempts: the attempts of which lines are kept; later only the dead letter has some.
    """

    id: str
    state: str
    attempts: Sequence[AttemptLog]


async def get(client: Client, id: str) -> TaskLog:
    """Return what a task has logged: nothing if its class keeps no lines, or has logged none.

    Raises:
        NotFoundError: nothing is known of the task.
    """
    # The state comes first: lines are stored before an attempt ends.
    report = await details(client, id)
    found = [AttemptLog(number, text) for number, text in (await logs_of(client, id)).items()]
    if not found and report.letter is not None:
        rows = [row for row in report.letter.history if row.get("log")]
        found = [AttemptLog(int(row.get("attempt", 0)), str(row["log"])) for row in rows]
    return TaskLog(id, report.status.state, found)
