"""What a system for a developer consists of: made of options, settings and what is installed."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nonet.base.errors import masked
from nonet.base.version import install_with
from nonet.cli.dev.code import Code, find_code
from nonet.config.settings import Settings, load_settings
from nonet.config.web_settings import WebSettings
from nonet.daemon.health import free_port
from nonet.daemon.processes import daemon_command
from nonet.stores.stores import EMBEDDED

# A developer waits for it, and tasks that are cut off run again with the new code.
GRACE_SECONDS = 5.0
# What the extra 'web' installs for `task-web`.
_WEB = ("authlib", "fastapi", "jinja2", "python_multipart", "uvicorn")
# What only the daemons need, or what may be secret.
_NOT_EXPORTED = ("NONET_CONFIG", "NONET_GRACE")


@dataclass(frozen=True)
class Program:
    """A daemon that can be started.

    Attributes:
        name: a short one, which its log lines begin with.
        command: its command line.
        is_alone: a second one cannot run beside the first.
    """

    name: str
    command: tuple[str, ...]
    is_alone: bool = False


def daemon(name: str, script: str, *options: str, is_alone: bool = False) -> Program:
    """Return the program of a console script."""
    return Program(name, tuple(daemon_command(script, *options)), is_alone)


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        settings: those of this process.
        code: the modules of the developer.
        environment: variables of all processes.
        exports: those that a command in another terminal needs.
        dashboard: its program; None: there is none.
        notes: what to tell the developer first.
        reloads: whether to start anew when the code changes.
    """

    settings: Settings
    code: Code
    environment: Mapping[str, str]
    exports: Mapping[str, str]
    dashboard: Program | None
    notes: Sequence[str] = ()
    reloads: bool = True


def make_plan(
    files: Sequence[Path],
    modules: Sequence[str],
    options: Mapping[str, Any],
    *,
    web_port: int | None = None,
    has_web: bool = True,
    reloads: bool = True,
    debug: bool = False,
) -> Plan:
    """Return the plan of a system.

    Args:
        files, modules: the tasks; without any, the modules of the settings.
        options: settings by name; None: as in the environment.
        web_port: port of the dashboard; None: a free one.
        debug: log at level DEBUG.

    Raises:
        ConfigurationError: a file is no module, or a setting is invalid.
    """
    settings, given = load_settings(**options), Settings.given(**options)
    names = modules or ([] if files else settings.tasks)
    code = find_code(files, names, Path.cwd())
    chosen = {name: value for name, value in options.items() if value is not None}
    has_url = "redis_url" in given
    url = settings.redis_url.get_secret_value() if has_url else EMBEDDED
    if masked(url) == url:  # others keep it in their environment
        chosen["redis_url"] = url
    if "grace" not in given:
        chosen["grace"] = GRACE_SECONDS
    if code.modules:
        chosen["tasks"] = ",".join(code.modules)
    variables = {f"NONET_{name.upper()}": str(value) for name, value in chosen.items()}
    path = [*map(str, code.path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, path)))
    dashboard, web, notes = _dashboard(web_port) if has_web else (None, {}, [])
    if not url.startswith(EMBEDDED):
        notes = [f"it uses the server of NONET_REDIS_URL: {masked(url)}", *notes]
    return Plan(
        load_settings(**chosen),
        code,
        _environment(variables, debug=debug),
        {**_exports(variables, settings, given), **web},
        dashboard,
        notes,
        reloads,
    )


def _exports(
    variables: Mapping[str, str], settings: Settings, given: Collection[str]
) -> Mapping[str, str]:
    """Return the variables by which a command in another terminal reaches the same system."""
    found = {name: value for name, value in variables.items() if name not in _NOT_EXPORTED}
    if "state_dir" in given:
        found["NONET_STATE_DIR"] = str(settings.state_dir.absolute())
    if "namespace" in given:
        found["NONET_NAMESPACE"] = settings.namespace
    return dict(sorted(found.items()))


def _environment(variables: Mapping[str, str], *, debug: bool) -> Mapping[str, str]:
    made = {
        **os.environ,
        **variables,
        "NONET_LOG_FORMAT": "console",
        "NONET_METRICS_PORT": "0",  # it would be the same for all processes
        "PYTHONUNBUFFERED": "1",
    }
    if debug:
        made["NONET_LOG_LEVEL"] = "debug"
    made.pop("PYTHONDONTWRITEBYTECODE", None)  # a start would take seconds
    return made


def _dashboard(port: int | None) -> tuple[Program | None, Mapping[str, str], list[str]]:
    """Return the program of the dashboard and its variables, or a note that it is not installed."""
    missing = [name for name in _WEB if find_spec(name) is None]
    if missing:
        return None, {}, [f"no dashboard ({missing[0]} is missing): {install_with('web')}"]
    web = WebSettings.load(port=port)
    if "port" not in WebSettings.given(port=port):
        port = free_port(web.host, web.port - 1)
    at = {"NONET_WEB_HOST": web.host, "NONET_WEB_PORT": str(port or web.port)}
    options = ("--host", at["NONET_WEB_HOST"], "--port", at["NONET_WEB_PORT"])
    return daemon("web", "task-web", *options, is_alone=True), at, []
