"""The central configuration, and where it is read."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass
class Config:
    region: str


class ConfigSource:
    """`create` gives a source, not what is read from it: who starts a daemon replaces it."""

    @classmethod
    def create(cls) -> ConfigSource:
        return cls()

    def read(self) -> Config:
        return Config(os.environ["DIRACX_CONFIG_BACKEND_URL"])
