"""What single values are for: secrets, migrations, the configuration, the bundled Redis, notes."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

from rendering import NAMESPACE, RELEASE, Charts, Object, Rendered, environment

from nonet.config.settings import Settings
from nonet.config.sources import open_source
from nonet.scheduler.configuration.configuration_loop import check
from nonet.tasks.registry import Registry

_REDIS = {"redis": {"url": "redis://redis:6379/0"}}
_BUNDLED = {"redis": {"bundled": {"enabled": True}}}


def test_each_pool_sees_its_own_secrets(charts: Charts) -> None:
    """A pod sees the secrets that its pool names, else the common ones, and no others."""
    seen = {
        name.removeprefix("prod-nonet-"): sorted(map("/".join, _secrets(pod).values()))
        for name, pod in charts.ci("per-pool-secrets").pods()
    }
    sql, encryption = "nonet-db/db-url", "nonet-encryption/encryption-keys"
    signing = "nonet-signing/signing-keys"
    assert seen == {
        "scheduler": [
            "nonet-db-scheduler/url",
            encryption,
            "nonet-redis-scheduler/redis-url",
            signing,
        ],
        "worker-small": [sql, encryption, "nonet-redis-small/redis-url", signing],
        "worker-medium": [
            *(sql, "nonet-encryption-medium/keys", "nonet-redis-medium/redis-url"),
            "nonet-signing-medium/keys",
        ],
        "worker-large": [sql, encryption, "nonet-redis-large/redis-url", signing],
        "canary": [encryption, "nonet-redis-submit/redis-url", signing],
        "migrate": [sql],
    }


def test_each_secret_that_is_seen_is_read(rendered: Rendered) -> None:
    """The file of each secret is named by a setting, and each such setting names a file."""
    for name, pod in rendered.pods():
        for container in pod["spec"]["containers"]:
            if "args" not in container:
                continue
            named = {
                value
                for key, value in environment(container).items()
                if key.startswith("NONET_") and key.endswith("_FILE")
            }
            assert named == {f"/etc/nonet/secrets/{path}" for path in _secrets(pod)}, name


def test_pools_have_service_accounts_of_their_own(charts: Charts) -> None:
    """A pool has one of its own, an existing one, or the default one, as its values say."""
    rendered = charts.ci("per-pool-secrets")
    accounts = {name: pod["spec"]["serviceAccountName"] for name, pod in rendered.pods()}
    assert accounts["prod-nonet-worker-small"] == "prod-nonet-worker-small"
    assert accounts["prod-nonet-worker-medium"] == "existing"
    assert accounts["prod-nonet-worker-large"] == "default"
    made = {item["metadata"]["name"] for item in rendered.of_kind("ServiceAccount")}
    assert made == {"prod-nonet-scheduler", "prod-nonet-worker-small"}


def test_tables_are_migrated_first(charts: Charts) -> None:
    """A database is migrated before install and upgrade, by its owner, and a failed Job is kept."""
    (job,) = [item for item in charts.ci("sentinel-tls").hooks if item["kind"] == "Job"]
    notes = job["metadata"]["annotations"]
    assert notes["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "hook-failed" not in notes["helm.sh/hook-delete-policy"]
    assert job["spec"]["backoffLimit"] == 3 and job["spec"]["activeDeadlineSeconds"] == 600
    pod = job["spec"]["template"]
    assert _secrets(pod) == {"db-url": ("nonet-db-owner", "db-url")}
    assert pod["spec"]["serviceAccountName"] == "migrations"


def test_without_a_database_nothing_is_migrated(charts: Charts) -> None:
    """There is no Job without a database, and none where it is not wanted."""
    off = {"secret": {"name": "db"}, "migrate": {"enabled": False}}
    for values in (_REDIS, {**_REDIS, "database": off}):
        assert "Job" not in {item["kind"] for item in charts.render(values).hooks}


async def test_the_configuration_is_good(charts: Charts, tmp_path: Path) -> None:
    """Files of the values, as YAML or as text, become a directory that Nonet accepts."""
    data = charts.ci("everything").of_kind("ConfigMap")
    (files,) = [item["data"] for item in data if item["metadata"]["name"] == "tasks-config"]
    assert set(files) == {"nonet.yaml", "limits.yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    registry = Registry()
    registry.add_module("nonet.contrib.canary")
    check(await open_source(str(tmp_path), Settings()).read(), registry)


def test_git_is_given_its_password_as_a_file(charts: Charts) -> None:
    """The scheduler alone reads the repository, with git's credential store from a secret."""
    rendered = charts.ci("git-config")
    for name, pod, container in rendered.daemons():
        env = environment(container)
        volumes = {item["name"]: item for item in pod["spec"]["volumes"]}
        if not name.endswith("-scheduler"):
            assert "NONET_CONFIG" not in env and "git" not in volumes
            continue
        assert env["NONET_CONFIG"] == "git+https://git.example.org/conf.git#main:nonet"
        assert env["NONET_CONFIG_POLL"] == "30"
        assert volumes["git"]["secret"]["secretName"] == "nonet-git"
        assert volumes["git"]["secret"]["items"] == [{"key": "credentials", "path": "credentials"}]
        mounts = {item["name"]: item["mountPath"] for item in container["volumeMounts"]}
        assert mounts["git"] == "/etc/nonet/git"


def test_git_finds_its_password(charts: Charts, tmp_path: Path) -> None:
    """Git itself, in the environment of the scheduler, reads the password and never writes it."""
    container = charts.ci("git-config").named("Deployment", "-scheduler")["spec"]["template"][
        "spec"
    ]["containers"][0]
    env = {
        name: text.replace("/etc/nonet/git", str(tmp_path))
        for name, text in environment(container).items()
        if name.startswith("GIT_")
    }
    (tmp_path / "credentials").write_text("https://me:t0ken@git.example.org\n")
    tmp_path.chmod(0o500)
    asked = "protocol=https\nhost=git.example.org\n"

    def git(command: str, told: str) -> str:
        return subprocess.run(
            ["git", "credential", command],
            input=told,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **env},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    found = git("fill", asked)
    assert "username=me\npassword=t0ken\n" in found
    git("approve", asked + "username=me\npassword=0ther\n")
    assert git("fill", asked) == found


def test_the_password_survives_an_upgrade(charts: Charts) -> None:
    """Where there is a secret already, its password stays."""
    old = charts.render(_BUNDLED).named("Secret", "-redis")
    owner = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
    old = {**old, "metadata": {**old["metadata"], "annotations": owner}}
    path = f"api/v1/namespaces/{NAMESPACE}/secrets/prod-nonet-redis"
    new = charts.render(_BUNDLED, {path: old}).named("Secret", "-redis")
    assert new["data"] == old["data"]


def test_the_bundled_redis_may_keep_its_data(charts: Charts) -> None:
    """With persistence there is an append-only file in a volume, else a directory of the pod."""
    for rendered, keeps in ((charts.ci("bundled"), True), (charts.render(_BUNDLED), False)):
        (redis,) = rendered.of_kind("StatefulSet")
        config = rendered.named("ConfigMap", "-redis")["data"]["redis.conf"]
        assert f"appendonly {'yes' if keeps else 'no'}" in config
        assert bool(redis["spec"].get("volumeClaimTemplates")) == keeps
        volumes = {item["name"] for item in redis["spec"]["template"]["spec"]["volumes"]}
        assert ("data" in volumes) != keeps


def test_files_of_the_configuration_stay_as_they_are(charts: Charts) -> None:
    """Text comes out as it went in, also if its first line is indented, and mappings as YAML."""
    files = {
        "a.yaml": "  common:\n    tasks: {}\n",
        "b.yaml": "\n# x\nvos: [a]\n",
        "c.yaml": {"vos": []},
    }
    rendered = charts.render({**_REDIS, "config": {"files": files}})
    data = rendered.named("ConfigMap", "-config")["data"]
    assert data == {**files, "c.yaml": "vos: []\n"}


def test_a_pool_can_be_disabled(charts: Charts) -> None:
    """A pool that is null, or not enabled, leaves nothing behind, nor a canary of its size."""
    values = {**_REDIS, "workers": {"medium": None, "large": {"enabled": False}}}
    rendered = charts.render(values)
    names = [item["metadata"]["name"] for item in rendered.objects]
    assert not [name for name in names if "medium" in name or "large" in name]
    (canary,) = rendered.hooks
    assert [item["name"] for item in canary["spec"]["containers"]] == ["small"]


def test_settings_of_a_pool_go_before_those_of_all(charts: Charts) -> None:
    """A setting of a pool replaces the common one, for that pool alone."""
    values = {"settings": {"LEASE": 60}, "workers": {"small": {"settings": {"LEASE": 90.5}}}}
    rendered = charts.render({**_REDIS, **values})
    leases = {name: environment(item)["NONET_LEASE"] for name, _, item in rendered.daemons()}
    assert leases == {
        "prod-nonet-worker-small": "90.5",
        "prod-nonet-worker-medium": "60",
        "prod-nonet-worker-large": "60",
        "prod-nonet-scheduler": "60",
    }


def _secrets(pod: Object) -> dict[str, tuple[str, str]]:
    """File → name and key of the secret that is seen there."""
    found = {}
    for volume in pod["spec"].get("volumes", ()):
        for source in volume.get("projected", {}).get("sources", ()):
            for item in source["secret"]["items"]:
                found[item["path"]] = (source["secret"]["name"], item["key"])
    return found


def _decoded(secret: Object) -> dict[str, str]:
    return {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}


def test_the_dashboard_is_at_its_address(charts: Charts) -> None:
    """The Ingress has host and path of `url`, which task-web, alerts and the scheduler know too."""
    found = charts.ci("web")
    (rule,) = found.named("Ingress", "-web")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"]) == ("jobs.example.org", "/nonet")
    ports = {item["name"]: item for item in found.named("Service", "-web")["spec"]["ports"]}
    assert path["backend"]["service"]["port"] == {"name": "http"} and "http" in ports
    envs = {name: environment(container) for name, _, container in found.daemons()}
    assert envs["prod-nonet-web"]["NONET_WEB_HOST"] == "0.0.0.0"
    assert envs["prod-nonet-web"]["NONET_WEB_USERS"] == "/etc/nonet/web/users.yaml"
    urls = {env.get("NONET_WEB_URL") for name, env in envs.items() if "worker" not in name}
    assert urls == {"https://jobs.example.org/nonet"}
    rules = found.named("PrometheusRule", "")["spec"]["groups"][0]["rules"]
    assert {item["annotations"]["dashboard_url"] for item in rules} == urls
    assert not charts.render(_REDIS).of_kind("Ingress")


def test_each_namespace_has_its_own_daemons(charts: Charts) -> None:
    """Workers and schedulers of each; one dashboard shows all."""
    web = {"web": {"enabled": True, "users": {"name": "u"}, "url": "https://jobs.example.org"}}
    workers = {"workers": {"small": {"autoscaling": {"type": "keda"}}}}
    rendered = charts.render({**_REDIS, **web, **workers, "namespaces": ["main", "a"]})
    found = {
        name: (environment(container)["NONET_NAMESPACE"], pod["metadata"]["labels"])
        for name, pod in rendered.pods(hooks=False)
        for container in pod["spec"]["containers"]
    }
    for kind in ("worker-small", "worker-medium", "worker-large", "scheduler"):
        for namespace in ("main", "a"):
            own, labels = found[f"prod-nonet-{kind}-{namespace}"]
            assert own == labels["nonet/namespace"] == namespace
            selector = rendered.named("Deployment", f"-{kind}-{namespace}")["spec"]["selector"]
            assert selector["matchLabels"]["nonet/namespace"] == namespace
    assert found["prod-nonet-web"][0] == "main" and len(found) == 9
    (container,) = rendered.named("Deployment", "-web")["spec"]["template"]["spec"]["containers"]
    assert environment(container)["NONET_WEB_NAMESPACES"] == "a"
    (trigger,) = rendered.named("ScaledObject", "-worker-small-a")["spec"]["triggers"]
    assert "//prod-nonet-scheduler-a." in trigger["metadata"]["url"]
