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


async def test_dependencies_are_replaced() -> None:
    """The task gets the replacement, and the result comes back."""
    run = await run_inline(Remove("a"), overrides={database: lambda: "memory"})
    assert (run.result, run.attempts, run.error) == ("a from memory", 1, None)


@dataclass
class Confided(BaseTask):
    text: str
    encrypted = True

    async def execute(self) -> str:
        return self.text


async def test_encrypted_tasks_need_no_key() -> None:
    """Nothing is stored; a submission without a key would be refused elsewhere."""
    assert (await run_inline(Confided("hidden"))).result == "hidden"


async def test_the_error_of_a_dependency_is_the_error_of_the_task() -> None:
    """What is not replaced is called."""
    with pytest.raises(ConnectionError, match="no database here"):
        await run_inline(Remove("a"))


@dataclass
class At(BaseTask):
    instant: datetime
    pattern: re.Pattern[str]

    async def execute(self) -> bool:
        return self == At(self.instant, re.compile("a.*"))


async def test_arguments_of_any_type_travel() -> None:
    """Those that have no type of their own in a message arrive, too."""
    assert (await run_inline(At(datetime.now(UTC), re.compile("a.*")))).result


class Told(BaseTask):
    async def execute(self) -> tuple[Any, ...]:
        known = context()
        known.ensure_lease()
        return known.id, known.attempt, dict(known.labels), known.saved, known.name


async def test_the_context_tells_what_the_test_says() -> None:
    """Id, attempt, labels and checkpoint of the context come from the call."""
    run = await run_inline(Told(), id="mine", attempt=3, labels={"vo": "lhcb"}, saved=[7])
    assert run.result == ("mine", 3, {"vo": "lhcb"}, [7], "test_inline:Told")


async def test_no_context_is_left_behind() -> None:
    """Neither the context nor variables that a task sets reach the test."""

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


class Works(BaseTask):
    async def execute(self) -> Path:
        (context().workdir / "part").write_text("of the work")
        return context().workdir


def exists(path: Path) -> bool:
    return path.exists()


async def test_no_directory_is_left_behind() -> None:
    """That of an attempt is deleted at its end."""
    run = await run_inline(Works())
    assert run.result.is_absolute() and not exists(run.result)


async def test_what_is_submitted_is_noted() -> None:
    """By schedule() and, once the task has succeeded, by after_commit(); a checkpoint is kept."""
    run = await run_inline(Chain())
    assert [(item.task, item.labels) for item in run.submitted] == [
        (Note("at once"), {}),
        (Note("after"), {"a": 1}),
    ]
    assert run.submitted[0].id == "n1"
    assert run.submitted[0].at_time == datetime(2030, 1, 1, tzinfo=UTC)
    assert run.saved == {"done": 1}


async def test_a_failed_attempt_commits_nothing() -> None:
    """What after_commit() was given is not submitted; what was saved stays."""
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


async def test_retries_follow_the_policy_at_once() -> None:
    """Each attempt has its number and the checkpoint of the one before; nobody waits."""
    run = await run_inline(Fails(), retry=True)
    assert (run.result, run.attempts) == (3, 3)
    assert [str(error) for error in run.errors] == ["attempt 1, saved None", "attempt 2, saved 1"]
    seconds = [round(wait / timedelta(seconds=1)) for wait in run.waits]
    assert seconds == [10, 20]


async def test_the_last_error_is_raised_when_the_policy_gives_up() -> None:
    """As StopRetrying makes it do at once, too."""

    class Stops(BaseTask):
        retry_policy = ExponentialBackoff(max_retries=5)

        async def execute(self) -> None:
            raise StopRetrying("hopeless")

    with pytest.raises(ValueError, match="attempt 1"):
        await run_inline(Fails())
    with pytest.raises(StopRetrying, match="hopeless"):
        await run_inline(Stops(), retry=True)


async def test_a_plain_function_runs_in_a_thread() -> None:
    """And may save from there."""

    class Plain(BaseTask):
        def execute(self) -> bool:
            context().checkpoint_from_thread("half")
            return threading.current_thread() is threading.main_thread()

    run = await run_inline(Plain())
    assert (run.result, run.saved) == (False, "half")


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
    names: list[str]
    fails: bool = False

    async def execute(self) -> str:
        steps = [context().add_step(Note(name), delay=1) for name in self.names]
        context().add_step(Remove.given(name=steps[0]), after=steps)
        if self.fails:
            raise ValueError("broken")
        return context().workflow


async def test_a_step_reads_its_inputs() -> None:
    """It gets what the test says, in this order."""
    inputs = [ChildResult("w:0", "done", 5), ChildResult("w:1", "dead", error="broken")]
    run = await run_inline(Collects(), inputs=inputs)
    assert run.result == [("done", 5), ("dead", "broken")]
    assert (await run_inline(Collects(), inputs=[])).result == []


async def test_added_steps_are_noted() -> None:
    """With their arguments; an attempt that fails adds none."""
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


async def test_only_a_step_has_inputs() -> None:
    """Without inputs= the task is none, as outside of a workflow."""
    for task in (Collects(), Maps(["a"])):
        with pytest.raises(LookupError, match="is not a step of a workflow"):
            await run_inline(task)


async def test_added_steps_are_checked() -> None:
    """What could not be added to a workflow cannot be added here."""

    class Adds(BaseTask):
        async def execute(self) -> None:
            context().add_step(Note(7))  # type: ignore[arg-type]

    with pytest.raises(InvalidArgumentsError, match="text"):
        await run_inline(Adds(), inputs=[])


async def test_arguments_travel_first() -> None:
    """What could not be submitted cannot be run inline."""
    with pytest.raises(InvalidArgumentsError, match="text"):
        await run_inline(Note(["no text"]))  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="no execute"):
        await run_inline(BaseTask())


async def test_a_lost_lease_is_noticed() -> None:
    """A test may take the lease away: the attempt fails although it returns."""

    class Goes(BaseTask):
        async def execute(self) -> None:
            context().lose_lease("taken by the test")

    with pytest.raises(LeaseLostError, match="taken by the test"):
        await run_inline(Goes())


async def test_a_cancelled_test_ends() -> None:
    """Cancelling whoever waits for the run cancels the task and is not swallowed."""

    class Sleeps(BaseTask):
        async def execute(self) -> None:
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await run_inline(Sleeps(), check=False, retry=True)


class Follows(BaseTask):
    async def execute(self) -> int:
        handle = await Note("a").schedule()
        await handle.result()
        return 1


async def test_what_is_only_noted_has_no_result() -> None:
    """Who awaits it is told so at once, and where it would run."""
    with pytest.raises(NotBoundError, match="comes from run_inline"):
        await run_inline(Follows())


class Spawns(BaseTask):
    async def execute(self) -> str:
        return await spawn_with_callback([Note("a")], Note("b"))


async def test_a_group_without_an_application_is_refused_with_the_way_out() -> None:
    """The message names what `run_inline` can note."""
    with pytest.raises(NotBoundError, match="with CallbackSpawner"):
        await run_inline(Spawns())


@dataclass
class Keeps(BaseTask):
    """A durable task."""

    durable = True

    async def execute(self) -> None: ...


@dataclass
class Submits(BaseTask):
    """Submits a note as a function says that the test has left in a class variable."""

    how = staticmethod(lambda task: task.schedule())

    async def execute(self) -> None:
        made = type(self).how(Note("a"))
        if not isinstance(made, str):
            await made


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"at_time": 3}, "at_time"),
    ({"id": 3}, "id"),
    ({"id": "a b"}, "without blanks"),
    ({"labels": [1]}, "labels"),
    ({"labels": {"priority": "hi"}}, "hi"),
]
OF_SCHEDULE: list[tuple[dict[str, Any], str]] = [
    *OPTIONS,
    ({"unique": "x"}, r"must be a nonet\.Unique"),
    ({"start_by": "x"}, "start_by: must be .* not 'x'"),
    ({"transaction": 3}, "the class is not durable"),
]


@pytest.mark.parametrize(("options", "problem"), OF_SCHEDULE, ids=str)
async def test_what_a_system_refuses_to_submit_is_refused(
    options: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of the client, and it is not noted."""
    monkeypatch.setattr(Submits, "how", lambda note: note.schedule(**options))
    run = await run_inline(Submits(), check=False)
    assert isinstance(run.error, InvalidArgumentsError) and re.search(problem, str(run.error))
    assert run.submitted == []


@pytest.mark.parametrize(("options", "problem"), OPTIONS, ids=str)
async def test_what_after_commit_refuses_is_refused(
    options: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of the client, when it is called."""
    monkeypatch.setattr(Submits, "how", lambda note: context().after_commit(note, **options))
    with pytest.raises(InvalidArgumentsError, match=problem):
        await run_inline(Submits())


async def test_a_durable_task_may_have_any_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test gives a fake one: nothing is written."""
    monkeypatch.setattr(Submits, "how", lambda _: Keeps().schedule(transaction=object()))
    assert [item.task for item in (await run_inline(Submits())).submitted] == [Keeps()]


@dataclass
class Opens(BaseTask):
    """Opens a group with the options that the test has left in a class variable."""

    options: ClassVar[dict[str, Any]] = {}

    async def execute(self, spawn: CallbackSpawner) -> str:
        return await spawn(**{"children": [Note("a")], "callback": Note("b"), **self.options})


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"ttl_seconds": -1}, ValueError, "ttl_seconds=-1"),
        ({"policy": "any"}, ValueError, "policy='any'"),
        ({"children": [Note("a"), 3]}, TypeError, r"children\[1\]: 3 is not a task"),
        ({"callback": Note}, TypeError, "callback: Note is a class"),
        ({"on_failure": Note(7)}, InvalidArgumentsError, "text"),  # type: ignore[arg-type]
    ],
    ids=str,
)
async def test_a_group_that_a_system_refuses_is_refused(
    options: dict[str, Any], error: type[Exception], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of the client, and it is not noted."""
    monkeypatch.setattr(Opens, "options", options)
    run = await run_inline(Opens(), check=False)
    assert isinstance(run.error, error) and re.search(problem, str(run.error))
    assert run.groups == []


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
    """As whoever awaits it from a system is told, also of a run that is not checked."""
    monkeypatch.setattr(Gives, "value", value)
    with pytest.raises(ResultUnavailable, match=problem):
        await run_inline(Gives(), check=False)


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"id": "a b"}, "without blanks"), ({"labels": {"size": "huge"}}, "huge")],
)
async def test_what_could_not_be_submitted_is_not_run(
    options: dict[str, Any], problem: str
) -> None:
    """The task itself is checked with its id and labels."""
    with pytest.raises(InvalidArgumentsError, match=problem):
        await run_inline(Told(), **options)


@pytest.mark.parametrize("attempt", [0, -1, "1"])
async def test_a_number_that_no_attempt_has_is_refused(attempt: Any) -> None:
    """They count from 1."""
    with pytest.raises(ValueError, match=rf"attempt={attempt!r} must be a whole number from 1"):
        await run_inline(Told(), attempt=attempt)


async def test_what_is_no_task_is_refused_with_the_next_step() -> None:
    """A class is told to be made an instance of."""
    with pytest.raises(TypeError, match=r"run_inline: Told is a class: pass an instance, Told\("):
        await run_inline(Told)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="run_inline: 3 is not a task"):
        await run_inline(3)  # type: ignore[arg-type]
