"""Random histories of a machine: how long they are, and which faults they catch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyFailure, FlakyStrategyDefinition
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from hypothesis.strategies import SearchStrategy
from servers import RedisServer
from stores.machines.machine import Violation
from stores.machines.site import Fault


class Rules(RuleBasedStateMachine):
    """What can happen to a machine, in any order.

    Attributes:
        steps: how many steps all histories have taken.
        caught: the step in which the first violation was noticed.
        violation: the first one.
        sites: where the machines of a run work.
    """

    steps: ClassVar[int] = 0
    caught: ClassVar[int | None] = None
    violation: ClassVar[Violation | None] = None
    sites: ClassVar[tuple[Any, ...]] = ()
    is_sound = False
    machine: Any

    def play(self, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Take one step; after a violation the machine is not played to its end."""
        Rules.steps += 1
        self.is_sound = False
        try:
            answer = step(*args, **options)
        except Violation as error:
            if Rules.caught is None:
                Rules.caught, Rules.violation = Rules.steps, error
            raise
        self.is_sound = True
        return answer

    def teardown(self) -> None:
        if self.is_sound:
            self.play(self.machine.finish)


def step(name: str, **drawn: SearchStrategy[Any]) -> Any:
    """A rule that takes one step of the machine, with these arguments."""

    def play(self: Rules, **options: Any) -> None:
        self.play(getattr(self.machine, name), **options)

    play.__name__ = name
    return rule(**drawn)(play)


def each(faults: Sequence[Fault], quick: Collection[str]) -> pytest.MarkDecorator:
    """A test for each fault; `make test` has those that are `quick` to notice."""
    marks = [() if str(fault) in quick else pytest.mark.soak for fault in faults]
    cases = [pytest.param(one, marks=mark) for one, mark in zip(faults, marks, strict=True)]
    return pytest.mark.parametrize("fault", cases, ids=str)


@dataclass(frozen=True)
class Histories:
    """Random histories of one kind of rules.

    Args:
        rules: what can happen.
        sites: makes the sites of a run, with these faults in their scripts.
        length: steps of a history.
    """

    rules: type[Rules]
    sites: Callable[[redis.Redis, Sequence[Fault]], tuple[Any, ...]]
    length: int

    def run(
        self, server: RedisServer, number: int, examples: int, *faults: Fault, shrink: bool = True
    ) -> None:
        """Play histories from one seed; raises what was violated, with the shortest history."""
        with server.client() as client:
            rules = type("Played", (self.rules,), {"sites": self.sites(client, faults)})
            seed(number)(rules)
            phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
            options = settings(
                max_examples=examples,
                stateful_step_count=self.length,
                deadline=None,
                database=None,
                phases=phases,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            )
            try:
                run_state_machine_as_test(rules, settings=options)
            except FlakyStrategyDefinition:
                if Rules.caught is not None and Rules.violation is not None:
                    raise Rules.violation from None
                # Where a step took long, the virtual clock follows that of the server, and what can
                # happen next differs from the last time. Hypothesis then ends the run.
                print(f"seed {number}: ended early, the machine was too busy", flush=True)

    def run_seeds(self, server: RedisServer, numbers: Sequence[int], examples: int) -> int:
        """Play histories from each seed, and print how many steps they took; returns all steps."""
        first, Rules.caught = Rules.steps, None
        for number in numbers:
            start, before = time.monotonic(), Rules.steps
            self.run(server, number, examples)
            seconds = time.monotonic() - start
            print(f"seed {number}: {Rules.steps - before} steps in {seconds:.1f} s", flush=True)
        return Rules.steps - first

    def steps_to_catch(self, server: RedisServer, fault: Fault, most: int) -> int | None:
        """How many steps it takes to notice a fault, also printed; None: more than `most`."""
        before, Rules.caught = Rules.steps, None
        number = 0
        while Rules.caught is None and Rules.steps - before < most:
            number += 1
            try:
                self.run(server, number, 50, fault, shrink=False)
            # Hypothesis plays a failure again, to be sure of it.
            except (Violation, FlakyFailure, FlakyStrategyDefinition):
                break
        caught = None if Rules.caught is None else Rules.caught - before
        print(f"{caught or 'not'!s:>6}  {fault}", flush=True)
        return caught
