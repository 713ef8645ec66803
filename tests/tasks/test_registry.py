"""From names to classes: modules, entry points, duplicates, and what is refused and why."""

import math
import re
import textwrap
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tasks.conftest import HEADER, Install

from nonet import BaseTask, Isolation, PeriodicBaseTask, PeriodicVoAwareBaseTask, Unique
from nonet.base import versions
from nonet.base.errors import RegistrationError, UnknownTaskError
from nonet.tasks.registry import Registry, vos_from_entry_points
from nonet.tasks.retry import ExponentialBackoff
from nonet.tasks.schedules import CronSchedule


@dataclass
class Audit(BaseTask):
    path: str

    async def execute(self) -> int: ...


class Other(BaseTask):
    async def execute(self) -> int: ...


def make_audit() -> type[BaseTask]:
    """Another class called Audit."""

    @dataclass
    class Audit(BaseTask):
        async def execute(self) -> int: ...

    return Audit


REMOVE = """
    @dataclass
    class RemoveFile(BaseTask):
        async def execute(self): ...
"""


# --- names ----------------------------------------------------------------------------------------


def test_classes_are_found_by_full_and_by_unique_bare_name() -> None:
    registry = Registry()
    added = registry.add(Audit, "files")
    assert added.name == "files:Audit"
    assert registry.get("files:Audit") is registry.get("Audit") is added
    assert registry.find("files:Audit") is added
    assert registry.find("Audit") is None
    assert registry.of(Audit("/a")) is added
    assert [item.name for item in registry] == ["files:Audit"]


def test_an_ambiguous_bare_name_lists_the_full_ones() -> None:
    registry = Registry()
    places = ("sites", "files", "z", "jobs", "y")  # more than the nearest three
    for category in places:
        registry.add(make_audit(), category)
    names = " or ".join(f"{category}:Audit" for category in sorted(places))
    with pytest.raises(UnknownTaskError, match=f"'Audit' is ambiguous: write {names}"):
        registry.get("Audit")


@pytest.mark.parametrize("name", ["Audt", "files:Audt", "file:Audit", "audit"])
def test_an_unknown_name_suggests_the_nearest(name: str) -> None:
    registry = Registry()
    registry.add(Audit, "files")
    with pytest.raises(UnknownTaskError, match=r"Did you mean files:Audit\?"):
        registry.get(name)


def test_the_error_of_an_unregistered_class_names_its_module() -> None:
    with pytest.raises(RegistrationError, match=rf"Audit is not registered.*\({__name__}\)"):
        Registry().of(Audit("/a"))


def test_registering_a_class_again_changes_nothing() -> None:
    registry = Registry()
    assert registry.add(Audit, "files", "one") is registry.add(Audit, "files", "two")


# --- modules --------------------------------------------------------------------------------------


def test_the_last_part_of_a_module_is_the_category(install: Install, tmp_path: Path) -> None:
    """Its own classes with an execute() are tasks; bases and imported ones are not."""
    shared = "class Shared(BaseTask):\n    def execute(self): ...\n"
    install("registry-package", shared)
    source = """
        from abc import abstractmethod, ABC
        from registry_package import Shared

        class Base(BaseTask):
            pass

        class Abstract(Base, ABC):
            @abstractmethod
            def execute(self): ...

        class Concrete(Abstract):
            def execute(self): ...
    """
    package = tmp_path / "registry-package" / "registry_files"
    package.mkdir()
    (package / "files.py").write_text(HEADER + textwrap.dedent(source))
    registry = Registry()
    registry.add_module("registry_files.files")
    assert [item.name for item in registry] == ["files:Concrete"]
    assert registry.get("Concrete").location == "registry_files.files.Concrete"


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("nowhere.tasks", "No module named 'nowhere'"),
        ("nonet.base.keys", "defines no task"),
        ("", "write the full name"),
        (".x", "write the full name"),
        ("x..y", "write the full name"),
    ],
)
def test_a_module_without_tasks_is_refused(module: str, reason: str) -> None:
    with pytest.raises(RegistrationError, match=rf"'{re.escape(module)}'.*{reason}"):
        Registry().add_module(module)


def test_a_class_without_execute_is_a_warning(install: Install) -> None:
    """A base is not: another class derives from it."""
    source = """
    class Base(BaseTask): ...
    class Copy(Base):
        def excute(self): ...
    """
    install("nonet-test-skips", REMOVE + source)
    registry = Registry()
    registry.add_module("nonet_test_skips")
    warning = "nonet_test_skips.Copy has no execute() and is not a task"
    assert registry.warnings() == [warning]
    with pytest.raises(UnknownTaskError, match=re.escape(warning)):
        registry.get("nonet_test_skips:Copy")


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("nonet_test_file.py", "this is the name of a file: write the name of the module, "),
        ("__main__", "workers cannot import the script that you run: move the class"),
    ],
)
def test_a_file_or_script_is_refused_with_the_name_to_write(
    install: Install, module: str, advice: str
) -> None:
    install("nonet-test-file", REMOVE)
    with pytest.raises(RegistrationError, match=f"tasks module '{module}': {advice}"):
        Registry().add_module(module)


def test_a_class_of_the_script_must_move_into_a_module() -> None:
    """With ``__main__`` in NONET_TASKS it would queue tasks that no worker knows."""
    cls = type("Hello", (Other,), {"__module__": "__main__"})
    with pytest.raises(RegistrationError, match=r"cannot import the script .* move the class into"):
        Registry().of(cls())


def test_an_error_of_a_module_names_the_line(install: Install) -> None:
    source = "from nonet import CronSchedule\nwhen = CronSchedule('* * * *')\n"
    install("nonet-test-lines", source, header="\n")
    with pytest.raises(RegistrationError, match=r"cron expression.* \(nonet_test_lines\.py:3\)$"):
        Registry().add_module("nonet_test_lines")


BROKEN = [
    ("1 / 0", "ZeroDivisionError: division by zero"),
    ("def f(:", "SyntaxError: invalid syntax"),
    ("import pydantic\nclass M(pydantic.BaseModel):\n    a: open", "PydanticSchemaGeneration"),
    ("class M(BaseTask):\n    a: int\nM(1, 2)", "TypeError: "),
    ("raise SystemExit('bye')", "SystemExit: bye"),
    ("LockedObjectType = __import__('nonet').register_locked_object_type('a b')", "'a b'"),
]


@pytest.mark.parametrize(("source", "reason"), BROKEN)
def test_a_module_or_entry_point_that_raises_is_named(
    install: Install, source: str, reason: str
) -> None:
    """The error names what cannot be imported, and has the error of the import as its cause."""
    install("nonet-test-raises", source, "[nonet.tasks.files]\na = nonet_test_raises:A\n")
    with pytest.raises(RegistrationError, match="'nonet_test_raises' cannot be im") as of_module:
        Registry().add_module("nonet_test_raises")
    with pytest.raises(RegistrationError, match="nonet_test_raises:A cannot be") as of_entry:
        Registry().add_entry_points(["nonet"])
    for caught in (of_module, of_entry):
        assert reason in str(caught.value)
        assert caught.value.__cause__ is not None


def test_two_classes_of_one_name_in_one_module_are_refused_with_their_lines(
    install: Install,
) -> None:
    install("nonet-test-twice", f"{REMOVE}\n    Old = RemoveFile\n{REMOVE}")
    with pytest.raises(RegistrationError, match="'nonet_test_twice:RemoveFile'") as caught:
        Registry().add_module("nonet_test_twice")
    lines = re.findall(r"nonet_test_twice\.py:(\d+)\)", str(caught.value))
    assert len(set(lines)) == 2
    assert "NONET_EXTENSIONS" not in str(caught.value)


def test_two_modules_of_one_category_share_no_name(install: Install) -> None:
    """Both are needed, so the error names a category of its own first; a rank drops one of them."""
    install("nonet-test-shop", REMOVE)
    install("nonet-test-billing", REMOVE)
    registry = Registry()
    registry.add_module("nonet_test_shop", "tasks")
    with pytest.raises(RegistrationError, match=r"an entry point in nonet\.tasks\.CAT") as caught:
        registry.add_module("nonet_test_billing", "tasks")
    (ranking,) = re.findall(r"NONET_EXTENSIONS=(\S+)", str(caught.value))
    ranked = Registry(ranking.split(","))
    ranked.add_module("nonet_test_shop", "tasks")
    ranked.add_module("nonet_test_billing", "tasks")
    assert ranked.get("tasks:RemoveFile").package == "nonet_test_billing"


# --- entry points ---------------------------------------------------------------------------------


def test_entry_points_give_category_and_class(install: Install) -> None:
    """Group ``<prefix>.tasks.<category>`` → ``<category>:<Class>``; other prefixes are ignored."""
    install(
        "nonet-test-one",
        REMOVE,
        """
        [nonet.tasks.files]
        remove = nonet_test_one:RemoveFile

        [mine.tasks.jobs]
        remove = nonet_test_one:RemoveFile
        """,
    )
    registry = Registry()
    registry.add_entry_points(["nonet"])
    assert registry.get("files:RemoveFile").package == "nonet-test-one"
    assert registry.find("jobs:RemoveFile") is None
    registry.add_entry_points(["nonet", "mine", "mine"])
    assert registry.find("jobs:RemoveFile") is not None


def test_lock_types_of_entry_points_are_registered_before_tasks(install: Install) -> None:
    tasks = """
        from nonet import LockedObjectType, MutexLock

        class ByType(BaseTask):
            execution_locks = [MutexLock(LockedObjectType.TEST_REGISTRY_DATASET, 1)]
            def execute(self): ...
    """
    types = """
        from nonet import register_locked_object_type
        DATASET = register_locked_object_type("test_registry_dataset")
    """
    entry_points = """
        [nonet.tasks.files]
        a = nonet_test_locks:ByType
        [nonet.lock_object_types]
        z = nonet_test_locks_types:DATASET
    """
    install("nonet-test-locks", tasks, entry_points)
    install("nonet-test-locks-types", types)
    registry = Registry()
    registry.add_entry_points(["nonet"])
    (lock,) = registry.get("ByType").cls().execution_locks
    assert lock.redis_key == "lock:mutex:test_registry_dataset:1"


def test_an_entry_point_may_name_a_function(install: Install) -> None:
    source = """
        from nonet import task

        @task
        async def remove(path: str): ...
    """
    install("acme-tasks", source, "[nonet.tasks.files]\nremove = acme_tasks:remove\n")
    registry = Registry()
    registry.add_entry_points(["nonet"])
    assert [(item.name, item.package) for item in registry] == [("files:remove", "acme-tasks")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nonet_test_broken:Missing", "cannot be loaded.*Missing"),
        ("nonet_test_nowhere:Task", "cannot be loaded.*nonet_test_nowhere"),
        ("nonet_test_broken:dataclass", "is not a task class"),
    ],
)
def test_a_broken_entry_point_is_named(install: Install, value: str, reason: str) -> None:
    install("nonet-test-broken", "", f"[nonet.tasks.files]\na = {value}\n")
    with pytest.raises(RegistrationError, match=rf"{value}.*{reason}"):
        Registry().add_entry_points(["nonet"])


@pytest.fixture
def extensions(install: Install) -> None:
    for dist in ("nonet-test-base", "Nonet.Test_Ext", "nonet-test-last"):
        module = dist.replace("-", "_").replace(".", "_").lower()
        install(dist, REMOVE, f"[nonet.tasks.files]\nremove = {module}:RemoveFile\n")


@pytest.mark.usefixtures("extensions")
def test_two_packages_with_one_full_name_must_be_ranked() -> None:
    pattern = r"'files:RemoveFile' is defined twice.*nonet_test_.*nonet_test_.*NONET_EXTENSIONS"
    with pytest.raises(RegistrationError, match=f"(?s){pattern}"):
        Registry().add_entry_points(["nonet"])


@pytest.mark.usefixtures("extensions")
@pytest.mark.parametrize(
    ("ranking", "winner"),
    [
        (["nonet-test-ext", "nonet-test-base", "nonet-test-last"], "nonet_test_ext"),
        (["nonet-test-last", "nonet-test-ext", "nonet-test-base"], "nonet_test_last"),
        (["NONET_TEST_BASE", "nonet.test.ext", "nonet-test-last"], "nonet_test_base"),
        (["nonet-test-base", "nonet-test-ext"], "nonet_test_base"),
    ],
)
def test_the_first_ranked_package_wins(ranking: list[str], winner: str) -> None:
    registry = Registry(ranking)
    registry.add_entry_points(["nonet"])
    assert registry.get("files:RemoveFile").cls.__module__ == winner


def test_a_task_of_a_replaced_class_is_executed_by_the_winner() -> None:
    """Code that still submits the base's class gets the extension's behaviour."""
    base, extension = make_audit(), make_audit()
    registry = Registry(["extension", "base"])
    registry.add(base, "files", "base")
    registry.add(extension, "files", "extension")
    assert registry.of(base()).cls is extension


def test_vos_are_collected_from_entry_points(install: Install) -> None:
    install(
        "nonet-test-vos",
        'NAMES = ["lhcb", "gridpp"]\ndef more():\n    return ["lhcb", "dune"]\n',
        "[nonet.vos]\na = nonet_test_vos:NAMES\nb = nonet_test_vos:more\n",
        header="",
    )
    assert sorted(vos_from_entry_points(["nonet", "nonet"])) == ["dune", "gridpp", "lhcb"]


# --- refused --------------------------------------------------------------------------------------


class NotCallable(BaseTask):
    execute = 3


class Unserialisable(BaseTask):
    def __init__(self, thing: object, *rest: int) -> None: ...

    async def execute(self) -> None: ...


class Yields(BaseTask):
    async def execute(self) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (NotCallable, r"has no execute\(\) method"),
        (BaseTask, r"has no execute\(\) method"),
        (PeriodicVoAwareBaseTask, r"has no execute\(\) method"),
        (Unserialisable, r"\*rest of __init__"),
        (Yields, "is a generator"),
    ],
)
def test_a_class_that_cannot_work_is_refused_with_its_place(
    cls: type[BaseTask], reason: str
) -> None:
    with pytest.raises(RegistrationError, match=rf"{cls.__module__}\.{cls.__qualname__}.*{reason}"):
        Registry().add(cls, "tests")


# --- results --------------------------------------------------------------------------------------


def returning(hint: Any) -> type[BaseTask]:
    def execute(self: Any) -> Any: ...

    execute.__annotations__ = {"return": hint}
    return type("Returning", (BaseTask,), {"execute": execute})


@pytest.mark.parametrize(
    ("hint", "stored", "expected"),
    [
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 2], {1, 2}),
        (Decimal, Decimal("1.10"), Decimal("1.10")),
        (Audit, {"path": "/a"}, Audit("/a")),
        (int, "no number", "no number"),
        (Any, [1], [1]),
        ("Nowhere", [1], [1]),
        (None, None, None),
    ],
)
def test_a_result_is_converted_to_the_type_that_execute_promises(
    hint: Any, stored: Any, expected: Any
) -> None:
    """If it fits; otherwise it stays as it was stored, and nothing is raised."""
    assert Registry().add(returning(hint), "tests").typed_result(stored) == expected


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        (
            {"priority": "high"},
            "priority is 'high', but must be a nonet.Priority ('realtime', 'norm",
        ),
        ({"size": 3}, "size is 3"),
        ({"retry_policy": ExponentialBackoff}, "an instance of a RetryPolicyBase"),
        ({"_schedule": "* * * * *"}, "an instance of a TaskScheduleBase"),
        ({"default_schedule": CronSchedule}, "an instance of a TaskScheduleBase"),
        ({"soft_timeout": 0}, "soft_timeout is 0, but must be seconds above 0, or None"),
        ({"soft_timeout": True}, "soft_timeout is True"),
        ({"start_by": 0}, "start_by is 0, but must be seconds or a timedelta above 0, at most ten"),
        ({"start_by": datetime(2030, 1, 1)}, "start_by is datetime.datetime(2030, 1, 1, 0, 0)"),
        ({"hard_timeout": "60"}, "hard_timeout is '60'"),
        ({"hard_timeout": math.inf}, "hard_timeout is inf"),
        ({"hard_timeout": math.nan}, "hard_timeout is nan"),
        (
            {"soft_timeout": 60, "hard_timeout": 30.5},
            "hard_timeout is 30.5 s, but must not be shorter than soft_timeout, 60 s",
        ),
        ({"isolation": "thread"}, "isolation is 'thread', but must be a nonet.Isolation ('loop', "),
        ({"memory_limit": "512M"}, "memory_limit: '512M' is not an amount of memory"),
        ({"memory_limit": "512"}, "memory_limit is '512', but a process alone needs 32 MiB"),
        ({"cpu_limit": 0}, "cpu_limit is 0, but must be seconds above 0, or None"),
        ({"encrypted": "yes"}, "encrypted is 'yes', but must be True or False"),
        (
            {"isolation": Isolation.LOOP, "memory_limit": "1GiB"},
            "memory_limit cannot be enforced with isolation LOOP, where many tasks share a process",
        ),
        (
            {"unique": True},
            "unique is True, but must be a nonet.Unique, as Unique.until_done(), or",
        ),
        ({"unique": Unique.until_start()}, "unique: set _overlap, which controls"),
        ({"unique": Unique.until_done(), "durable": True}, "unique: a durable task is kept in SQL"),
        ({"isolation": "loop", "cpu_limit": 5}, "cpu_limit cannot be enforced with isolation LOOP"),
    ],
)
def test_a_class_attribute_of_the_wrong_kind_is_refused(
    attributes: dict[str, Any], problem: str
) -> None:
    async def execute(self: Any) -> None: ...

    cls = type("Odd", (PeriodicBaseTask,), {**attributes, "execute": execute})
    with pytest.raises(RegistrationError, match=re.escape(problem)):
        Registry().add(cls, "x")


def needing(min_version: object, module: str = "needing") -> type[BaseTask]:
    """A class of a module that needs a version of what brought it."""

    async def execute(self: Any) -> None: ...

    body = {"min_version": min_version, "execute": execute, "__module__": module}
    return type("Needing", (BaseTask,), body)


@pytest.mark.parametrize(
    ("min_version", "problem"),
    [
        ("newest", "min_version is 'newest', but must be a version as in '1.4'"),
        (1.4, "min_version is 1.4, but must be a version"),
        ("2", "min_version: the class submitted here needs my.dist 2, but 1 is"),
        ("1.0.1.dev0", "needs my.dist 1.0.1.dev0, but 1 is installed here"),
    ],
)
def test_a_version_that_no_worker_could_have_is_refused(
    install: Install, min_version: object, problem: str
) -> None:
    install("my.dist")
    with pytest.raises(RegistrationError, match=re.escape(problem)):
        Registry().add(needing(min_version), "x", "my.dist")


def test_a_version_needs_a_distribution() -> None:
    with pytest.raises(RegistrationError, match="module needing is in no installed"):
        Registry().add(needing("1"), "x")


def test_a_class_has_the_version_of_its_distribution(install: Install) -> None:
    install("my.dist")
    install("needing")
    registry = Registry()
    of_entry = registry.add(needing("1"), "x", "my.dist")
    of_module = registry.add(needing("0.9"), "y")
    unknown = registry.add(Other, "z")
    assert registry.versions() == {"x:Needing": "1", "y:Needing": "1", "z:Other": ""}
    assert [of_entry.too_old_for(least) for least in ("", "0.9", "1.0")] == ["", "", ""]
    assert of_entry.too_old_for("1.1") == "needs my.dist 1.1, but 1 is installed here"
    assert of_module.too_old_for("2") == "needs needing 2, but 1 is installed here"
    assert unknown.too_old_for("2") == "needs version 2, but has none here"
    assert unknown.too_old_for("") == ""


def test_a_shared_package_belongs_to_the_distribution_of_the_file(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("one")
    install("two")
    import two  # type: ignore[import-not-found]

    folder = Path(two.__file__).parent / "two-1.dist-info"
    (folder / "RECORD").write_text("two.py,,\n")
    both = [SimpleNamespace(metadata={"Name": name}) for name in ("one", "two")]
    monkeypatch.setattr(versions, "_distributions", lambda: {"two": both, "json": both})
    assert versions.distribution_of("two") == versions.Distribution("two", "1")
    assert versions.distribution_of("json") is None


def test_the_names_of_priorities_sizes_and_isolations_are_accepted() -> None:
    names = {"priority": "realtime", "size": "small", "isolation": "child"}
    assert Registry().add(type("Plain", (Other,), names), "x").name == "x:Plain"
