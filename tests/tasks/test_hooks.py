"""Start-up hooks: how they are registered."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from nonet import Epoch, RegistrationError, startup_hook
from nonet.config.settings import plain_settings
from nonet.scheduler.startup import checked_hooks
from nonet.tasks import entry_points
from nonet.tasks.hooks import startup_hooks
from nonet.tasks.injection import Injector


def made(number: int) -> Any:
    def hook() -> int:
        return number

    return hook


def test_hooks_keep_the_order_of_their_registration() -> None:
    @startup_hook
    def second_by_name() -> None: ...

    @startup_hook
    def first_by_name() -> None: ...

    assert list(startup_hooks(()).values()) == [second_by_name, first_by_name]
    with pytest.raises(RegistrationError, match="@startup_hook got 7: put it above a function"):
        startup_hook(7)  # type: ignore[type-var]  # the mistake


def test_a_module_that_is_imported_again_replaces_its_hooks() -> None:
    startup_hook(made(1))
    newest = startup_hook(made(2))
    assert list(startup_hooks(()).values()) == [newest]


def test_two_hooks_of_one_name_are_refused() -> None:
    def hook() -> None: ...

    first = hook

    def hook() -> int:  # type: ignore[no-redef]  # the mistake
        return 1

    startup_hook(first)
    with pytest.raises(RegistrationError, match="two start-up hooks are named"):
        startup_hook(hook)


def _installed(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = EntryPoint("reset", value, "nonet.startup")
    monkeypatch.setattr(entry_points, "installed", lambda: EntryPoints([entry]))


NUMBER = 7


def yields() -> Iterator[None]:
    yield


def wants_a_name(name: str, epoch: Epoch) -> None: ...


def wants_anything(thing) -> None:  # type: ignore[no-untyped-def]  # the mistake
    ...


def wants_the_epoch(epoch: Epoch) -> None: ...


@pytest.mark.parametrize(
    ("value", "reason", "step"),
    [
        ("no.such.module:reset", "No module named 'no'", "fix or remove it in nonet.startup"),
        (f"{__name__}:missing", "has no attribute 'missing'", "fix or remove it in nonet.startup"),
        (f"{__name__}:NUMBER", "is 7, which cannot be called", "name a function"),
        (f"{__name__}:yields", "is a generator", "remove its yield"),
        (f"{__name__}:wants_a_name", "parameter name of ", "register"),
        (f"{__name__}:wants_anything", "parameter thing of ", "annotat"),
    ],
)
def test_a_wrong_hook_is_refused_at_load(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str, step: str
) -> None:
    """A parameter for the epoch is none; a wrong one would hold up all periodic tasks."""
    _installed(monkeypatch, f"{__name__}:wants_the_epoch")
    assert checked_hooks(plain_settings(), Injector()) == {"reset": wants_the_epoch}
    _installed(monkeypatch, value)
    with pytest.raises(RegistrationError, match="start-up hook 'reset'") as refused:
        checked_hooks(plain_settings(), Injector())
    assert reason in str(refused.value) and step in str(refused.value)
