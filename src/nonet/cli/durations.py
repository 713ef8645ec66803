"""Durations on the command line."""

from __future__ import annotations

from datetime import timedelta

import typer

from nonet.base import durations


def duration(text: str, default_unit: str = "") -> timedelta:
    """Parse a duration as `nonet.base.durations.duration`, with the error that Typer expects."""
    try:
        return durations.duration(text, default_unit)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
