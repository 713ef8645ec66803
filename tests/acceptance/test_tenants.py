"""What an operator sees of tenants: the command and the metrics agree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from acceptance.site import Site, eventually, submit_all
from acceptance.tenant_tasks import Works
from acceptance.test_health import Probed
from metrics_names import get
from prometheus_client.parser import text_string_to_metric_families as parse
from waits import until

from nonet import Nonet

TASKS = "acceptance.tenant_tasks"
CONFIG = "vos: [cms, idle]\nfairness: {by: vo, weights: {lhcb: 3}}\n"
# What both tenants have done and have when four slots are busy and the first gate was opened.
LHCB = {"weight": 3, "live": 20, "waiting": 17, "running": 3, "started": 33, "ended": 30}
LHCB |= {"failed": 0, "share_used": 0.75, "share_due": 0.75}
CMS = {"weight": 1, "live": 20, "waiting": 19, "running": 1, "started": 11, "ended": 10}
CMS |= {"failed": 2, "share_used": 0.25, "share_due": 0.25}
METRICS = {
    "live": "nonet_tenant_active_tasks",
    "waiting": "nonet_tenant_waiting_tasks",
    "running": "nonet_tenant_running_tasks",
    "share_used": "nonet_tenant_share_used",
    "share_due": "nonet_tenant_share_due",
    "started": "nonet_tenant_started_total",
    "ended": "nonet_tenant_ended_total",
    "failed": "nonet_tenant_failed_total",
}


async def submit(app: Nonet, vo: str, gate: str, number: int, fails: int = 0) -> None:
    tasks = [Works(vo, gate, fails=n < fails) for n in range(number)]
    await submit_all(app, tasks)


def part(found: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that `like` has."""
    return {name: found[name] for name in like}


def measured(port: int) -> dict[str, dict[str, float]]:
    """The metrics of each tenant."""
    found: dict[str, dict[str, float]] = {}
    samples = {
        (sample.name, sample.labels.get("tenant")): sample.value
        for family in parse(get(port, "/metrics")[1])
        for sample in family.samples
    }
    for field, name in METRICS.items():
        for (other, tenant), value in samples.items():
            if other == name and tenant:
                found.setdefault(tenant, {})[field] = value
    return found


async def test_the_command_and_the_metrics_of_tenants_agree(site: Site) -> None:
    """Two tenants with weights 3:1, one of which fails: what each has, has used and was due."""
    site.settings["NONET_WORKER_TTL"] = "6"  # workers report often
    scheduler = Probed(site, "scheduler", "--config", site.write("tenants.yaml", CONFIG))
    await until(lambda: site.redis.exists(site.key("fairness")), "shares are published")
    first, second = site.gate(), site.gate()
    async with site.app() as app:
        await app.client.live_config.refresh()
        await submit(app, "lhcb", first, 30)
        await submit(app, "cms", first, 10, fails=2)
        for vo in ("lhcb", "cms"):
            await submit(app, vo, second, 20)
        site.worker("--concurrency", "4")
        site.open(first)
        found: dict[str, Any] = {}

        async def is_settled() -> bool:
            items = json.loads(await site.type("task-run tenants --json"))["items"]
            found.update({item["name"]: item for item in items})
            return part(found["lhcb"], LHCB) == LHCB and part(found["cms"], CMS) == CMS

        await eventually(is_settled)
    assert list(found) == ["cms", "idle", "lhcb"]
    assert found["idle"]["live"] == found["idle"]["waiting"] == found["idle"]["share_due"] == 0
    assert found["cms"]["wait"]["p50"] > 0 and found["cms"]["oldest_seconds"] > 0
    table = {
        line.split()[0]: line.split()
        for line in (await site.type("task-run tenants", columns=200)).splitlines()
    }
    heading = table.pop("tenant")
    assert heading[:5] == ["tenant", "weight", "live", "waiting", "oldest"]
    assert (table["lhcb"][1:4], table["cms"][1:4]) == (["3", "20", "17"], ["1", "20", "19"])
    wanted = {"lhcb": {name: LHCB[name] for name in METRICS}}
    wanted["cms"] = {name: CMS[name] for name in METRICS}

    def told() -> bool:
        now = measured(scheduler.port)
        return all(now.get(name) == of for name, of in wanted.items())

    await until(told, "the metrics say the same")
    site.open(second)
    await site.all_ended()
