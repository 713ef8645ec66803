"""`run_inline`: one task in a test, without a server."""

from __future__ import annotations

import asyncio
import re
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from nonet import (
    BaseTask,
    CallbackSpawner,
    ChildResult,
    Depends,
    ExponentialBackoff,
    InvalidArgumentsError,
    LeaseLostError,
    NotBoundError,
    RegistrationError,
    ResultUnavailable,
    StopRetrying,
    context,
    spawn_with_callback,
)
from nonet.testing import run_inline

seen: ContextVar[str] = ContextVar("seen", default="")


def database() -> str:
    raise ConnectionError("there is no database here")


@dataclass
class Note(BaseTask):
    text: str

    async def execute(self) -> None: ...


@dataclass
class Remove(BaseTask):
    name: str

    async def execute(self, db: Annotated[str, Depends(database)]) -> str:
        return f"{self.name} from {db}"


async def test_overrides_replace_dependencies() -> None:
    run = await run_inline(Remove("a"), overrides={database: lambda: "memory"})
    assert (run.result, run.attempts, run.error) == ("a from memory", 1, None)


async def test_an_error_of_a_dependency_is_raised() -> None:
    with pytest.raises(ConnectionError, match="no database here"):
        await run_inline(Remove("a"))


@dataclass
class At(BaseTask):
    instant: datetime
    pattern: re.Pattern[str]

    async def execute(self) -> bool:
        return self == At(self.instant, re.compile("a.*"))


async def test_arguments_of_any_type_are_passed() -> None:
    assert (await run_inline(At(datetime.now(UTC), re.compile("a.*")))).result


class Told(BaseTask):
    async def execute(self) -> tuple[Any, ...]:
        known = context()
        known.ensure_lease()
        return known.id, known.attempt, dict(known.labels), known.saved, known.name


async def test_the_context_has_what_the_test_passes() -> None:
    run = await run_inline(Told(), id="mine", attempt=3, labels={"vo": "lhcb"}, saved=[7])
    assert run.result == ("mine", 3, {"vo": "lhcb"}, [7], "test_inline:Told")


async def test_no_context_is_left_behind() -> None:
    class Sets(BaseTask):
        async def execute(self) -> None:
            seen.set("by the task")

    await run_inline(Sets())
    assert seen.get() == ""
    with pytest.raises(LookupError):
        context()
    with pytest.raises(NotBoundError):
        await Note("x").schedule()


@dataclass
class Chain(BaseTask):
    fails: bool = False

    async def execute(self) -> None:
        context().after_commit(Note("after"), labels={"a": 1})
        await Note("at once").schedule(id="n1", at_time=datetime(2030, 1, 1, tzinfo=UTC))
        await context().checkpoint({"done": 1})
        if self.fails:
            raise ValueError("broken")


async def test_submissions_and_checkpoints_are_noted() -> None:
    run = await run_inline(Chain())
    assert [(item.task, item.labels) for item in run.submitted] == [
        (Note("at once"), {}),
        (Note("after"), {"a": 1}),
    ]
    assert run.submitted[0].id == "n1"
    assert run.submitted[0].at_time == datetime(2030, 1, 1, tzinfo=UTC)
    assert run.saved == {"done": 1}


async def test_a_failed_attempt_commits_nothing() -> None:
    run = await run_inline(Chain(fails=True), check=False)
    assert isinstance(run.error, ValueError)
    assert [item.task for item in run.submitted] == [Note("at once")]
    assert run.saved == {"done": 1}


class Fails(BaseTask):
    retry_policy = ExponentialBackoff(base_delay_seconds=10, max_retries=2)

    async def execute(self) -> int:
        if context().attempt < 3:
            await context().checkpoint(context().attempt)
            raise ValueError(f"attempt {context().attempt}, saved {context().saved}")
        return context().attempt


async def test_retries_follow_the_policy_without_waiting() -> None:
    """Each attempt has its number and the checkpoint of the one before."""
    run = await run_inline(Fails(), retry=True)
    assert (run.result, run.attempts) == (3, 3)
    assert [str(error) for error in run.errors] == ["attempt 1, saved None", "attempt 2, saved 1"]
    seconds = [round(wait / timedelta(seconds=1)) for wait in run.waits]
    assert seconds == [10, 20]


async def test_the_last_error_is_raised_when_the_policy_gives_up() -> None:
    class Stops(BaseTask):
        retry_policy = ExponentialBackoff(max_retries=5)

        async def execute(self) -> None:
            raise StopRetrying("hopeless")

    with pytest.raises(ValueError, match="attempt 1"):
        await run_inline(Fails())
    with pytest.raises(StopRetrying, match="hopeless"):
        await run_inline(Stops(), retry=True)


async def test_a_plain_function_runs_in_a_thread() -> None:
    class Plain(BaseTask):
        def execute(self) -> bool:
            context().checkpoint_from_thread("half")
            return threading.current_thread() is threading.main_thread()

    run = await run_inline(Plain())
    assert (run.result, run.saved) == (False, "half")


async def test_a_checkpoint_that_would_block_the_loop_is_refused() -> None:
    class Blocks(BaseTask):
        async def execute(self) -> None:
            context().checkpoint_from_thread("half")

    with pytest.raises(RuntimeError, match=r"await checkpoint\(\) instead"):
        await run_inline(Blocks())


async def test_groups_are_noted() -> None:
    """A spawner that is injected keeps what it is given; a callback reads what the test says."""

    class Spawns(BaseTask):
        async def execute(self, spawn: CallbackSpawner) -> str:
            return await spawn([Note("a"), Note("b")], Note("all"), on_failure=Note("oh"))

    class Reads(BaseTask):
        async def execute(self) -> list[Any]:
            return [child.value for child in await context().group_results()]

    run = await run_inline(Spawns())
    assert run.groups[0].children == (Note("a"), Note("b"))
    assert (run.groups[0].callback, run.groups[0].on_failure) == (Note("all"), Note("oh"))
    callback = await run_inline(Reads(), group_results=[ChildResult("c1", "done", 5)])
    assert callback.result == [5]


class Collects(BaseTask):
    async def execute(self) -> list[Any]:
        return [(one.state, one.value or one.error) for one in await context().inputs()]


@dataclass
class Maps(BaseTask):
    names: list[Any]
    fails: bool = False

    async def execute(self) -> str:
        steps = [context().add_step(Note(name), delay=1) for name in self.names]
        context().add_step(Remove.given(name=steps[0]), after=steps)
        if self.fails:
            raise ValueError("broken")
        return context().workflow


async def test_a_step_reads_its_inputs() -> None:
    inputs = [ChildResult("w:0", "done", 5), ChildResult("w:1", "dead", error="broken")]
    run = await run_inline(Collects(), inputs=inputs)
    assert run.result == [("done", 5), ("dead", "broken")]
    assert (await run_inline(Collects(), inputs=[])).result == []


async def test_added_steps_are_noted() -> None:
    run = await run_inline(Maps(["a", "b"]), inputs=[], id="w:3")
    assert run.result
    assert [str(one) for one in run.submitted] == [
        "Note(text='a')",
        "Note(text='b')",
        "Remove(name=<step 3.0: Note>)",
    ]
    assert run.submitted[0].task == Note("a")
    failed = await run_inline(Maps(["a"], fails=True), inputs=[], check=False)
    assert isinstance(failed.error, ValueError) and failed.submitted == []


async def test_a_lost_lease_fails_the_run() -> None:
    class Goes(BaseTask):
        async def execute(self) -> None:
            context().lose_lease("taken by the test")

    with pytest.raises(LeaseLostError, match="taken by the test"):
        await run_inline(Goes())


async def test_a_cancelled_test_ends() -> None:
    class Sleeps(BaseTask):
        async def execute(self) -> None:
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await run_inline(Sleeps(), check=False, retry=True)


@dataclass
class Submits(BaseTask):
    """Submits a note as a function says that the test has left in a class variable."""

    how = staticmethod(lambda task: task.schedule())

    async def execute(self) -> None:
        if (made := type(self).how(Note("a"))) is not None:
            await made


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"at_time": 3}, "at_time"),
    ({"id": 3}, "id"),
    ({"id": "a b"}, "without blanks"),
    ({"labels": [1]}, "labels"),
    ({"labels": {"priority": "hi"}}, "hi"),
]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        *OPTIONS,
        ({"unique": "x"}, r"must be a nonet\.Unique"),
        ({"start_by": "x"}, "start_by: must be .* not 'x'"),
        ({"transaction": 3}, "the class is not durable"),
    ],
    ids=str,
)
async def test_a_submission_that_a_system_refuses_is_refused(
    options: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of the client, by schedule() and by after_commit(), and it is not noted."""
    monkeypatch.setattr(Submits, "how", lambda note: note.schedule(**options))
    run = await run_inline(Submits(), check=False)
    assert isinstance(run.error, InvalidArgumentsError) and re.search(problem, str(run.error))
    assert run.submitted == []
    if (options, problem) in OPTIONS:
        monkeypatch.setattr(Submits, "how", lambda note: context().after_commit(note, **options))
        with pytest.raises(InvalidArgumentsError, match=problem):
            await run_inline(Submits())


class Works(BaseTask):
    encrypted = True
    durable = True

    async def execute(self) -> Path:
        (context().workdir / "part").write_text("of the work")
        return context().workdir


async def test_an_encrypted_task_needs_no_key_and_its_directory_is_deleted() -> None:
    run = await run_inline(Works())
    assert run.result.is_absolute() and not run.result.exists()


async def test_a_durable_task_may_have_any_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test passes a fake one: nothing is written."""
    monkeypatch.setattr(Submits, "how", lambda _: Works().schedule(transaction=object()))
    (submitted,) = (await run_inline(Submits())).submitted
    assert isinstance(submitted.task, Works)


async def following(note: Note) -> None:
    await (await note.schedule()).result()


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        (following, "comes from run_inline"),
        (lambda note: spawn_with_callback([note], note), "with CallbackSpawner"),
    ],
)
async def test_an_operation_that_needs_a_system_is_refused_with_the_way_out(
    how: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Submits, "how", how)
    with pytest.raises(NotBoundError, match=problem):
        await run_inline(Submits())


@pytest.mark.parametrize(
    ("task", "options", "error", "problem"),
    [
        (Told(), {"id": "a b"}, InvalidArgumentsError, "without blanks"),
        (Told(), {"labels": {"size": "huge"}}, InvalidArgumentsError, "huge"),
        *((Told(), {"attempt": n}, ValueError, "a whole number from 1") for n in (0, -1, "1")),
        (Note(["no text"]), {}, InvalidArgumentsError, "text"),  # type: ignore[arg-type]
        (BaseTask(), {}, RegistrationError, "no execute"),
        (Told, {}, TypeError, r"run_inline: Told is a class: pass an instance, Told\("),
        (3, {}, TypeError, "run_inline: 3 is not a task"),
        (Collects(), {}, LookupError, "is not a step of a workflow"),
        (Maps(["a"]), {}, LookupError, "is not a step of a workflow"),
        (Maps([7]), {"inputs": []}, InvalidArgumentsError, "text"),
    ],
)
async def test_a_task_that_a_system_could_not_run_is_refused(
    task: Any, options: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        await run_inline(task, **options)


@dataclass
class Gives(BaseTask):
    """Returns what the test has left in a class variable."""

    value: ClassVar[Any] = None

    async def execute(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "is done, but its result cannot be stored: "),
        ("a" * 300_000, "is done, but its result of 3000.. bytes exceeds the limit of 262144"),
    ],
    ids=["kind", "size"],
)
async def test_a_result_that_cannot_be_kept_is_refused(
    value: Any, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gives, "value", value)
    with pytest.raises(ResultUnavailable, match=problem):
        await run_inline(Gives(), check=False)
