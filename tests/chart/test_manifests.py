"""What every set of values must give: valid objects that fit together, and Nonet."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
from rendering import Charts, Object, Rendered, environment, values_of

from nonet.cli import run
from nonet.cli.daemons import scheduler, web, worker
from nonet.config.settings import load_settings
from nonet.config.web_settings import WebSettings

# The oldest version that Chart.yaml accepts, and the newest that is known.
_KUBERNETES = ("1.27", str(kubernetes_validate.latest_version()))
_SECRETS = {
    "redis-url": "redis+sentinel://u:p@s1:26379,s2:26379/main/0",
    "db-url": "mysql+aiomysql://u:p@db/nonet",
    "webhook-url": "https://hooks.example.org/x",
    "webhook-secret": "s",
    "web-oidc-secret": "s",
    "web-secret": "s" * 32,
    "encryption-keys": "k:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
    "signing-keys": "k:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
}
_APPS = {
    "task-run": run.app,
    "task-worker": worker.app,
    "task-scheduler": scheduler.app,
    "task-web": web.app,
}
_PARSERS: dict[str, Any] = {name: typer.main.get_command(app) for name, app in _APPS.items()}


@pytest.fixture(scope="module")
def _schemas_are_kept() -> Iterator[None]:
    """Without it a megabyte of definitions is read for each object."""
    schemas = kubernetes_validate.utils
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas, "schema_contents", functools.cache(schemas.schema_contents))
        yield


@pytest.mark.usefixtures("_schemas_are_kept")
def test_every_object_is_valid_for_kubernetes(rendered: Rendered) -> None:
    """Each object fits the strict schema of the oldest and the newest version of Kubernetes."""
    for item in [*rendered.objects, *rendered.hooks]:
        if item["apiVersion"].startswith(("monitoring.coreos.com/", "keda.sh/")):
            continue  # looked at in test_monitoring.py and test_scaling.py
        for version in _KUBERNETES:
            kubernetes_validate.validate(item, version, strict=True)


def test_names_are_short_and_unique(rendered: Rendered) -> None:
    """No two objects of a kind share a name, and each name fits a label."""
    names = [(item["kind"], item["metadata"]["name"]) for item in rendered.objects]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 for _, name in names)


def test_settings_are_accepted(
    rendered: Rendered, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each NONET_ variable of each container is a setting of Nonet, with a value that it takes."""
    monkeypatch.chdir(tmp_path)
    for name, text in _SECRETS.items():
        (tmp_path / name).write_text(text)
    for _, _, container in _containers(rendered):
        with monkeypatch.context() as patch:
            for name, value in environment(container).items():
                patch.setenv(name, value.replace("/etc/nonet/secrets", str(tmp_path)))
            settings = load_settings()
            WebSettings.load()
        assert str(settings.state_dir) == "/var/lib/nonet"


def test_commands_are_accepted(rendered: Rendered) -> None:
    """Each command line is one that the real parser takes; the entry point of the image runs it."""
    for _, _, container in _containers(rendered):
        assert "command" not in container
        _parse(container["args"])


def test_references_resolve(rendered: Rendered, values_file: Path) -> None:
    """Each Secret, ConfigMap and ServiceAccount is of the release, or one that the values name."""
    named = set(_texts(values_of(values_file))) | {"default"}
    made = {(item["kind"], item["metadata"]["name"]) for item in rendered.objects}
    for name, pod in rendered.pods():
        for kind, reference in _references(pod["spec"]):
            assert (kind, reference) in made or reference in named, f"{name}: {kind} {reference}"


def test_hooks_before_the_release_need_nothing_of_it(rendered: Rendered) -> None:
    """The migration refers only to what is there before the objects of the release are made."""
    made = {item["metadata"]["name"] for item in rendered.objects}
    for hook in rendered.hooks:
        if "pre-install" not in hook["metadata"]["annotations"]["helm.sh/hook"]:
            continue
        references = {name for _, name in _references(hook["spec"]["template"]["spec"])}
        assert references and not references & made


def test_probes_ask_the_port_that_is_listened_on(rendered: Rendered) -> None:
    """Startup and liveness ask /livez, readiness asks /readyz, at NONET_METRICS_PORT."""
    for _, _, container in rendered.daemons():
        port = container["ports"][0]
        assert environment(container)["NONET_METRICS_PORT"] == str(port["containerPort"])
        for probe, path in (
            ("startupProbe", "/livez"),
            ("livenessProbe", "/livez"),
            ("readinessProbe", "/readyz"),
        ):
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_a_worker_has_time_to_drain(rendered: Rendered) -> None:
    """A worker is killed only when both graces are over."""
    for name, pod, container in rendered.daemons():
        if container["args"][0] != "task-worker":
            continue
        env = environment(container)
        needed = float(env["NONET_GRACE"]) + float(env["NONET_CANCEL_GRACE"])
        assert pod["spec"]["terminationGracePeriodSeconds"] >= needed + 10, name


def test_selectors_select_their_pods(rendered: Rendered) -> None:
    """Each selector finds the pods of one workload, and no pod belongs to two workloads."""
    labels = {name: pod["metadata"]["labels"] for name, pod in rendered.pods(hooks=False)}

    def found(selector: Object) -> list[str]:
        return [name for name, has in labels.items() if selector.items() <= has.items()]

    for item in rendered.of_kind("Deployment", "StatefulSet"):
        assert found(item["spec"]["selector"]["matchLabels"]) == [item["metadata"]["name"]]
    for item in rendered.of_kind("PodDisruptionBudget"):
        assert found(item["spec"]["selector"]["matchLabels"]) == [item["metadata"]["name"]]
    for item in rendered.of_kind("Service"):
        assert found(item["spec"]["selector"]) == [item["metadata"]["name"]]
    for name, pod in rendered.pods(hooks=False):
        for rule in pod["spec"].get("topologySpreadConstraints", ()):
            assert found(rule["labelSelector"]["matchLabels"]) == [name]


def test_schedulers_are_kept_apart(charts: Charts) -> None:
    """Two schedulers prefer different nodes, unless the values say where they go."""
    values: Object = {"redis": {"url": "redis://redis:6379/0"}}
    scheduler = charts.render(values).named("Deployment", "-scheduler")["spec"]["template"]
    rules = scheduler["spec"]["affinity"]["podAntiAffinity"]
    (rule,) = rules["preferredDuringSchedulingIgnoredDuringExecution"]
    assert rule["podAffinityTerm"] == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": scheduler["metadata"]["labels"]},
    }
    own = {"nodeAffinity": {}}
    rendered = charts.render({**values, "scheduler": {"affinity": own}})
    template = rendered.named("Deployment", "-scheduler")["spec"]["template"]
    assert template["spec"]["affinity"] == own


def test_pods_that_are_not_ready_keep_no_node(rendered: Rendered) -> None:
    """A node can be drained without Redis, too: a disruption budget counts only ready pods."""
    for item in rendered.of_kind("PodDisruptionBudget"):
        assert item["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_strategies_are_whole(rendered: Rendered) -> None:
    """A Deployment that is recreated says nothing of rolling, which Kubernetes would refuse."""
    for item in rendered.of_kind("Deployment"):
        strategy = item["spec"]["strategy"]
        assert ("rollingUpdate" in strategy) == (strategy["type"] == "RollingUpdate")


def test_pods_are_confined(rendered: Rendered) -> None:
    """No pod is root, has a token, can write outside its volumes or gain privileges.

    Nor has it variables of Services: one named nonet-… would make settings that are none.
    """
    for name, pod in rendered.pods():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
    for _, spec, container in _containers(rendered):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        writable = [item for item in container["volumeMounts"] if not item.get("readOnly")]
        assert {"/tmp", "/var/lib/nonet"} <= {item["mountPath"] for item in writable}
        places = [volumes[item["name"]] for item in writable]  # a claim has a size of its own
        assert all(
            "sizeLimit" in item.get("emptyDir", {}) or "persistentVolumeClaim" in item
            for item in places
        )


def test_secrets_are_files(rendered: Rendered) -> None:
    """No secret is in an environment variable or on a command line, not even by reference."""
    for name, pod in rendered.pods():
        for container in pod["spec"]["containers"]:
            assert all("valueFrom" not in item for item in container.get("env", ())), name
            line = container.get("command", container.get("args"))
            for text in [*line, *environment(container).values()]:
                assert not re.search(r"://[^/]*@", text), name


def test_the_configuration_is_watched(rendered: Rendered) -> None:
    """A ConfigMap is mounted as a directory, never by subPath, and only the scheduler has it."""
    for name, pod in rendered.pods():
        for container in pod["spec"]["containers"]:
            for mount in container["volumeMounts"]:
                assert "subPath" not in mount
                is_config = mount["mountPath"] == "/etc/nonet/config"
                assert not is_config or "-scheduler" in name
            if environment(container).get("NONET_CONFIG", "").startswith("/"):
                mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
                assert environment(container)["NONET_CONFIG"] in mounts


def test_replicas_are_set_only_without_an_autoscaler(rendered: Rendered) -> None:
    """A Deployment has replicas if and only if no autoscaler has it as its target."""
    scalers = [
        item["spec"]["scaleTargetRef"]["name"]
        for item in rendered.of_kind("ScaledObject", "HorizontalPodAutoscaler")
    ]
    assert len(scalers) == len(set(scalers))
    deployments = {item["metadata"]["name"]: item for item in rendered.of_kind("Deployment")}
    assert set(scalers) <= set(deployments)
    for name, item in deployments.items():
        assert ("replicas" in item["spec"]) == (name not in scalers), name


def test_a_network_policy_covers_each_pod(rendered: Rendered) -> None:
    """Where there are policies, each pod is under one, hooks included, and finds name servers."""
    policies = rendered.of_kind("NetworkPolicy")
    if not policies:
        return
    for name, pod in rendered.pods():
        over = [item for item in policies if _selects(item["spec"]["podSelector"], pod)]
        assert over, name
        types = {kind for item in over for kind in item["spec"]["policyTypes"]}
        assert types == {"Ingress", "Egress"}, name
        if name.endswith("-redis"):
            continue
        ports = {
            (port["port"], port["protocol"])
            for item in over
            for rule in item["spec"].get("egress", ())
            for port in rule["ports"]
        }
        assert {(53, "UDP"), (53, "TCP"), (6379, "TCP")} <= ports, name
        incoming = [rule for item in over for rule in item["spec"].get("ingress", ())]
        listens = {9100, 8800} if name.endswith("-web") else {9100}
        assert {port["port"] for rule in incoming for port in rule["ports"]} == listens
        assert len(incoming) == len(listens)


def test_only_this_release_reaches_its_redis(charts: Charts) -> None:
    """The bundled server lets in the pods of its release, at one port, and connects to no other."""
    bundled = {"redis": {"bundled": {"enabled": True}}, "networkPolicy": {"enabled": True}}
    rendered = charts.render(bundled)
    policy = rendered.named("NetworkPolicy", "-redis")["spec"]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    assert not policy.get("egress")
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "redis", "protocol": "TCP"}]
    (source,) = rule["from"]
    assert all(_selects(source["podSelector"], pod) for _, pod in rendered.pods())
    stranger = {"metadata": {"labels": {"app.kubernetes.io/name": "nonet"}}}
    assert not _selects(source["podSelector"], stranger)


def _selects(selector: Object, pod: Object) -> bool:
    labels = pod["metadata"]["labels"]
    return selector["matchLabels"].items() <= labels.items() and not any(
        labels.get(item["key"]) in item["values"] for item in selector.get("matchExpressions", ())
    )


def _containers(rendered: Rendered) -> Iterator[tuple[str, Object, Object]]:
    """Name, pod and container of all that runs Nonet."""
    for name, pod in rendered.pods():
        for container in pod["spec"]["containers"]:
            if container.get("args", [""])[0] in _PARSERS:
                yield name, pod["spec"], container


def _parse(command: list[str]) -> None:
    """Fails as the command would if it did not understand its arguments."""
    name, *arguments = command
    parser = _PARSERS[name]
    while hasattr(parser, "commands"):
        parser = parser.commands[arguments.pop(0)]
    parser.make_context(name, arguments)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _references(spec: Object) -> Iterator[tuple[str, str]]:
    """Kind and name of each object that a pod needs."""
    yield "ServiceAccount", spec["serviceAccountName"]
    for item in spec.get("imagePullSecrets", ()):
        yield "Secret", item["name"]
    for volume in spec.get("volumes", ()):
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        for source in volume.get("projected", {}).get("sources", ()):
            yield "Secret", source["secret"]["name"]
    for container in spec["containers"]:
        for item in container.get("envFrom", ()):
            if "secretRef" in item:
                yield "Secret", item["secretRef"]["name"]
            else:
                yield "ConfigMap", item["configMapRef"]["name"]
