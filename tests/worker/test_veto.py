"""Whether a worker fetches tasks: the memory and load that it measures, and its decision."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from nonet.worker.machine_load import free_memory, load_per_core
from nonet.worker.veto import Fitness, Veto

MIB = 2**20


class Machine:
    """A machine with a given amount of memory and control groups in files of the test."""

    def __init__(self, home: Path) -> None:
        self.memory = SimpleNamespace(available=0)
        self.proc, self.cgroups = home / "proc", home / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()

    def has(self, available_kib: int, group: str) -> None:
        self.memory.available = available_kib * 1024
        (self.proc / "self" / "cgroup").write_text(f"0::{group}\n")

    def limit(self, group: str, most: int | str, used: int, cache: int = 0) -> None:
        folder = self.cgroups / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")

    def free(self) -> int:
        return free_memory(self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine.memory)
    return machine


def test_free_memory_without_limits_is_that_of_the_machine(machine: Machine) -> None:
    machine.has(2048, "/")
    assert machine.free() == 2 * MIB
    machine.limit("", "max", 5 * MIB)
    assert machine.free() == 2 * MIB


def test_free_memory_is_bounded_by_the_tightest_control_group(machine: Machine) -> None:
    machine.has(1_000_000, "/pod/container")
    machine.limit("pod/container", 100 * MIB, 60 * MIB, cache=5 * MIB)
    assert machine.free() == 45 * MIB
    machine.limit("pod", 120 * MIB, 110 * MIB)
    assert machine.free() == 10 * MIB
    machine.limit("pod", 120 * MIB, 130 * MIB)
    assert machine.free() == 0


def test_the_root_of_a_container_is_its_control_group(machine: Machine) -> None:
    for seen in ("/", "/../other"):
        machine.has(1_000_000, seen)
        machine.limit("", 100 * MIB, 60 * MIB)
        assert machine.free() == 40 * MIB


def test_memory_and_load_of_this_machine_are_known() -> None:
    assert free_memory() > 0
    assert load_per_core() >= 0.0


def test_memory_is_measured_twice_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [100.0], [0]

    def free() -> int:
        looks[0] += 1
        return 10 - looks[0]

    def forbidden() -> float:
        raise AssertionError("the load is not configured")

    monkeypatch.setattr("nonet.worker.veto.time.monotonic", lambda: now[0])
    veto = Veto(Fitness(memory_floor=9), free=free, load=forbidden)
    assert [veto.reason() for _ in range(3)] == ["", "", ""]
    assert looks == [1]
    now[0] += 0.5
    assert veto.reason() == "memory: 8 B free, below the floor of 9 B"
    assert looks == [2]
    off = Veto(Fitness(), free=free, load=forbidden)
    assert (off.reason(), looks) == ("", [2])


@pytest.mark.parametrize(
    ("load", "reason"), [(1.0, ""), (1.01, "load: 1.01 per core, above the ceiling of 1")]
)
def test_a_load_above_the_ceiling_is_a_veto(load: float, reason: str) -> None:
    veto = Veto(Fitness(load_ceiling=1.0), free=lambda: 0, load=lambda: load)
    assert veto.reason() == reason
