"""Documents of the central configuration, drawn at random: all of them are valid."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

from nonet.base.amounts import parse_bytes
from nonet.base.streams import Priority, Size
from nonet.config.models import STREAMS
from nonet.tasks.retry import RetryPolicyBase
from nonet.tasks.schedules import CatchUp, Overlap


class PatientPolicy(RetryPolicyBase):
    """A policy such as a package of tasks would bring, with a field that JSON has no type for."""

    pause: timedelta
    kinds: list[str] = []


SECONDS = st.one_of(st.integers(1, 31_622_400), st.floats(0.001, 1e6))
MEMORY = st.one_of(
    st.integers(2**25, 2**40),
    st.builds("{}{}".format, st.integers(33, 9999), st.sampled_from(["MiB", " MB", "GiB"])),
).filter(lambda amount: parse_bytes(amount) >= 2**25)
PROCESS_LIMITS = {"memory-limit": MEMORY, "cpu-limit": SECONDS}
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from(list(map(str, Priority))),
        "size": st.sampled_from(list(map(str, Size))),
        "dlq-eligible": st.booleans(),
        "soft-timeout": SECONDS,
        "isolation": st.sampled_from(["child", "fresh"]),
        **PROCESS_LIMITS,
        "retry-policy": st.sampled_from(
            [{"class": "NoRetry"}, {"class": "PatientPolicy", "args": {"pause": "PT1S"}}]
        ),
    },
)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"name": TEXT, "args": st.dictionaries(TEXT, st.one_of(st.none(), st.dates(), TEXT))},
        optional={
            "enabled": st.booleans(),
            "overlap": st.sampled_from(list(map(str, Overlap))),
            "catch-up": st.sampled_from(list(map(str, CatchUp))),
            "jitter": st.floats(0, 86_400),
            "schedule": st.just({"class": "IntervalSeconds", "arg": 5}),
        },
    ),
    unique_by=lambda item: str(item["name"]),
    max_size=3,
)
LIMITERS = st.fixed_dictionaries(
    {},
    optional={
        "ConcurrencyLimiter": st.fixed_dictionaries({"limit": st.integers(1, 9)}),
        "RateLimiter": st.fixed_dictionaries(
            {"limit": st.integers(1, 9), "window_seconds": st.floats(0.001, 9)}
        ),
    },
)
# A limiter where a name belongs is a mistake, and hypothesis knows the texts of our modules.
NAMES = TEXT.filter(lambda text: not text.endswith("Limiter"))
SIZES = st.fixed_dictionaries(
    {},
    optional={
        "small": st.fixed_dictionaries({}, optional={"hard-timeout": SECONDS}),
        "large": st.fixed_dictionaries({}, optional={"soft-timeout": SECONDS, **PROCESS_LIMITS}),
    },
)
CEILINGS = st.integers(1, 2**31 - 1)
CEILINGS = st.fixed_dictionaries(
    {},
    optional={
        "namespace": CEILINGS,
        "streams": st.dictionaries(st.sampled_from(STREAMS), CEILINGS, max_size=3),
        "tasks": st.dictionaries(TEXT, CEILINGS, max_size=3),
    },
)
SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "tasks": st.dictionaries(TEXT, OVERRIDES, max_size=3),
        "sizes": SIZES,
        "periodic-tasks": st.dictionaries(TEXT, ENTRIES, max_size=3),
        "limits": st.dictionaries(
            NAMES,
            st.dictionaries(
                st.one_of(NAMES, st.integers(-9, 9).filter(bool)), LIMITERS, max_size=3
            ),
            max_size=3,
        ),
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "common": SECTIONS,
        "vo-overrides": st.dictionaries(TEXT, SECTIONS, max_size=2),
        "ceilings": CEILINGS,
    },
)
