"""The image, built from this checkout and run as a cluster would: a strange user, a root that is
read-only, no capabilities. `make image-test` builds it and prints the figures."""

from __future__ import annotations

import json
import subprocess
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from image import engine as engines
from image.engine import Container, Engine
from ports import free_port
from waits import wait_until

ROOT = Path(__file__).parents[2]
IMAGE, USER_IMAGE = "localhost/nonet:test", "localhost/nonet-user:test"
# As in docs/how-to/deploy-with-helm.md#build-an-image: two lines.
DOCKERFILE = f"""\
FROM {IMAGE}
RUN --mount=type=bind,target=/context pip install /context/mytasks-1.0-py3-none-any.whl
"""
MODULE = '''
import asyncio, os, subprocess
from dataclasses import dataclass
from nonet import BaseTask, Size

@dataclass
class Look(BaseTask):
    """Who and where it is."""

    size = Size.SMALL

    async def execute(self) -> dict:
        return {"uid": os.getuid(), "gid": os.getgid(), "pid": os.getpid(), "cwd": os.getcwd()}

@dataclass
class Sleep(BaseTask):
    """Says that it runs, and sleeps."""

    seconds: float
    size = Size.SMALL

    async def execute(self) -> str:
        print("it sleeps", flush=True)
        await asyncio.sleep(self.seconds)
        return "slept"

@dataclass
class Leave(BaseTask):
    """Leaves an orphan behind."""

    size = Size.SMALL

    async def execute(self) -> None:
        subprocess.run(["sh", "-c", "sleep 0.1 &"], check=True)
'''
FORBIDDEN = ("gcc", "cc", "c++", "ld", "make", "uv", "git")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not engines.is_possible(), reason="needs docker, or root"),
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    """What runs containers, after it has built the image."""
    began = time.monotonic()
    subprocess.run([ROOT / "scripts" / "image", IMAGE], check=True)
    found = engines.find(IMAGE)
    assert found is not None, "neither docker nor podman can run what was built"
    size = int(found.call("image", "inspect", "--format={{.Size}}", IMAGE, check=True).stdout)
    print(f"\nbuilt by {found.name} in {time.monotonic() - began:.0f} s: {size / 1e6:.0f} MB")
    return found


@pytest.fixture(scope="module")
def user_image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with a task package on top."""
    context = tmp_path_factory.mktemp("context")
    context.chmod(0o755)  # pip is not root in there
    (context / "Dockerfile").write_text(DOCKERFILE)
    info = "mytasks-1.0.dist-info"
    with zipfile.ZipFile(context / "mytasks-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("mytasks.py", MODULE)
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: mytasks\nVersion: 1.0\nRequires-Dist: nonet\n",
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        entries = "".join(f"{name} = mytasks:{name}\n" for name in ("Look", "Sleep", "Leave"))
        wheel.writestr(f"{info}/entry_points.txt", f"[nonet.tasks.mine]\n{entries}")
        wheel.writestr(f"{info}/RECORD", "")
    options = [] if engine.name == "docker" else ["--isolation=chroot", "--format=docker"]
    engine.call("build", "--tag", USER_IMAGE, *options, str(context), check=True)
    return USER_IMAGE


@pytest.fixture
def environment(redis_url: str) -> dict[str, str]:
    """What each container is told."""
    port = str(free_port())
    return {"NONET_REDIS_URL": redis_url, "NONET_METRICS_PORT": port, "NONET_GRACE": "20"}


@pytest.fixture
def worker(engine: Engine, user_image: str, environment: dict[str, str]) -> Iterator[Container]:
    """A small worker, ready."""
    command = ("task-worker", "--size", "small")
    with engine.start(user_image, *command, environment=environment) as started:
        started.wait_ready()
        yield started


def _submit(engine: Engine, environment: Mapping[str, str], *words: str) -> str:
    """What is printed by ``task-run submit``, which succeeds."""
    done = engine.run(USER_IMAGE, "task-run", "submit", *words, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_image_has_the_commands_and_no_build_tools(engine: Engine) -> None:
    """Its user has no rights."""
    names = " ".join(("task-worker", "task-scheduler", "task-run", "pip", *FORBIDDEN))
    script = f"id -u; id -g; pwd; ls /opt; for name in {names}; do command -v $name; done"
    words = engine.run(IMAGE, "sh", "-c", script).stdout.split()
    commands = ("task-worker", "task-scheduler", "task-run", "pip")
    expected = ["10001", "10001", "/var/lib/nonet", "nonet", "tasks"]
    assert words == [*expected, *(f"/opt/nonet/bin/{name}" for name in commands)]


def test_the_image_declares_how_it_is_run(engine: Engine) -> None:
    """It has a user, a stop signal, a health check and an init, and no volume."""
    found = json.loads(engine.call("image", "inspect", IMAGE, check=True).stdout)[0]
    config = found["Config"]
    health = config.get("Healthcheck") or found.get("HealthCheck") or found.get("Healthcheck")
    assert health["Test"] == ["CMD", "task-run", "probe", "livez"]
    assert (config["User"], config["StopSignal"]) == ("10001:10001", "SIGTERM")
    assert config["Entrypoint"] == ["tini", "--"] and not config.get("Volumes")
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] not in ("", "unknown")


def test_a_task_runs(engine: Engine, worker: Container, environment: dict[str, str]) -> None:
    """It is submitted in one container and done in another."""
    said = _submit(engine, environment, "mine:Look", "--wait", "60")
    assert "'uid': 10001" in said and "'cwd': '/var/lib/nonet'" in said
    assert worker.execute("task-run", "probe", "readyz").returncode == 0
    began = time.monotonic()
    assert worker.execute("task-run", "probe", "livez").stdout == "livez: ok\n"
    print(f"\nexec of a probe: {time.monotonic() - began:.2f} s")
    # It is the user's own, so that only the read-only root can forbid this.
    assert "Read-only file system" in worker.execute("touch", "/opt/tasks/new").stderr


def test_a_medium_worker_forks_with_a_read_only_root(
    engine: Engine, user_image: str, environment: dict[str, str]
) -> None:
    """Its child runs the task."""
    command = ("task-worker", "--size", "medium")
    with engine.start(user_image, *command, environment=environment) as medium:
        medium.wait_ready()
        words = ("mine:Look", "--label", "size=medium", "--wait", "60")
        assert "'uid': 10001" in _submit(engine, environment, *words)


def test_a_scheduler_leads(engine: Engine, environment: dict[str, str]) -> None:
    """The same image is a scheduler, which ends with 0 on SIGTERM."""
    with engine.start(IMAGE, "task-scheduler", environment=environment) as scheduler:
        wait_until(
            lambda: scheduler.execute("task-run", "probe", "readyz").returncode == 0, "it leads"
        )
        assert scheduler.stop(20) == 0, scheduler.log


def test_stopping_the_container_drains_the_worker(
    engine: Engine, worker: Container, environment: dict[str, str]
) -> None:
    """SIGTERM to process 1 lets the running task end."""
    id = _submit(engine, environment, "mine:Sleep", "--args", "[2]")
    wait_until(lambda: "it sleeps" in worker.log, "the task runs")
    began = time.monotonic()
    assert worker.stop(40) == 0, worker.log
    print(f"\nstopped in {time.monotonic() - began:.1f} s")
    status = engine.run(USER_IMAGE, "task-run", "status", id, "--json", environment=environment)
    assert json.loads(status.stdout)["state"] == "done"


def test_orphans_are_reaped(engine: Engine, worker: Container, environment: dict[str, str]) -> None:
    """A process that a task leaves behind does not stay a zombie."""
    _submit(engine, environment, "mine:Leave", "--wait", "60")
    count = "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l; grep -sc sleep /proc/[0-9]*/comm"

    def left() -> bool:
        zombies, *sleeping = worker.execute("sh", "-c", count).stdout.split()
        return zombies == "0" and all(line.endswith(":0") for line in sleeping)

    wait_until(left, "no process is left behind")


def test_a_task_package_changes_nothing_of_nonet(engine: Engine) -> None:
    """pip refuses another version of a package that Nonet was locked to."""
    refused = engine.run(IMAGE, "pip", "install", "--no-index", "redis<8")
    assert refused.returncode != 0
    assert "constraint" in refused.stdout + refused.stderr
