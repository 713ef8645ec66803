"""Every value does something."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from rendering import CHART, Charts, Object, Refused, Rendered, values_of

_SECRETS = {
    "redis": {"name": "r"},
    "database": {"name": "d"},
    "signing": {"name": "s"},
    "encryption": {"name": "e"},
}
_BASE: Object = {
    "canary": {"enabled": True},
    "config": {
        "git": {"url": "git+https://host/conf.git#main", "credentialsSecret": {"name": "g"}}
    },
    "database": {"secret": {"name": "db"}, "migrate": {"secret": {"name": "owner"}}},
    "monitoring": {"enabled": True, "rules": {"enabled": True}, "dashboard": {"enabled": True}},
    "networkPolicy": {"enabled": True},
    "redis": {"bundled": {"enabled": True, "persistence": {"enabled": True}}},
    "signing": {"secret": {"name": "keys"}},
    "encryption": {"secret": {"name": "keys"}},
    "scheduler": {"secrets": _SECRETS},
    "web": {
        "enabled": True,
        "url": "https://jobs.example.org",
        "users": {"name": "u"},
        "secret": {"name": "s"},
        "oidcSecret": {"name": "o"},
        "ingress": {"enabled": True},
        "secrets": _SECRETS,
    },
    "webhook": {"secret": {"name": "w"}, "signing": {"name": "w"}},
    "workers": {"other": {"size": "small"}},
    "workerDefaults": {"autoscaling": {"type": "keda"}, "secrets": _SECRETS},
}
# What must be otherwise for a value to have its say.
_WITH: dict[str, Object] = {
    "config.existingConfigMap": {"config": {"git": {"url": ""}}},
    "config.files": {"config": {"git": {"url": ""}}},
    "database.secret.name": {"database": {"migrate": {"secret": {"name": ""}}}},
    "database.secret.key": {"database": {"migrate": {"secret": {"name": ""}}}},
    "image.tag": {"image": {"digest": ""}},
    "redis.secret.name": {"redis": {"bundled": {"enabled": False}, "secret": {"name": "x"}}},
    "redis.secret.key": {"redis": {"bundled": {"enabled": False}, "secret": {"name": "x"}}},
    "redis.url": {"redis": {"bundled": {"enabled": False}, "url": "redis://h:6379"}},
    "signing.secret.key": {"workerDefaults": {"secrets": {"signing": {"name": ""}}}},
    "encryption.secret.key": {"workerDefaults": {"secrets": {"encryption": {"name": ""}}}},
    "workerDefaults.autoscaling.metrics": {"workerDefaults": {"autoscaling": {"type": "hpa"}}},
    "networkPolicy.egress.git.to": {"networkPolicy": {"egress": {"git": {"ports": [443]}}}},
    "networkPolicy.egress.web.to": {"networkPolicy": {"egress": {"web": {"ports": [443]}}}},
    "networkPolicy.egress.telemetry.to": {
        "networkPolicy": {"egress": {"telemetry": {"ports": [4318]}}}
    },
    "workerDefaults.enabled": {"workers": {"small": {"enabled": True}}},
    "workerDefaults.replicas": {"workerDefaults": {"autoscaling": {"type": "none"}}},
    "workers.small.replicas": {"workerDefaults": {"autoscaling": {"type": "none"}}},
}
# Another value, where that does not follow from the type of the first one.
_OTHER: dict[str, Any] = {
    "config.files": {"a.yaml": {}},
    "config.git.url": "git+https://host/conf.git#next",
    "image.digest": "sha256:" + "0" * 64,
    "imagePullSecrets": [{"name": "x"}],
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}],
    "namespaces": ["other"],
    "monitoring.interval": "17s",
    "monitoring.scrapeTimeout": "17s",
    "monitoring.rules.disabled": ["NonetNoLeader"],
    "redis.url": "redis://other:6379",
    "redis.bundled.maxmemory": "1gb",
    "settings": {"LEASE": 99},
    "scheduler.settings": {"LEASE": 99},
    "web.settings": {"LEASE": 99},
    "web.url": "https://other.example.org",
    "web.strategy.type": "Recreate",
    "workerDefaults.settings": {"LEASE": 99},
    "tasks": ["a.b"],
    "workerDefaults.autoscaling.type": "hpa",
    "workerDefaults.pipelines": ["volumes"],
    "scheduler.strategy.type": "Recreate",
    "workerDefaults.strategy.type": "Recreate",
    "workers.small.size": "large",
    "workers.medium.size": "large",
    "workers.large.size": "small",
}


@pytest.mark.soak
def test_each_value_does_something(charts: Charts) -> None:
    """Whatever value is changed, the manifests change: none is taken and ignored."""
    ignored = []
    defaults = values_of(CHART / "values.yaml")
    for path in _leaves(defaults):
        name = ".".join(path)
        before = _merged(_BASE, _WITH.get(name, {}))
        value = _at(_merged(defaults, before), path)
        after = _merged(before, _nested(path, _OTHER.get(name, _another(path, value))))
        if name == "redis.bundled.enabled":
            continue  # without it there is no Redis: see test_refusals.py
        try:
            old, new = charts.render(before), charts.render(after)
        except Refused as refused:
            ignored.append(f"{name}: {refused}")
            continue
        if _seen(old) == _seen(new):
            ignored.append(name)
    assert not ignored, "\n".join(ignored)


def _leaves(values: Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values[name]
    return values


def _another(path: tuple[str, ...], value: Any) -> Any:
    """A value of the same type that is not the same."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value / 2 if 0 < value < 1 else value + 1
        case str() if value.endswith(("Gi", "Mi")):
            return "3Gi"
        case str() if path[-1] == "pullPolicy":
            return "Never"
        case str():
            return "other"
        case list() if path[-1] in ("ports", "drop"):
            return [7777]
        case list():
            return [{"name": "other"}]
        case _:
            return {"other": "x"}


def _nested(path: tuple[str, ...], value: Any) -> Object:
    for name in reversed(path):
        value = {name: value}
    return value


def _merged(one: Object, other: Object) -> Object:
    found = copy.deepcopy(one)
    for name, value in other.items():
        is_both = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = _merged(found[name], value) if is_both else copy.deepcopy(value)
    return found


def _seen(rendered: Rendered) -> list[Object]:
    """All but the random password."""
    return [item for item in rendered.objects + rendered.hooks if item["kind"] != "Secret"]
