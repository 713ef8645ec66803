"""Commands of ``manage.py`` that pass their arguments to a program of Nonet."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import entry_points
from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class PassingCommand(BaseCommand):
    """Runs a program of Nonet in a project that Django has set up.

    Attributes:
        program: name of its console script, which ends the process.
    """

    requires_system_checks = []
    program: str

    def add_arguments(self, parser: CommandParser) -> None:
        """For ``call_command``: the arguments as they are."""
        parser.add_argument("arguments", nargs="*")

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass on all arguments but those of ``manage.py`` itself, which it has applied."""
        own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        own.add_argument("--settings")
        own.add_argument("--pythonpath")
        _, arguments = own.parse_known_args(argv[2:])
        self._run(argv[1], arguments)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it for ``call_command``."""
        self._run(type(self).__module__.rpartition(".")[2], options["arguments"])

    def _run(self, name: str, arguments: list[str]) -> None:
        # A fleet starts processes that do not have the folder of manage.py on their path.
        places = [os.path.abspath(sys.path[0]), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
        sys.argv = [name, *arguments]
        (script,) = entry_points(group="console_scripts", name=self.program)
        script.load()()
