"""The manifests, played: daemons, probes, canary and drain as a kubelet would start them."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from daemons import Daemon
from ports import free_port, free_ports
from rendering import Charts, Object, Rendered, environment
from waits import WAIT_SECONDS, wait_until

_VALUES = {
    "redis": {"secret": {"name": "redis"}},
    "signing": {"secret": {"name": "signing"}},
    "config": {"files": {"nonet.yaml": {"vos": ["lhcb"]}}},
    "settings": {"NAMESPACE": "nonet"},
    "workerDefaults": {"autoscaling": {"type": "keda"}},
    "workers": {"medium": {"enabled": False}, "large": {"enabled": False}},
}


class Kubelet:
    """Runs containers of manifests as processes; what is mounted is in directories of a test."""

    def __init__(self, directory: Path, redis_url: str) -> None:
        self._directory = directory
        secrets = directory / "secrets"
        secrets.mkdir()
        (secrets / "redis-url").write_text(redis_url + "\n")
        (secrets / "signing-keys").write_text("k:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n")

    def mount(self, rendered: Rendered) -> None:
        """The ConfigMap of the configuration."""
        (self._directory / "config").mkdir()
        for name, text in rendered.named("ConfigMap", "-config")["data"].items():
            (self._directory / "config" / name).write_text(text)

    def environment(self, pod: str, container: Object, port: int = 0) -> dict[str, str]:
        """As in the manifest, but for where things are on this machine."""
        places = {"/etc/nonet": str(self._directory), "/var/lib/nonet": str(self._directory / pod)}
        found = environment(container)
        for here, there in places.items():
            found = {name: text.replace(here, there) for name, text in found.items()}
        return {**found, "NONET_METRICS_HOST": "127.0.0.1", "NONET_METRICS_PORT": str(port)}

    def start(self, pod: str, container: Object, port: int) -> Daemon:
        """Start a daemon."""
        env = self.environment(pod, container, port)
        return Daemon(*container["args"], environment=env, log=self._directory / f"{pod}.log")

    def run(self, pod: str, container: Object) -> subprocess.CompletedProcess[str]:
        """Run the command of a container."""
        name, *options = container["args"]
        return subprocess.run(
            [str(Path(sys.executable).parent / name), *options],
            env=self.environment(pod, container),
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )


@pytest.fixture
def kubelet(tmp_path: Path, redis_url: str) -> Kubelet:
    """One with an empty Redis."""
    return Kubelet(tmp_path, redis_url)


def test_rendered_daemons_run(charts: Charts, kubelet: Kubelet) -> None:
    """Daemons get ready and end at SIGTERM, the canary runs, and KEDA's number is there."""
    rendered = charts.render(_VALUES)
    kubelet.mount(rendered)
    first = free_ports(2)
    ports = {"scheduler": first, "worker": first + 1}
    with ExitStack() as stack:
        running: dict[str, tuple[Object, Daemon]] = {}
        for pod, _, container in rendered.daemons():
            kind = container["name"]
            daemon = stack.enter_context(kubelet.start(pod, container, ports[kind]))
            running[kind] = (container, daemon)
        for kind, (container, daemon) in running.items():
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                path = container[probe]["httpGet"]["path"]
                wait_until(
                    lambda at=(ports[kind], path): _get(*at)[0] == 200,
                    f"{kind} answers {path} ({daemon.log[-500:]})",
                )
        (trigger,) = rendered.named("ScaledObject", "-worker-small")["spec"]["triggers"]
        path = "/" + trigger["metadata"]["url"].rpartition("/")[2]
        wait_until(lambda: _get(ports["scheduler"], path)[0] == 200, "the demand is known")
        wanted = json.loads(_get(ports["scheduler"], path)[1])
        assert wanted[trigger["metadata"]["valueLocation"]] == 0

        (canary,) = rendered.hooks
        (container,) = canary["spec"]["containers"]
        ran = kubelet.run("canary", container)
        assert ran.returncode == 0, ran.stderr
        assert socket.gethostname() in ran.stdout

        for _, daemon in running.values():
            daemon.terminate()
            assert daemon.wait() == 0


def test_the_bundled_redis_runs(charts: Charts, tmp_path: Path) -> None:
    """A real server takes the bundled configuration, wants its password, and evicts nothing."""
    rendered = charts.ci("bundled")
    files = {
        "redis-config/redis.conf": rendered.named("ConfigMap", "-redis")["data"]["redis.conf"],
        "redis-secret/auth.conf": _decoded(rendered.named("Secret", "-redis"), "auth.conf"),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        text = text.replace("/etc/", f"{tmp_path}/").replace("dir /data", f"dir {tmp_path}")
        (tmp_path / name).write_text(text)
    (container,) = rendered.named("StatefulSet", "-redis")["spec"]["template"]["spec"]["containers"]
    command = [item.replace("/etc/", f"{tmp_path}/") for item in container["command"]]
    port = free_port()
    url = _decoded(rendered.named("Secret", "-redis"), "redis-url")
    url = url.replace("@prod-nonet-redis:6379/", f"@127.0.0.1:{port}/")
    with ExitStack() as stack:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL
        )
        stack.callback(server.wait)
        stack.callback(server.kill)
        client = stack.enter_context(redis.Redis.from_url(url))
        wait_until(lambda: _answers(client), "the server answers")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        stranger = stack.enter_context(redis.Redis(port=port))
        with pytest.raises(redis.AuthenticationError):
            stranger.ping()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _decoded(secret: Object, key: str) -> str:
    return base64.b64decode(secret["data"][key]).decode()


def _get(port: int, path: str) -> tuple[int, str]:
    """Status and body; 0 if the port is closed."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}{path}", timeout=WAIT_SECONDS
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
