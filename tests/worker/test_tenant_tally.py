"""What a worker counts of tenants, however many there are."""

from __future__ import annotations

from nonet.base.streams import Size
from nonet.rules.fairness import MOST_TENANTS, OTHERS
from nonet.rules.figures import figures_of
from nonet.rules.vectors import started_in, starts_of
from nonet.worker.tenant_tally import TenantTally


def run(tally: TenantTally, tenant: str, outcome: str = "done") -> None:
    tally.started(tenant, Size.SMALL, 2.0)
    tally.finished(tenant, outcome, "retries" if outcome == "dead" else "")


def test_each_attempt_is_reported_once() -> None:
    tally = TenantTally(tuple)
    for outcome in ("done", "dead", "retry"):
        run(tally, "cms", outcome)
    run(tally, "lhcb")
    found, named = tally.figures()
    assert (found.keys(), named) == ({"cms", "lhcb"}, 0)
    total = figures_of(found["cms"])
    assert (total.ended, total.failed, total.retried) == (2, 1, 1)
    assert total.wait.p50 is not None and 1 < total.wait.p50 <= 2.5
    assert starts_of(found["cms"]) == {Size.SMALL: 3, Size.MEDIUM: 0, Size.LARGE: 0}
    assert started_in(found["lhcb"]) == 1
    assert tally.figures() == ({}, 0)


def test_a_tenant_is_reported_while_its_attempts_run() -> None:
    tally = TenantTally(tuple)
    tally.started("cms", Size.SMALL, 0.0)
    for _ in range(3):
        tally.figures()
    assert tally.running() == {"cms": 1}
    tally.finished("cms", "done", "")
    assert tally.running() == {}
    assert figures_of(tally.figures()[0]["cms"]).ended == 1


def test_a_report_of_thousands_of_tenants_names_the_configured_and_the_largest() -> None:
    tally = TenantTally(lambda: ["quiet", "absent"])
    for n in range(1000):
        run(tally, f"t{n}")
    for _ in range(5):
        run(tally, "busy")
    run(tally, "quiet")
    tally.started("slow", Size.SMALL, 0.0)
    found, named = tally.figures()
    assert (list(found)[:2], named) == (["quiet", "busy"], 1)
    assert len(found) == MOST_TENANTS + 1
    assert sum(map(started_in, found.values())) == 1007
    assert started_in(found[OTHERS]) > 800
    tally.figures()
    assert list(tally._counts) == ["slow"]
