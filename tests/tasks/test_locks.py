"""What tasks declare about locks, and the lines in which that reaches the scripts."""

import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import PurePosixPath
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from nonet.base.errors import RegistrationError
from nonet.tasks.locks import (
    DEFAULT_TTL_MS,
    JOB,
    TASK,
    TRANSFORMATION,
    BaseLock,
    ConcurrencyLimiter,
    ExclusiveRWLock,
    LockedObjectType,
    MutexLock,
    RateLimiter,
    SharedRWLock,
    encode_locks,
    leased_ttl_ms,
    rate_limited,
    register_locked_object_type,
)

KINDS = [MutexLock, ExclusiveRWLock, SharedRWLock, RateLimiter, ConcurrencyLimiter]
# As lib/locks.lua reads a line.
LINE = re.compile(r"[A-Z]\|[^|\n]*\|\d*\|\d*\|\d*\|\d*")
YEAR = 366 * 24 * 3600
# Mostly of what separates the parts of a name, and of what escapes it.
KEYS = (
    st.text(st.sampled_from("ab:%|3A\n"), max_size=4)
    | st.text(st.characters(exclude_categories=()), max_size=10)
    | st.integers()
)


class Action(StrEnum):
    REMOVE = "RemoveFile"


class Plain(Enum):
    RemoveFile = 1


class Number(IntEnum):
    SEVEN = 7


class Tight(RateLimiter):
    limit = 3
    window_seconds = 0.5


@pytest.mark.parametrize(
    ("lock", "line"),
    [
        (MutexLock(JOB, 7), "M|lock:mutex:job:7||||"),
        (MutexLock(JOB, 7, ttl_ms=DEFAULT_TTL_MS), "M|lock:mutex:job:7||||"),
        (MutexLock(JOB, 7, ttl_ms=1500), "M|lock:mutex:job:7|1500|||"),
        (ExclusiveRWLock(TASK, "a"), "W|lock:rw:task:a||||"),
        (SharedRWLock(TRANSFORMATION, "a"), "R|lock:rw:transformation:a||||"),
        (ConcurrencyLimiter(TASK, "T"), "C|limiter:conc:task:T||||"),
        (ConcurrencyLimiter(TASK, "T", limit=2), "C|limiter:conc:task:T||2||"),
        (ConcurrencyLimiter(JOB, "a", Plain.RemoveFile), "C|limiter:conc:job:a:RemoveFile||||"),
        (MutexLock(JOB, Number.SEVEN), "M|lock:mutex:job:7||||"),
        (
            ConcurrencyLimiter(JOB, "CERN-DST", Action.REMOVE, limit=2, ttl_ms=100),
            "C|limiter:conc:job:CERN-DST:RemoveFile|100|2||",
        ),
        (RateLimiter(TASK, "T"), "L|limiter:rate:task:T||||1"),
        (RateLimiter(TASK, "T", n_items=7), "L|limiter:rate:task:T||||7"),
        (
            RateLimiter(TASK, "T", limit=3, window_seconds=YEAR),
            "L|limiter:rate:task:T||3|31622400000|1",
        ),
        (Tight(TASK, "T"), "L|limiter:rate:task:T||3|500|1"),
    ],
)
def test_each_lock_is_one_line_of_the_script(lock: BaseLock, line: str) -> None:
    assert lock.line() == line
    assert encode_locks([lock]) == line


CONC = "C|limiter:conc:job:1"
RATE = "L|limiter:rate:job:1"


@pytest.mark.parametrize(
    ("one", "other", "line"),
    [
        (ConcurrencyLimiter(JOB, 1, limit=5), ConcurrencyLimiter(JOB, 1, limit=2), f"{CONC}||2||"),
        (ConcurrencyLimiter(JOB, 1), ConcurrencyLimiter(JOB, 1, limit=2), f"{CONC}||2||"),
        (
            RateLimiter(JOB, 1, limit=9, window_seconds=1, n_items=2),
            RateLimiter(JOB, 1, limit=7, window_seconds=1, n_items=5),
            f"{RATE}||7|1000|5",
        ),
        (
            RateLimiter(JOB, 1, limit=9, window_seconds=1),
            RateLimiter(JOB, 1, n_items=3),
            f"{RATE}||9|1000|3",
        ),
        (
            MutexLock(JOB, 1, ttl_ms=9000),
            MutexLock(JOB, 1, ttl_ms=10000),
            "M|lock:mutex:job:1|10000|||",
        ),
        (MutexLock(JOB, 1, ttl_ms=500), MutexLock(JOB, "1"), "M|lock:mutex:job:1||||"),
        (SharedRWLock(JOB, 1), ExclusiveRWLock(JOB, 1), "W|lock:rw:job:1||||"),
        (SharedRWLock(JOB, 1, ttl_ms=45_000), ExclusiveRWLock(JOB, 1), "W|lock:rw:job:1|45000|||"),
    ],
)
def test_the_same_lock_twice_has_the_stricter_limits(
    one: BaseLock, other: BaseLock, line: str
) -> None:
    assert encode_locks([one, other]) == line
    assert encode_locks([other, one]) == line


def test_one_rate_limiter_has_one_window() -> None:
    """Two windows cannot both be kept by one counter: the error names both."""
    locks = [
        RateLimiter(JOB, 1, limit=5, window_seconds=60),
        RateLimiter(JOB, 1, limit=2, window_seconds=0.5),
    ]
    with pytest.raises(ValueError, match=r"limiter:rate:job:1 has .* 5 in 60 s and 2 in 0\.5 s"):
        encode_locks(locks)


@pytest.mark.parametrize(
    ("locks", "lines"),
    [
        ([], ""),
        ([MutexLock(JOB, 1), MutexLock(JOB, 1)], "M|lock:mutex:job:1||||"),
        ([SharedRWLock(JOB, 1), SharedRWLock(JOB, 1)], "R|lock:rw:job:1||||"),
        (
            [MutexLock(JOB, 1), SharedRWLock(JOB, 1), MutexLock(TASK, 1)],
            "M|lock:mutex:job:1||||\nR|lock:rw:job:1||||\nM|lock:mutex:task:1||||",
        ),
        (
            [RateLimiter(TASK, "T"), MutexLock(JOB, 1), ConcurrencyLimiter(TASK, "T", limit=1)],
            "L|limiter:rate:task:T||||1\nM|lock:mutex:job:1||||\nC|limiter:conc:task:T||1||",
        ),
    ],
)
def test_a_lock_that_is_declared_twice_is_taken_once(locks: list[BaseLock], lines: str) -> None:
    """The same lock twice counts once; shared and exclusive together are exclusive."""
    assert encode_locks(locks) == lines


def test_an_interactive_run_skips_limiters() -> None:
    """Only structural locks protect data; limiters protect others from load."""
    locks = [MutexLock(JOB, 1), ConcurrencyLimiter(TASK, "T", limit=1), Tight(TASK, "T")]
    assert encode_locks(locks, interactive=True) == "M|lock:mutex:job:1||||"


@given(st.lists(KEYS, min_size=1, max_size=3), st.lists(KEYS, min_size=1, max_size=3))
def test_names_are_equal_only_for_equal_keys(one: list[object], other: list[object]) -> None:
    same = [str(key) for key in one] == [str(key) for key in other]
    assert (MutexLock(JOB, *one).redis_key == MutexLock(JOB, *other).redis_key) is same


@given(st.sampled_from(KINDS), st.lists(KEYS, min_size=1, max_size=3), st.integers(100, 10**9))
def test_a_line_is_ascii_with_six_fields_whatever_the_keys_are(
    kind: type[BaseLock], keys: list[object], ttl_ms: int
) -> None:
    lock = kind(JOB, *keys, ttl_ms=ttl_ms)
    if isinstance(lock, RateLimiter | ConcurrencyLimiter):
        lock.limit = 5
    if isinstance(lock, RateLimiter):
        lock.window_seconds = 1.5
    line = lock.line()
    assert line is not None
    assert line.isascii()
    assert LINE.fullmatch(line)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (0.5, "0.5"),
        (Decimal("1.20"), "1.20"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/lhcb/a b"), "/lhcb/a%20b"),
        (date(2026, 7, 1), "2026-07-01"),
        (datetime(2026, 7, 1, 12, tzinfo=UTC), "2026-07-01%2012%3A00%3A00+00%3A00"),
        (Number.SEVEN, "7"),
        (Plain.RemoveFile, "RemoveFile"),
    ],
)
def test_a_key_with_the_same_text_in_every_process_names_a_lock(key: object, name: str) -> None:
    assert MutexLock(JOB, key).redis_key == f"lock:mutex:job:{name}"
    assert MutexLock(JOB, 1, key).redis_key == f"lock:mutex:job:1:{name}"


@pytest.mark.parametrize("key", [None, b"a", ["a"], ("a",), object(), str])
def test_a_key_whose_text_may_differ_between_processes_is_refused(key: object) -> None:
    reason = f"MutexLock: a key of type {type(key).__name__} cannot name a lock"
    with pytest.raises(ValueError, match=reason):
        MutexLock(JOB, key)
    with pytest.raises(ValueError, match=reason):
        MutexLock(JOB, 1, key)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: MutexLock(JOB, 1, ttl_ms=99), "ttl_ms=99"),
        (lambda: MutexLock(JOB, 1, ttl_ms=1500.5), "ttl_ms=1500.5 must be a whole number"),
        (
            lambda: MutexLock(JOB, 1, ttl_ms=2**31),
            r"ttl_ms=2147483648 must .* 2147483647 \(24 days",
        ),
        (lambda: ConcurrencyLimiter(TASK, "T", limit=0), r"Limiter\('task', 'T'\): limit=0"),
        (lambda: ConcurrencyLimiter(TASK, "T", limit=2.5), "limit=2.5 must be a whole number"),
        (lambda: ConcurrencyLimiter(TASK, "T", limit=True), "limit=True must be a whole number"),
        (lambda: RateLimiter(TASK, "T", limit=1, window_seconds="6"), "='6' must be a number"),
        (lambda: RateLimiter(TASK, "T", limit=-1, window_seconds=1), "limit=-1"),
        (lambda: RateLimiter(TASK, "T", limit=1), "needs window_seconds"),
        (lambda: RateLimiter(TASK, "T", limit=1, window_seconds=0), "window_seconds=0"),
        (lambda: RateLimiter(TASK, "T", limit=1, window_seconds=1e-4), "window_seconds=0.0001"),
        (lambda: RateLimiter(TASK, "T", limit=1, window_seconds=math.nan), "window_seconds=nan"),
        (lambda: RateLimiter(TASK, "T", limit=1, window_seconds=YEAR + 1), "must .* 31622400"),
        (lambda: Tight(TASK, "T", n_items=0), "n_items=0"),
    ],
)
def test_numbers_that_cannot_work_are_refused(make: object, reason: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=reason):
        make().line()


def test_default_limiters_of_the_class_are_left_out() -> None:
    plain = [RateLimiter(TASK, "T"), ConcurrencyLimiter(TASK, "T")]
    assert encode_locks(plain, task="T") == ""
    assert encode_locks([RateLimiter(TASK, "T", n_items=2)], task="T") != ""
    assert encode_locks([ConcurrencyLimiter(TASK, "T", limit=2)], task="T") != ""
    assert encode_locks(plain, task="Other") == encode_locks(plain)


def test_the_vo_travels_before_the_locks() -> None:
    assert encode_locks([], vo="lhcb") == "V|lhcb||||"
    assert encode_locks([MutexLock(JOB, 1)], vo="a b") == "V|a%20b||||\nM|lock:mutex:job:1||||"
    assert encode_locks([], vo="lhcb", interactive=True) == ""


@pytest.mark.parametrize(
    ("locks", "held", "ttl_ms"),
    [
        ([], "", None),
        ([], "-x", 30_000),  # a limiter of the class
        ([], "x-", 30_000),
        ([], "--", None),
        ([MutexLock(JOB, 1, ttl_ms=5000), MutexLock(JOB, 2)], "", 5000),
        ([SharedRWLock(JOB, 1)], "", 30_000),
        ([ConcurrencyLimiter(JOB, 1, ttl_ms=500)], "", None),
        ([ConcurrencyLimiter(JOB, 1, ttl_ms=500)], "v--", 500),
        ([Tight(JOB, 1, ttl_ms=500)], "x--", None),
        ([MutexLock(JOB, 1), ConcurrencyLimiter(JOB, 1, ttl_ms=500)], "x---", 30_000),
    ],
)
def test_a_delivery_is_renewed_for_the_shortest_lease_that_it_holds(
    locks: list[BaseLock], held: str, ttl_ms: int | None
) -> None:
    assert leased_ttl_ms(encode_locks(locks), held, 30_000) == ttl_ms
    assert leased_ttl_ms(encode_locks(locks, vo="lhcb"), held, 30_000) == ttl_ms


def test_a_task_is_rate_limited_if_it_holds_a_rate_limiter() -> None:
    lines = encode_locks([MutexLock(JOB, 1), Tight(JOB, 1)], vo="lhcb")
    assert rate_limited(lines, "xx--")
    assert not rate_limited(lines, "x---")
    assert not rate_limited(lines, "")
    assert rate_limited("", "x-")
    assert not rate_limited("", "")


def test_a_registered_type_is_an_attribute() -> None:
    made = register_locked_object_type("test_locks_lfn")
    assert made == "test_locks_lfn"
    assert LockedObjectType.TEST_LOCKS_LFN is made
    assert MutexLock(made, "/a").redis_key == MutexLock("test_locks_lfn", "/a").redis_key
    assert LockedObjectType.registered()["test_locks_lfn"].startswith(__file__)


def test_a_type_registered_twice_names_both_places() -> None:
    register_locked_object_type("test_locks_twice")
    first = LockedObjectType.registered()["test_locks_twice"]
    with pytest.raises(RegistrationError, match="registered twice") as caught:
        register_locked_object_type("test_locks_twice")
    line = int(first.rpartition(":")[2])
    assert first in str(caught.value)
    assert f"{__file__}:{line + 3}" in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["", "LFN", "a b", "1a", "a:b"])
def test_a_type_must_be_a_lower_case_identifier(name: str) -> None:
    with pytest.raises(RegistrationError, match="lower-case identifier"):
        register_locked_object_type(name)


def test_an_unregistered_type_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(AttributeError, match=r"TRANSFORMATON is not registered .*TRANSFORMATION"):
        _ = LockedObjectType.TRANSFORMATON
    with pytest.raises(RegistrationError, match=r"Did you mean transformation\?"):
        MutexLock("transformaton", 1)
