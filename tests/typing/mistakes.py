"""What is wrong is an error: each comment that ignores one is one itself if nothing is wrong."""

from __future__ import annotations

from tasks import Count, RemoveFile, add, lines

from nonet import BaseTask, Handle, Nonet, Unique, task
from nonet.testing import System, run_inline


class NoTask:
    """Has what is executed, but is none."""

    async def execute(self) -> int:
        return 1


def numbers(handle: Handle[int]) -> None:
    """Takes handles of numbers only."""


async def results(app: Nonet) -> None:
    numbers(await Count("a").schedule())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    number: int = await (await Count("a").schedule()).result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    length: str = await app.call(RemoveFile("/a"))  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    handle: Handle[str] = await app.submit(RemoveFile("/a"))  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    many: list[Handle[int]] = await app.submit_many([Count("a")])  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    text: str = await app.result(await app.submit(RemoveFile("/a")))  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(number, length, handle, many, text)


async def submissions(app: Nonet, system: System) -> None:
    await Count(1).schedule()  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await Count().schedule()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await Count("a").schedule(idd="mine")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await Count("a").schedule(id=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await add("x").schedule()  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await add().schedule()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    numbers(await lines("/a").schedule())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await add(1).schedul()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    Count("a").schedule_sync(at="now")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await Count("a").schedule("mine")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    await app.submit(NoTask())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.submit(Count)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Count("a").with_options(transaction=app)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Count("a").with_options(delay="soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await app.submit_many([Count("a")], id="one for all")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await system.submit(Count("a"), at="now")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await run_inline(Count("a"), retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@task(priority="high")  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
async def wrong() -> None:
    """Says of itself what cannot be, too."""


class Wrong(BaseTask):
    """Says of itself what cannot be."""

    priority = "high"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    dlq_eligible = "yes"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    unique = Unique.until_start  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    async def execute(self) -> str:
        return (await run_inline(RemoveFile("/a"))).result  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
