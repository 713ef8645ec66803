"""Configured limits: their addresses and values, and which ones a document sets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from nonet.base.errors import ConfigurationError
from nonet.config.reading import parse_config
from nonet.rules.limits import (
    Limit,
    LimitAddress,
    find_object_type,
    read_limits,
    snake_case,
    written_limits,
)
from nonet.scheduler.configuration.limits import configured_limits
from nonet.tasks.locks import (
    ConcurrencyLimiter,
    LockedObjectType,
    RateLimiter,
    register_locked_object_type,
)

CLASSES = ("RemoveFile", "SubmitPilots")


@pytest.fixture
def storage_element() -> Iterator[LockedObjectType]:
    """A type that a package of tasks would register."""
    yield register_locked_object_type("storage_element")
    del LockedObjectType._places["storage_element"]
    del LockedObjectType.STORAGE_ELEMENT


def limits_of(text: str) -> dict[str, str]:
    config = parse_config(text, "c.yaml")
    return {
        address.field: limit.encode()
        for address, limit in configured_limits(config, CLASSES).items()
    }


@given(*[st.text(st.characters(codec=None), min_size=n) for n in (1, 0, 0)])
def test_an_address_is_restored_from_its_field(key: str, action: str, vo: str) -> None:
    for limiter in ("concurrency", "rate"):
        address = LimitAddress("job", key, action, limiter, vo)
        assert address.field.count("|") == 4
        assert LimitAddress.of_field(address.field) == address


@pytest.mark.parametrize("limit", [Limit(8), Limit(1, 0.001), Limit(10_000, 3600), Limit(None)])
def test_a_limit_is_restored_from_its_text(limit: Limit) -> None:
    assert Limit.decode(limit.encode()) == limit


def test_rules_are_written_as_they_were_read() -> None:
    rate = {"limit": 1, "window_seconds": 0.5}
    section = {"Job": {7: {"RateLimiter": rate, "Run": {"ConcurrencyLimiter": {"limit": 2}}}}}
    rules, problems = read_limits({**section, "Task": {}})
    assert not problems
    assert written_limits(rules) == {"Job": {"7": section["Job"][7]}}


def test_an_address_has_the_key_of_its_limiter_as_counter() -> None:
    address = LimitAddress("job", "a b:c", "Remove")
    assert address.counter == ConcurrencyLimiter("job", "a b:c", "Remove").redis_key
    assert LimitAddress("job", "7", limiter="rate").counter == RateLimiter("job", 7).redis_key
    assert LimitAddress("job", "7", vo="lhcb").counter == "limiter:conc:@lhcb:job:7"


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("storage_element", "storage_element"),
        ("StorageElement", "storage_element"),
        ("STORAGE_ELEMENT", "storage_element"),
        ("LFN", "lfn"),
        ("Lfn", "lfn"),
        ("Storage", None),
        ("A_b", None),  # two types could be meant
        ("a_b", "a_b"),
    ],
)
def test_types_are_found_as_registered_or_in_camel_case(written: str, found: str | None) -> None:
    assert find_object_type(written, {"storage_element", "lfn", "a_b", "ab"}) == found


def test_a_type_in_camel_case_becomes_words_with_underscores() -> None:
    assert snake_case("ComputingElement") == "computing_element"
    assert snake_case("LFN") == "lfn"


def test_a_document_sets_the_fields_of_the_hash_limits(storage_element: LockedObjectType) -> None:
    assert limits_of(
        """
common:
  limits:
    Task:
      SubmitPilots: {ConcurrencyLimiter: {limit: 2}, RateLimiter: {limit: 10, window_seconds: 60}}
      default: {ConcurrencyLimiter: {limit: 100}}
    StorageElement:
      default: {RemoveFile: {ConcurrencyLimiter: {limit: 5}}}
      "CERN DST": {RemoveFile: {ConcurrencyLimiter: {limit: 8}}}
    transformation: {default: {}, 12345: {ConcurrencyLimiter: {limit: 10_000}}}
    Job:
      default: {Register: {RateLimiter: {limit: 3, window_seconds: 0.5}}, Remove: {}}
      7: {ConcurrencyLimiter: {limit: 2}, Remove: {ConcurrencyLimiter: {limit: 1}}}
vo-overrides:
  lhcb: {limits: {Task: {SubmitPilots: {ConcurrencyLimiter: {limit: 1}}}}}
"""
    ) == {
        "C||task|SubmitPilots|": "2",
        "L||task|SubmitPilots|": "10|60000",
        "C||task|default|": "100",
        "C||storage_element|default|RemoveFile": "5",
        "C||storage_element|CERN%20DST|RemoveFile": "8",
        "C||transformation|12345|": "10000",
        "L||job|default|Register": "3|500",
        "C||job|7|": "2",
        "C||job|7|Remove": "1",
        "C|lhcb|task|SubmitPilots|": "1",
    }


ONE = "{ConcurrencyLimiter: {limit: 1}}"


@pytest.mark.parametrize(
    ("section", "lines"),
    [
        (
            f"Transformaton: {{a: {ONE}, b: {ONE}}}",
            ["Transformaton: unknown object type 'Transformaton', known are KNOWN. Did you mean"],
        ),
        (
            f"Task: {{RemovFile: {ONE}}}, Jobb: {{a: {ONE}}}",
            [
                "Jobb: unknown object type 'Jobb', known are KNOWN. Did you mean job?",
                "Task.RemovFile: unknown task class 'RemovFile'. Did you mean RemoveFile?",
            ],
        ),
        (
            f"Task: {{'files:RemoveFile': {ONE}}}",
            ["Task.files:RemoveFile: limits go by the bare class name"],
        ),
        (
            f"Boat: {{a: {ONE}}}, Task: {{Nobody: {ONE}}}",
            [
                "Boat: unknown object type 'Boat', known are KNOWN. Is the module that registers",
                "Task.Nobody: unknown task class 'Nobody'. Known are RemoveFile, SubmitPilots",
            ],
        ),
        (
            f"Job: {{a: {ONE}}}, job: {{a: {ONE}}}",
            ["job.a.ConcurrencyLimiter: is written twice, for object type job"],
        ),
    ],
)
def test_unknown_types_and_classes_are_refused_together_with_the_nearest_name(
    section: str, lines: list[str]
) -> None:
    text = f"common: {{limits: {{{section}}}}}\nvo-overrides: {{x: {{limits: {{{section}}}}}}}"
    with pytest.raises(ConfigurationError) as refused:
        limits_of(text)
    known = ", ".join(sorted(LockedObjectType.registered()))
    expected = [
        f"c.yaml:{number}: {at}.limits.{line.replace('KNOWN', known)}"
        for number, at in [(1, "common"), (2, "vo-overrides.x")]
        for line in lines
    ]
    for line, begin in zip(str(refused.value).splitlines(), expected, strict=True):
        assert line.startswith(begin)
