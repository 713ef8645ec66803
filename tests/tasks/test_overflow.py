"""Overflow hooks: which are found, and what is said of those that are not."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from nonet.base.errors import RegistrationError
from nonet.tasks import entry_points
from nonet.tasks.overflow import Overflow, overflow_hooks

called: list[Overflow] = []
number = 7


class Scaler:
    @staticmethod
    def scale(overflow: Overflow) -> None:
        called.append(overflow)


def test_the_setting_names_a_hook() -> None:
    (hook,) = overflow_hooks(f"{__name__}:Scaler.scale").values()
    hook(Overflow("small", 1, 2))
    assert overflow_hooks("") == {}
    assert called == [Overflow("small", 1, 2)]


def test_entry_points_add_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("a", f"{__name__}:Scaler.scale", "mine.overflow")
    monkeypatch.setattr(entry_points, "installed", lambda: EntryPoints([entry]))
    assert overflow_hooks("", ("nonet", "mine")) == {"mine.overflow a": Scaler.scale}


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("no.such.module:scale", "No module named"),
        (f"{__name__}:missing", "has no attribute 'missing'"),
        (f"{__name__}:number", "is not a function"),
    ],
)
def test_a_wrong_hook_is_refused_at_the_start(setting: str, problem: str) -> None:
    with pytest.raises(RegistrationError, match=f"NONET_ON_OVERFLOW: {setting}.*{problem}"):
        overflow_hooks(setting)
