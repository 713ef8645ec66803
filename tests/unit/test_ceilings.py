"""The ceilings of a configuration, seen from the classes of a process."""

from __future__ import annotations

import pytest

from nonet import BaseTask
from nonet.base.errors import ConfigurationError
from nonet.config.models import AdmissionConfig
from nonet.config.reading import parse_config, parse_sound
from nonet.scheduler.configuration.configuration_loop import check
from nonet.scheduler.configuration.limits import configured_admission
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
        config = parse_config(f"admission: {{tasks: {{'{name}': 5}}}}", "c.yaml")
        assert configured_admission(config, registry).tasks == {"files:Sweep": 5}
        assert check(config, registry).ceilings == 1
    assert configured_admission(parse_config("{}", "c.yaml"), registry) == AdmissionConfig()


def test_what_is_no_class_is_told_with_all_else(registry: Registry) -> None:
    """Each with its line and what is near, also beside mistakes in other sections."""
    text = (
        "admission:\n tasks:\n  Swep: 5\n  Sweep: 5\n  files:Sweep: 6\n"
        "common: {tasks: {Nobody: {}}}"
    )
    with pytest.raises(ConfigurationError) as refused:
        check(parse_config(text, "c.yaml"), registry)
    assert str(refused.value).splitlines() == [
        "c.yaml:3: admission.tasks.Swep: unknown task 'Swep'. Did you mean files:Sweep?",
        "c.yaml:5: admission.tasks.files:Sweep: is the same class as 'Sweep': write it once",
        "c.yaml:6: common.tasks.Nobody: unknown task 'Nobody'. Known are files:Sweep: those of"
        " installed packages and of modules in NONET_TASKS or --tasks.",
    ]


def test_a_bad_ceiling_does_not_hide_an_unknown_class(registry: Registry) -> None:
    """What is sound of a bad section is looked at too."""
    text = "admission: {namespace: 0, tasks: {Swep: 5, Sweep: x}}"
    config, problems = parse_sound([("c.yaml", text)], "c.yaml")
    assert len(problems) == 2
    with pytest.raises(ConfigurationError, match=r"admission\.tasks\.Swep: unknown task"):
        configured_admission(config, registry)
