"""Wrong values are refused, with words that tell what is wrong."""

from __future__ import annotations

import pytest
from rendering import Charts, Object, Refused

_REDIS = {"redis": {"url": "redis://redis:6379/0"}}
_WEB = {"enabled": True, "url": "https://jobs.example.org", "users": {"name": "u"}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"worker": {}}, ["additional properties 'worker' not allowed"]),
        ({"workers": {"small": {"size": "tiny"}}}, ["/workers/small/size", "'small', 'medium'"]),
        ({"workers": {"extra": {"replicas": 2}}}, ["/workers/extra", "missing property 'size'"]),
        ({"workers": {"Big": {"size": "large"}}}, ["/workers", "'Big' not allowed"]),
        ({"settings": {"LEESE": 45}}, ["/settings", "'LEESE' not allowed"]),
        ({"settings": {"REDIS_URL": "redis://x"}}, ["/settings", "'REDIS_URL' not allowed"]),
        ({"config": {"files": {"nonet.json": {}}}}, ["/config/files", "'nonet.json' not allowed"]),
        ({"metricsPort": 80}, ["/metricsPort", "minimum"]),
        ({"monitoring": {"rules": {"disabled": ["noLeader"]}}}, ["/monitoring/rules/disabled/0"]),
    ],
)
def test_the_schema_refuses(charts: Charts, values: Object, words: list[str]) -> None:
    """A value that cannot be meant is refused before anything is made, with its path and reason."""
    with pytest.raises(Refused) as refused:
        charts.render({**_REDIS, **values})
    for word in ["values don't meet the specifications of the schema", *words]:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "redis: there is none; name a Secret in redis.secret.name"),
        (
            {"redis": {"url": "redis://r:6379", "bundled": {"enabled": True}}},
            "redis: redis.url and redis.bundled are set; choose one",
        ),
        (
            {
                **_REDIS,
                "config": {"existingConfigMap": "c", "git": {"url": "git+https://h/c.git#main"}},
            },
            "config: config.existingConfigMap and config.git are set; choose one",
        ),
        (
            {**_REDIS, "workerDefaults": {"enabled": False}},
            "workers: no pool is enabled; enable at least one",
        ),
        (
            {**_REDIS, "workers": {"small": {"autoscaling": {"min": 5, "max": 2}}}},
            "workers.small.autoscaling: min (5) is more than max (2)",
        ),
        (
            {**_REDIS, "workers": {"small": {"autoscaling": {"type": "hpa", "min": 0}}}},
            "set min to 1, or type to keda",
        ),
        (
            {"redis": {"url": "redis://:secret@redis:6379/0"}},
            "redis.url: there is a user or password in it; put the URL into a Secret",
        ),
        (
            {**_REDIS, "config": {"git": {"url": "git+https://me:secret@host/conf.git#main"}}},
            "config.git.url: there is a password in it; put it into a Secret",
        ),
        (
            {**_REDIS, "commonLabels": {"app.kubernetes.io/name": "x"}},
            "commonLabels: the label app.kubernetes.io/name is set by the chart",
        ),
        (
            {**_REDIS, "workerDefaults": {"extraEnv": [{"name": "NONET_LEASE", "value": "1"}]}},
            "extraEnv: NONET_LEASE is a setting of Nonet; write it under settings",
        ),
        (
            {**_REDIS, "web": {"enabled": True, "url": "https://jobs.example.org"}},
            "web: nobody could log in; name a Secret with users in web.users.name",
        ),
        (
            {**_REDIS, "web": {"enabled": True, "users": {"name": "u"}}},
            "web.url: it is missing; set the address of the dashboard",
        ),
        (
            {**_REDIS, "web": {**_WEB, "replicas": 2}},
            "web.secret: it is missing; name a Secret, because all pods",
        ),
        (
            {**_REDIS, "settings": {"LEASE": 20}},
            "LOCK_TTL (30 s) must be shorter than LEASE (20 s)",
        ),
        (
            {**_REDIS, "workers": {"small": {"settings": {"LOCK_TTL": 60}}}},
            "workers.small: LOCK_TTL (60 s) must be shorter than LEASE (45 s)",
        ),
    ],
)
def test_the_templates_refuse(charts: Charts, values: Object, words: str) -> None:
    """What a schema cannot say is refused by the templates, with the next step."""
    with pytest.raises(Refused) as refused:
        charts.render(values)
    assert words in str(refused.value)
    assert "secret@" not in str(refused.value)
