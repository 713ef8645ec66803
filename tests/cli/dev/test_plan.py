"""What ``task-run dev`` makes of options, variables and what is installed."""

from __future__ import annotations

import os
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from nonet.base.errors import ConfigurationError
from nonet.cli.dev import plan
from nonet.cli.dev.plan import Plan, make_plan


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a file of tasks, which is the current one; without variables of Nonet."""
    for name in [name for name in os.environ if name.startswith("NONET_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytasks.py").touch()
    return tmp_path


def planned(*files: str, modules: tuple[str, ...] = (), **options: Any) -> Plan:
    return make_plan([Path(file) for file in files], modules, options, has_web=False)


def test_it_has_a_server_of_its_own(project: Path) -> None:
    """Its grace period is short; the variables are for commands in other terminals."""
    made = planned("mytasks.py", state_dir=project / "state", config=None)
    assert made.settings.redis_url.get_secret_value() == "embedded://"
    assert (made.settings.grace, made.environment["NONET_GRACE"]) == (5.0, "5.0")
    assert made.exports == {
        "NONET_REDIS_URL": "embedded://",
        "NONET_STATE_DIR": str(project / "state"),
        "NONET_TASKS": "mytasks",
        "PYTHONPATH": str(project),
    }
    assert made.exports.items() <= made.environment.items()
    assert made.environment["NONET_METRICS_PORT"] == "0"


def test_variables_take_precedence(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note names the other server, without its password."""
    monkeypatch.setenv("NONET_REDIS_URL", "redis://:secret@db.example:6379/0")
    monkeypatch.setenv("NONET_GRACE", "60")
    monkeypatch.setenv("NONET_NAMESPACE", "shop")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    made = planned("mytasks.py")
    assert made.settings.grace == 60
    assert made.exports == {
        "NONET_NAMESPACE": "shop",
        "NONET_TASKS": "mytasks",
        "PYTHONPATH": f"{project}:/elsewhere",
    }
    assert made.notes == ["it uses the server of NONET_REDIS_URL: redis://:***@db.example:6379/0"]


def test_without_a_file_the_modules_of_the_settings_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are watched and found from the current directory; ``-m`` replaces them."""
    monkeypatch.setenv("NONET_TASKS", "mytasks,shop.tasks")
    assert planned().settings.tasks == ("mytasks", "shop.tasks")
    assert project / "mytasks.py" in planned().code.files
    assert planned(modules=("other",)).settings.tasks == ("other",)


def test_invalid_settings_are_refused() -> None:
    """The error names the setting."""
    with pytest.raises(ConfigurationError, match="NONET_NAMESPACE"):
        planned("mytasks.py", namespace="a b")


def test_the_dashboard_needs_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them a note says what to install."""
    with monkeypatch.context() as bare:
        bare.setattr(plan, "find_spec", lambda name: None)
        made = make_plan([Path("mytasks.py")], [], {})
        assert made.dashboard is None
        assert made.notes == ["no dashboard (authlib is missing): pip install 'PATH/TO/CLONE[web]'"]
    monkeypatch.setattr(plan, "find_spec", lambda name: ModuleSpec(name, None))
    made = make_plan([Path("mytasks.py")], [], {}, web_port=9123)
    assert made.dashboard is not None
    assert made.dashboard.command[-4:] == ("--host", "127.0.0.1", "--port", "9123")
    assert made.exports["NONET_WEB_PORT"] == "9123"  # for `task-run web link`
