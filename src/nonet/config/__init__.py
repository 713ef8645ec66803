"""The central configuration: what the YAML file may say, and how its mistakes are reported.

Process settings (URLs, durations) are in `nonet.settings`; this is what administrators of an
installation edit, in the form of the decision record. It is read as a whole or not at all.
"""

from __future__ import annotations

from nonet.config.models import (
    SHARED,
    AdmissionConfig,
    Config,
    Leftovers,
    Location,
    RetryPolicyConfig,
    ScheduleConfig,
    Section,
    SectionConfig,
    SizesConfig,
    TaskConfig,
    TaskOverride,
    dotted,
)
from nonet.config.reading import (
    Problem,
    parse_config,
    parse_files,
    parse_sound,
    problems_error,
)
from nonet.config.schema import json_schema
from nonet.config.wording import value_reason

__all__ = [
    "SHARED",
    "AdmissionConfig",
    "Config",
    "Leftovers",
    "Location",
    "Problem",
    "RetryPolicyConfig",
    "ScheduleConfig",
    "Section",
    "SectionConfig",
    "SizesConfig",
    "TaskConfig",
    "TaskOverride",
    "dotted",
    "json_schema",
    "parse_config",
    "parse_files",
    "parse_sound",
    "problems_error",
    "value_reason",
]
