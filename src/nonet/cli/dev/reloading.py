"""A system for a developer: all daemons, started anew when the code changes, stopped at the end.

A change is loaded in a process of its own first. If that fails, the daemons go on with the code
that they have. Otherwise new daemons start, and the old ones drain beside them: they finish the
tasks that they run, or hand them back, and the new ones take everything that is queued.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from nonet.base.streams import Size
from nonet.cli.dev.changed_files import State, changes, state_of
from nonet.cli.dev.log import MergedLog
from nonet.cli.dev.plan import Plan, Program, daemon
from nonet.cli.dev.trial_load import Loaded
from nonet.daemon.processes import LONGEST_STOP_SECONDS, Backoff, ChildProcess, all_ended, stop_all
from nonet.daemon.service import Stop

_POLL_SECONDS = 0.25
# How long processes may take to end after the grace period.
_END_SECONDS = 10.0
LONGEST_END_SECONDS = _END_SECONDS + LONGEST_STOP_SECONDS
# The command of this environment, which may not be active in another terminal.
_TASK_RUN = shlex.quote(str(Path(sys.executable).with_name("task-run")))
# A link in the log of task-web, by which one browser logs in.
_LINK = re.compile(r"http://\S+/login\?code=[\w-]+")
_MOST_NAMED = 8


class ReloadingSystem:
    """Runs the daemons until it is stopped.

    Args:
        plan: what to run.
        log: for the lines of all processes.
    """

    def __init__(self, plan: Plan, log: MergedLog) -> None:
        self._plan = plan
        self._log = log
        self._files: Sequence[str] = [str(file) for file in plan.code.files]
        self._state: State = {}
        self._loaded = Loaded()
        self._processes: dict[ChildProcess, Program] = {}
        self._backoff = Backoff()
        self._failed: set[Program] = set()  # what is not started again before the next change
        self._starts: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        self._generation = 0
        self._is_announced = True
        self._has_been_ready = False

    async def run(self, stop: Stop) -> None:
        """Start everything, and stop it when that is requested."""
        for note in self._plan.notes:
            self._log.say(note)
        try:
            await self._load(stop)
            while not stop.requested.is_set():
                await stop.sleep(_POLL_SECONDS)
                if self._plan.reloads and (changed := await self._changed(stop)):
                    self._log.say(f"{_names(changed)} changed")
                    _forget_bytecode(changed)
                    await self._load(stop)
                await self._look_after()
        finally:
            await self._end(stop)

    # ---- code -----------------------------------------------------------------------------------

    async def _changed(self, stop: Stop) -> list[str]:
        """Return the files that have changed, once nothing changes any more."""
        if not changes(self._state, now := state_of(self._files)):
            return []
        while not stop.requested.is_set():  # an editor or git writes several files
            await stop.sleep(_POLL_SECONDS)
            before, now = now, state_of(self._files)
            if before == now:
                break
        return changes(self._state, now)

    async def _load(self, stop: Stop) -> None:
        """Load the code; start daemons if that works, else say why not."""
        self._state = before = state_of(self._files)
        loaded = await self._try_to_load(stop)
        if loaded is None:
            return
        self._files = sorted({*self._files, *loaded.files})
        # A file that is known only now is taken as it is; another one may have changed meanwhile.
        self._state = {**state_of(self._files), **before}
        if not loaded.problem:
            self._loaded = loaded
            await self._start_all()
            return
        self._log.say(loaded.problem)
        runs = any(not process.is_leaving for process in self._processes)
        what = "the code before this change goes on" if runs else "nothing runs"
        self._log.say(f"the tasks cannot be loaded: {what} until the next save")

    async def _try_to_load(self, stop: Stop) -> Loaded | None:
        """Load the code in a process of its own.

        Return None if a stop is requested or the code changes meanwhile: a module may hang.
        """
        read, write = os.pipe()
        command = [sys.executable, "-P", "-m", "nonet.cli.dev.trial_load", str(write)]
        environment = self._plan.environment
        try:
            process = await ChildProcess.start(
                command, environment, partial(self._log.add, "dev"), [write]
            )
        finally:
            os.close(write)
        with os.fdopen(read, "rb") as report:
            reading = asyncio.create_task(asyncio.to_thread(report.read))
            ending = asyncio.create_task(process.wait())
            is_given_up = False
            while not (await asyncio.wait({ending}, timeout=_POLL_SECONDS))[0]:
                if stop.requested.is_set() or changes(self._state, state_of(self._files)):
                    is_given_up = True
                    process.kill()
            text = await reading
        if is_given_up:
            return None
        if not text:
            return Loaded(f"the process that loads them ended with exit code {process.code}")
        return Loaded(**json.loads(text))

    # ---- processes ------------------------------------------------------------------------------

    def _programs(self) -> list[Program]:
        found = [daemon("sched", "task-scheduler")]
        found += [daemon(size, "task-worker", "--size", size) for size in Size]
        if names := ",".join(self._loaded.pipelines):
            found.append(daemon("rows", "task-worker", "--pipelines", names))
        if self._plan.dashboard is not None:
            found.append(self._plan.dashboard)
        return found

    async def _start_all(self) -> None:
        """Start new processes, and let the others drain."""
        former = [process for process in self._processes if not process.is_leaving]
        for process in former:
            process.is_leaving = True  # from now on its end is no surprise
        self._generation += 1
        self._failed.clear()
        for program in self._programs():
            if program.is_alone:
                self._start_after(self._gone(program), program)
            else:
                await self._start(program, self._generation)
        for process in former:
            process.stop()
        self._is_announced = False

    async def _start(self, program: Program, generation: int) -> None:
        """Start a program, unless its code has been replaced since."""
        async with self._starting:
            if generation == self._generation:
                hear = partial(self._hear, program.name)
                process = await ChildProcess.start(program.command, self._plan.environment, hear)
                self._processes[process] = program

    def _hear(self, name: str, line: str) -> None:
        if link := _LINK.search(line):
            self._log.say(f"dashboard, by a link for one login: {link[0]}")
        else:
            self._log.add(name, line)

    async def _gone(self, program: Program) -> None:
        """Wait until no process runs a program."""
        same = [process for process, its in self._processes.items() if its == program]
        await all_ended(same, self._plan.settings.grace + _END_SECONDS)

    def _start_after(self, condition: Coroutine[Any, Any, None], program: Program) -> None:
        generation = self._generation

        async def work() -> None:
            await condition
            await self._start(program, generation)

        task = asyncio.create_task(work(), name=f"start of {program.name}")
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _look_after(self) -> None:
        """Start again what has ended by itself, and say when everything is ready."""
        for process in [process for process in self._processes if process.code is not None]:
            program = self._processes.pop(process)
            code = await process.wait()  # for its last lines
            if process.is_leaving:
                continue
            if process.is_ready and code != 0:
                now = time.monotonic()
                pause = self._backoff.crashed(now - process.started_at, now)
                self._start_after(asyncio.sleep(pause), program)
                what = "it is started again"
            else:
                self._failed.add(program)
                what = "it starts again at the next save"
            self._log.say(f"{program.name} ended, exit code {code}: {what}")
        ready = {
            program
            for process, program in self._processes.items()
            if process.is_ready and not process.is_leaving
        }
        if not self._is_announced and {*self._programs()} == ready | self._failed:
            self._is_announced = True
            self._announce()

    def _announce(self) -> None:
        names = [*self._loaded.tasks, *self._loaded.pipelines]
        self._log.say(f"ready{' again' if self._has_been_ready else ''}: {_some(names)}")
        if not self._has_been_ready:
            self._has_been_ready = True
            exports = " ".join(
                f"{name}={shlex.quote(value)}" for name, value in self._plan.exports.items()
            )
            self._log.say(f"in another terminal: export {exports}")
            if self._plan.dashboard is not None:
                self._log.say(f"then, for another login: {_TASK_RUN} web link")
            self._log.say("Ctrl-C ends it")

    async def _end(self, stop: Stop) -> None:
        """Stop all processes; after a second signal, at once."""
        async with self._starting:
            self._generation += 1  # nothing is started any more
        seconds = self._plan.settings.grace + _END_SECONDS
        await stop_all([*self._processes], seconds, stop.forced)


def _names(files: Sequence[str]) -> str:
    here = f"{Path.cwd()}{os.sep}"
    return _some([file.removeprefix(here) for file in files])


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    left = len(names) - _MOST_NAMED
    return f"{shown} and {left} more" if left > 0 else shown


def _forget_bytecode(files: Sequence[str]) -> None:
    """Delete what Python has compiled of changed files.

    It compares the times of both in whole seconds, so that it would take a file that was saved
    twice within one, in the same length, for the one before.
    """
    for file in files:
        with suppress(OSError, NotImplementedError):
            os.unlink(cache_from_source(file))
