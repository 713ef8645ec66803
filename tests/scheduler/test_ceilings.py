"""The ceilings of a configuration, seen from the classes of a process."""

from __future__ import annotations

import json

import pytest

from nonet import BaseTask
from nonet.base.errors import ConfigurationError
from nonet.config.models import CeilingsConfig, Config
from nonet.config.reading import parse_config, parse_files, parse_sound
from nonet.scheduler.configuration.configuration_loop import check
from nonet.scheduler.configuration.limits import configured_ceilings
from nonet.tasks.registry import Registry


class Sweep(BaseTask):
    async def execute(self) -> None: ...


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    found.add(Sweep, "files")
    return found


def test_classes_get_their_full_names(registry: Registry) -> None:
    """As records have them, however they are written; nothing means no ceiling."""
    for name in ("Sweep", "files:Sweep"):
        config = parse_config(f"ceilings: {{tasks: {{'{name}': 5}}}}", "c.yaml")
        assert configured_ceilings(config, registry).tasks == {"files:Sweep": 5}
        assert check(config, registry).number_of_ceilings == 1
    assert configured_ceilings(parse_config("{}", "c.yaml"), registry) == CeilingsConfig()


def test_what_is_no_class_is_told_with_all_else(registry: Registry) -> None:
    """Each with its line and what is near, also beside mistakes in other sections."""
    text = (
        "ceilings:\n tasks:\n  Swep: 5\n  Sweep: 5\n  files:Sweep: 6\ncommon: {tasks: {Nobody: {}}}"
    )
    with pytest.raises(ConfigurationError) as refused:
        check(parse_config(text, "c.yaml"), registry)
    assert str(refused.value).splitlines() == [
        "c.yaml:3: ceilings.tasks.Swep: unknown task 'Swep'. Did you mean files:Sweep?",
        "c.yaml:5: ceilings.tasks.files:Sweep: is the same class as 'Sweep': write it once",
        "c.yaml:6: common.tasks.Nobody: unknown task 'Nobody'. Known are files:Sweep: those of"
        " installed packages and of modules in NONET_TASKS or --tasks.",
    ]


def test_a_bad_ceiling_does_not_hide_an_unknown_class(registry: Registry) -> None:
    """What is sound of a bad section is looked at too."""
    text = "ceilings: {namespace: 0, tasks: {Swep: 5, Sweep: x}}"
    config, problems = parse_sound([("c.yaml", text)], "c.yaml")
    assert len(problems) == 2
    with pytest.raises(ConfigurationError, match=r"ceilings\.tasks\.Swep: unknown task"):
        configured_ceilings(config, registry)


def test_the_old_name_is_read_with_a_warning() -> None:
    """Files that say `admission` go on to hold, and each says where to rename it."""
    config = parse_files([("a.yaml", "vos: [x]"), ("b.yaml", "\nadmission: {namespace: 7}")], "c")
    assert config.ceilings.namespace == 7
    assert config.warnings == ("b.yaml:2: admission is called ceilings now: rename it",)
    assert check(config, Registry()).warnings[0] == config.warnings[0]


def test_the_old_name_beside_the_new_one_is_refused() -> None:
    """Nobody could tell which of them holds."""
    with pytest.raises(ConfigurationError, match="unknown key 'admission'"):
        parse_config("ceilings: {namespace: 7}\nadmission: {namespace: 8}", "c.yaml")


def test_workers_of_the_version_before_read_what_is_published() -> None:
    """They know the old name alone; what they have published is read as well."""
    config = parse_config("ceilings: {namespace: 7}", "c.yaml")
    assert json.loads(config.document()) == {"admission": {"namespace": 7}}
    assert Config.from_document(config.document()).ceilings.namespace == 7
