"""`AclServer`: a Redis over TLS with the users of ``docs/how-to/prepare-redis.md``, one a role."""

from __future__ import annotations

import re
from pathlib import Path

from topologies.tls import TlsServer

PASSWORD = "s3cret"
_DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "prepare-redis.md"
_USERS = {"task-worker": "worker", "task-scheduler": "scheduler", "task-run": "operator"}


def users(namespace: str) -> dict[str, list[str]]:
    """Return the rules of each user that the page gives, for another namespace than its own."""
    (block,) = re.findall(r"```acl\n(.+?)```", _DOCUMENT.read_text(), re.DOTALL)
    rules = {}
    for line in block.splitlines():
        command, name, *rest = line.replace("{nonet}", f"{{{namespace}}}").split(maxsplit=3)
        assert (command, name) == ("ACL", "SETUSER")
        user, *said = " ".join(rest).replace("PASSWORD", PASSWORD).split()
        rules[user] = said
    return rules | {f"nonet-{role}": rules["nonet-worker"] for role in ("scheduler", "operator")}


class AclServer(TlsServer):
    """Lets each process in as the user of its role, and a test as the default user.

    Args:
        namespace: whose keys the users may touch.
    """

    def __init__(self, namespace: str, *options: str) -> None:
        super().__init__(*options)
        self._namespace = namespace

    @property
    def url(self) -> str:
        return self.url_of("nonet-client")

    def url_for(self, command: str) -> str:
        """Of the user that this process is to be."""
        return self.url_of(f"nonet-{_USERS.get(command, 'client')}")

    def url_of(self, user: str) -> str:
        return f"rediss://{user}:{PASSWORD}@127.0.0.1:{self.port}/0?{self.query}"

    def start(self) -> None:
        """Users are no data: each start makes them anew."""
        super().start()
        with self.client() as client:
            for user, rules in users(self._namespace).items():
                client.execute_command("ACL", "SETUSER", user, *rules)

    def denials(self) -> set[str]:
        with self.client() as client:
            return {f"{item['username']}: {item['object']}" for item in client.acl_log(1000)}
