"""Tasks of an application that configures logging, and whose log server is down."""

from __future__ import annotations

import logging
import logging.config
import os
from dataclasses import dataclass

from nonet import BaseTask, Isolation, Size


class Shipper(logging.Handler):
    """Sends records to a server that is down."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("log server is down")


def configure() -> None:
    """Configure logging as most applications do: existing handlers and loggers vanish."""
    shipper = {"()": Shipper}
    root = {"handlers": ["shipper"], "level": "WARNING"}
    logging.config.dictConfig({"version": 1, "handlers": {"shipper": shipper}, "root": root})


if "PROBE_JOURNAL" in os.environ:  # in a daemon, not in the test
    configure()


@dataclass
class Fails(BaseTask):
    """In a coroutine, after it has configured logging again."""

    size = Size.SMALL

    async def execute(self) -> None:
        configure()
        logging.getLogger("author").warning("it fails")
        raise ValueError("ordinary failure")


@dataclass
class FailsInChild(Fails):
    """In a process of its own."""

    isolation = Isolation.FRESH
