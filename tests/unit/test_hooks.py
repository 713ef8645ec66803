"""Start-up hooks: how they are registered."""

from __future__ import annotations

from typing import Any

import pytest

from nonet import RegistrationError, startup_hook
from nonet.hooks import startup_hooks


def made(number: int) -> Any:
    def hook() -> int:
        return number

    return hook


@pytest.fixture(autouse=True)
def _no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nonet.hooks._registered", {})


def test_hooks_keep_the_order_of_their_registration() -> None:
    """The decorator gives the function back, and the later one runs later."""

    @startup_hook
    def second_by_name() -> None: ...

    @startup_hook
    def first_by_name() -> None: ...

    assert list(startup_hooks(()).values()) == [second_by_name, first_by_name]


def test_a_module_that_is_imported_anew_replaces_its_hooks() -> None:
    """The same place in a file is the same hook; the newest one counts."""
    startup_hook(made(1))
    newest = startup_hook(made(2))
    assert list(startup_hooks(()).values()) == [newest]


def test_two_hooks_of_one_name_are_refused() -> None:
    """Else one of them would silently never run."""

    def hook() -> None: ...

    first = hook

    def hook() -> int:  # type: ignore[no-redef]  # the mistake
        return 1

    startup_hook(first)
    with pytest.raises(RegistrationError, match="two start-up hooks are named"):
        startup_hook(hook)
