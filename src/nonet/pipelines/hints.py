"""Hints to the processes that run pipelines: a row of a table has become due."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession


def announce(session: AsyncSession, table: str) -> None:
    """Hint a table after the commit of the session."""
