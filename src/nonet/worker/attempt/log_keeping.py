"""Keep what the code of attempts logs: while they run, and when they end.

A child process passes the lines to its worker, which stores them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nonet.client.client import Client
from nonet.rules.outcomes import End
from nonet.worker.attempt.attempt import Attempt, Stage
from nonet.worker.attempt.conclusion import Conclusion

logger = logging.getLogger(__name__)

# How often the lines of running attempts are sent.
INTERVAL_SECONDS = 2.0
# How long lines are kept of a task that has not ended, if none are added.
_UNFINISHED_SECONDS = 7 * 86400.0
_UNCOUNTED = (End.BACK, End.SUSPECT, End.ON)


def with_new_lines(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the attempts whose code runs, and has logged something since the last look."""
    return [
        attempt
        for attempt in list(attempts)
        if attempt.context.log is not None
        and attempt.context.log.is_new
        and attempt.stage is not Stage.SETTLING
    ]


async def keep_log(attempt: Attempt, client: Client, conclusion: Conclusion | None = None) -> None:
    """Store the lines of an attempt, at the latest before it is settled.

    Nothing depends on them: if Redis is full or silent, they are lost.

    Args:
        conclusion: how the attempt ends; None: it runs.
    """
    log, context, settings = attempt.context.log, attempt.context, client.settings
    end = None if conclusion is None else conclusion.settlement.end
    if log is None or end in _UNCOUNTED or (conclusion and conclusion.lost):
        return
    lines, seconds = log.take(), _UNFINISHED_SECONDS
    if end not in (None, End.RETRY, End.CRASH):
        seconds = max(settings.result_ttl, settings.dedup_ttl)
    try:
        if context.is_encrypted:
            lines = client.cipher.encrypt_text(lines, context.id, "log")
        await client.stores.broker.keep_log(attempt.delivery, context.attempt, lines, seconds)
    except Exception as error:  # it must keep no attempt from its settle
        logger.debug("task %s: its log was not stored: %s", context.id, error)
