"""The names of processes."""

from __future__ import annotations

import os
import socket

import pytest

from nonet.base import actor


@pytest.mark.parametrize(
    ("full", "name"), [("node7.example", "node7.example"), ("localhost", "node7")]
)
def test_no_process_is_named_after_localhost(
    monkeypatch: pytest.MonkeyPatch, full: str, name: str
) -> None:
    """Where /etc/hosts lists the machine as localhost, a process has the machine's own name."""
    monkeypatch.setattr(socket, "getfqdn", lambda: full)
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(actor, "_host", actor._host.__wrapped__)
    assert actor.process_name() == f"{os.getpid()}@{name}"
