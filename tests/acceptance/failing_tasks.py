"""Tasks that fail, each in another place, with a cause that quotes a secret."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr

from nonet import BaseTask, ExponentialBackoff, Isolation, Size

PASSWORD = "hunter2-of-the-test"


def look_up(password: str) -> None:
    """Raise an error whose cause and whose local variables have the password."""
    users: dict[str, str] = {}
    try:
        users[password]
    except KeyError as error:
        raise LookupError(f"no user has {password}") from error


@dataclass
class FailsInLoop(BaseTask):
    """In a coroutine; retried once."""

    password: SecretStr
    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=0, max_retries=1)

    async def execute(self) -> None:
        look_up(self.password.get_secret_value())


@dataclass
class FailsInThread(FailsInLoop):
    """In a thread."""

    def execute(self) -> None:  # type: ignore[override]
        look_up(self.password.get_secret_value())


@dataclass
class FailsInChild(FailsInLoop):
    """In a child process."""

    isolation = Isolation.FRESH


@dataclass
class WaitsForRetry(FailsInLoop):
    """Is not retried before the test has ended."""

    retry_policy = ExponentialBackoff(base_delay_seconds=3600, max_retries=1)


@dataclass
class DeclinesInLoop(FailsInLoop):
    """Fails with an error that is no bug."""

    expected = (LookupError,)
    dlq_eligible = True


@dataclass
class DeclinesInChild(DeclinesInLoop):
    """The same in a child process."""

    isolation = Isolation.FRESH


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
