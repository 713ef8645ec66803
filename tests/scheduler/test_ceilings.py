"""The ceilings of a configuration, seen from the classes of a process."""

from __future__ import annotations

import pytest

from nonet import BaseTask
from nonet.base.errors import ConfigurationError
from nonet.config.models import CeilingsConfig
from nonet.config.reading import parse_config
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


def test_ceilings_have_the_full_names_of_classes(registry: Registry) -> None:
    for name in ("Sweep", "files:Sweep"):
        config = parse_config(f"ceilings: {{tasks: {{'{name}': 5}}}}", "c.yaml")
        assert configured_ceilings(config, registry).tasks == {"files:Sweep": 5}
        assert check(config, registry).number_of_ceilings == 1
    assert configured_ceilings(parse_config("{}", "c.yaml"), registry) == CeilingsConfig()


def test_unknown_classes_are_reported_with_mistakes_of_other_sections(registry: Registry) -> None:
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
