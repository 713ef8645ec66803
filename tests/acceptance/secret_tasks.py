"""Tasks whose errors quote what they were given in confidence."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr

from nonet import BaseTask, ExponentialBackoff, Size

PASSWORD = "hunter-two"


@dataclass
class Blabs(BaseTask):
    """Says its password, and where it was used."""

    password: SecretStr
    lead: int = 0  # how long the text is before it

    size = Size.SMALL
    dlq_eligible = True
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=1)

    async def execute(self) -> None:
        password = self.password.get_secret_value()
        raise ValueError(f"{'.' * self.lead}bad {password} for https://me:s3cret-url@db.example/x")


@dataclass
class BlabsInChild(Blabs):
    """The same in a process that others use as well."""

    size = Size.MEDIUM


@dataclass
class Returns(BaseTask):
    """Has a result that cannot be stored, and says why."""

    password: SecretStr

    size = Size.SMALL

    async def execute(self) -> object:
        return {self.password.get_secret_value(): object()}
