"""`PipelineTests`: the four tests that every pipeline needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

from nonet.pipelines import Changes, Pipeline, RowDatabase
from nonet.pipelines.clock import db_now
from nonet.pipelines.definition import check
from nonet.pipelines.lease import Loaded, RelatedBusy, Stale
from nonet.pipelines.leasing import Leasing
from nonet.pipelines.processing import of_row, refuse_modified
from nonet.pipelines.table_keys import key_of, table_of
from nonet.tasks.injection import Injector

_LEASED = {"lease_token": "another token", "lease_owner": "another pipeline"}


class PipelineTests:
    """Tests of one pipeline for pytest: subclass it, and say how to make a row.

    They run on a new SQLite file; set ``url`` to use another, empty database.

    Attributes:
        pipeline: the pipeline.
        url: database of the tests; empty: a SQLite file.
        overrides: replacements of dependencies of ``process``, as `Nonet.dependency_overrides`.

    Example:
        class TestSendInvoices(PipelineTests):
            pipeline = SendInvoices
            overrides = {mailer: lambda: FakeMailer()}

            async def make_row(self, session: AsyncSession) -> Invoice:
                return Invoice(status="new")
    """

    pipeline: ClassVar[type[Pipeline[Any]]]
    url: ClassVar[str] = ""
    overrides: ClassVar[Mapping[Callable[..., Any], Callable[..., Any]]] = {}

    async def make_row(self, session: AsyncSession) -> Any:
        """Return a new row that the pipeline is to process, with related rows if it has any.

        Args:
            session: in a transaction; flush it to get the keys of related rows.
        """
        raise NotImplementedError(f"{type(self).__name__}: define make_row()")

    def test_ready_rows_are_fetched_the_oldest_first(self, tmp_path: Path) -> None:
        """Due rows are fetched in order; leased ones and those of later are not."""
        self._run(tmp_path, self._fetches_ready_rows)

    def test_a_result_is_applied_and_releases_the_row(self, tmp_path: Path) -> None:
        """After process() the row and its related rows are free, and no attempt is counted."""
        self._run(tmp_path, self._applies_a_result)

    def test_a_stale_result_changes_nothing(self, tmp_path: Path) -> None:
        """If the lease was lost meanwhile, the row stays as the new owner has it."""
        self._run(tmp_path, self._discards_a_stale_result)

    def test_a_busy_related_row_is_waited_for(self, tmp_path: Path) -> None:
        """The row waits without an attempt and without a lease, and tries again soon."""
        self._run(tmp_path, self._waits_for_related_rows)

    # ---- what the tests do ----------------------------------------------------------------------

    async def _fetches_ready_rows(self, leasing: Leasing) -> None:
        keys = [await self._add(leasing, due_at=db_now(-60 + number)) for number in (2, 1)]
        await self._add(leasing, due_at=db_now(60))
        await self._add(leasing, **_LEASED, lease_expires_at=db_now(60))
        fetched = [lease.key for lease in await leasing.fetch(10, time.monotonic())]
        order = leasing.pipeline.select()._order_by_clauses
        expected = keys[::-1] if not order else fetched if set(fetched) == set(keys) else keys
        assert fetched == expected, (
            f"{leasing.pipeline}: fetched {fetched} instead of {expected}: does select() select "
            "the rows of make_row()?"
        )

    async def _applies_a_result(self, leasing: Leasing) -> None:
        key = await self._add(leasing)
        [lease] = await leasing.fetch(1, time.monotonic())
        loaded = await leasing.load(lease)
        assert isinstance(loaded, Loaded)
        changes = await self._process(leasing, loaded.row)
        await leasing.apply(lease, loaded.row, changes, 60.0, [], _nothing)
        row = await self._columns(leasing, key)
        kept = {name: row[name] for name in ("lease_token", "lease_owner", "lease_expires_at")}
        assert set(kept.values()) == {None}, f"{leasing.pipeline}: the row is still leased: {kept}"
        assert row["attempts"] == 0
        assert row["last_processed_at"] is not None

    async def _discards_a_stale_result(self, leasing: Leasing) -> None:
        key = await self._add(leasing)
        [lease] = await leasing.fetch(1, time.monotonic())
        loaded = await leasing.load(lease)
        assert isinstance(loaded, Loaded)
        changes = await self._process(leasing, loaded.row)
        await self._change(leasing, key, _LEASED)
        before = await self._columns(leasing, key)
        try:
            await leasing.apply(lease, loaded.row, changes, 60.0, [], _nothing)
        except Stale:
            pass
        else:
            raise AssertionError(f"{leasing.pipeline}: a stale result was applied")
        after = await self._columns(leasing, key)
        assert after == before, (
            f"{leasing.pipeline}: the row was changed outside of Changes: {before} → {after}"
        )
        await leasing.pipeline.on_stale(loaded.row, changes)

    async def _waits_for_related_rows(self, leasing: Leasing) -> None:
        if not leasing.pipeline.related:
            return
        key = await self._add(leasing)
        for related in leasing.pipeline.related:
            held = {**_LEASED, "lease_expires_at": db_now(60)}
            async with leasing.database.transaction() as session:
                condition = related.condition(leasing.pipeline.model, key)
                update = sa.update(table_of(related.model)).where(condition).values(held)
                found: Any = await session.execute(update)
                assert found.rowcount, (
                    f"{leasing.pipeline}: make_row() made no {related.model.__name__} for its row"
                )
        [lease] = await leasing.fetch(1, time.monotonic())
        try:
            await leasing.load(lease)
        except RelatedBusy:
            await leasing.wait(lease)
        else:
            raise AssertionError(
                f"{leasing.pipeline}: processed although a related row is leased by others: does "
                "needs_related() return True?"
            )
        row = await self._columns(leasing, key)
        assert (row["lease_owner"], row["lease_token"]) == (leasing.pipeline.name, None)
        assert row["attempts"] == 0
        assert row["waiting_since"] is not None

    # ---- helpers --------------------------------------------------------------------------------

    def _run(self, tmp_path: Path, test: Callable[[Leasing], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(self._tested(tmp_path, test))

    async def _tested(
        self, tmp_path: Path, test: Callable[[Leasing], Coroutine[Any, Any, None]]
    ) -> None:
        database = RowDatabase(self.url or f"sqlite:///{tmp_path}/rows.db")
        tested: Any = type(self.pipeline.__name__, (self.pipeline,), {"database": database})
        tested.name = self.pipeline.name or self.pipeline.__name__
        check(tested)
        metadata = table_of(self.pipeline.model).metadata
        try:
            async with database.engine.begin() as connection:
                await connection.run_sync(metadata.create_all)
            await test(Leasing(tested(), lambda table: ()))
        finally:
            async with database.engine.begin() as connection:
                await connection.run_sync(metadata.drop_all)
            await database.close()

    async def _process(self, leasing: Leasing, row: Any) -> Changes:
        process = leasing.pipeline.process
        async with (
            Injector(dict(self.overrides)) as injector,
            injector.open(of_row(process)) as arguments,
        ):
            changes = await process(row, **arguments)
        refuse_modified(row)
        return changes or Changes()

    async def _add(self, leasing: Leasing, **columns: Any) -> Any:
        async with leasing.database.transaction() as session:
            row = await self.make_row(session)
            session.add(row)
            await session.flush()
            key = sa.inspect(row).identity[0]
        await self._change(leasing, key, columns)
        return key

    async def _change(self, leasing: Leasing, key: Any, columns: Mapping[str, Any]) -> None:
        if columns:
            table = leasing.table
            async with leasing.database.transaction() as session:
                await session.execute(
                    sa.update(table).where(key_of(table) == key).values(dict(columns))
                )

    async def _columns(self, leasing: Leasing, key: Any) -> dict[str, Any]:
        query = sa.select(leasing.table).where(key_of(leasing.table) == key)
        async with leasing.database.transaction() as session:
            return dict((await session.execute(query)).one()._mapping)


async def _nothing(session: AsyncSession) -> None:
    """Do nothing within the transaction."""
