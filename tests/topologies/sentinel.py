"""`Sentinels`: a master with two replicas, and the three sentinels that replace it.

with Sentinels() as sentinels:
    old = sentinels.port
    sentinels.kill()                    # the master
    sentinels.promoted(old)             # another one has its place
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import redis
from redis.sentinel import Sentinel
from servers import RedisServer, Server
from waits import wait_until

SERVICE = "nonet"
_QUORUM = 2
_DOWN_AFTER_MS = 1000


class Sentinels:
    """The servers of one service.

    Attributes:
        nodes: the data servers; the first begins as master.
        sentinels: who watch them.
    """

    def __init__(self, *options: str) -> None:
        self._options = (*options, "--repl-diskless-sync-delay", "0", "--repl-timeout", "10")
        self.nodes: list[RedisServer] = []
        self.sentinels: list[_SentinelServer] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            master = stack.enter_context(RedisServer(*self._options))
            follow = ("--replicaof", f"127.0.0.1 {master.port}")
            replicas = [stack.enter_context(RedisServer(*self._options, *follow)) for _ in range(2)]
            self.nodes = [master, *replicas]
            self.sentinels = [stack.enter_context(_SentinelServer(master.port)) for _ in range(3)]
            wait_until(self._is_whole, "every sentinel knows all servers and all others")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def url_for(self, command: str) -> str:
        return self.url

    @property
    def port(self) -> int:
        """Of the master, as the first sentinel has it."""
        with self.sentinels[0].client() as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            return int(port)

    @property
    def master(self) -> RedisServer:
        (found,) = [server for server in self.nodes if server.port == self.port]
        return found

    @property
    def pid(self) -> int:
        return self.master.pid

    def leads(self, port: int) -> bool:
        return port == self.port

    @property
    def announcers(self) -> list[Callable[..., redis.Redis]]:
        """The master alone: replicas announce what it has announced."""
        return [self.client]

    def client(self, **options: Any) -> redis.Redis:
        """A client of the current master; close it."""
        hosts = [("127.0.0.1", sentinel.port) for sentinel in self.sentinels]
        made = Sentinel(hosts).master_for(SERVICE, **{"decode_responses": True, **options})
        return made

    def kill(self) -> RedisServer:
        """Kill the master, as a crash would; which one it was."""
        master = self.master
        master.kill()
        return master

    def stop(self) -> None:
        self.master.stop()

    def fail_over(self) -> None:
        """Ask for another master; the old one becomes a replica."""
        with self.sentinels[0].client() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)

    def take_for_down(self, server: RedisServer) -> None:
        """Wait until all sentinels take a replica for down."""
        wait_until(
            lambda: all(server.port in sentinel.down for sentinel in self.sentinels),
            f"{server.port} is down for all sentinels",
        )

    def promoted(self, old: int) -> RedisServer:
        """Wait until all sentinels have replaced the master of this port; who it is now."""
        wait_until(self._agree_on_another(old), "there is another master", seconds=60)
        return self.master

    def restore(self) -> None:
        """Start who was killed, and wait until two replicas follow the master again."""
        for server in self.nodes:
            if not server.runs:
                server.start()
        wait_until(self._follow, "two replicas follow the master", seconds=60)

    def _agree_on_another(self, old: int) -> Any:
        def agree() -> bool:
            ports = set()
            for sentinel in self.sentinels:
                with sentinel.client() as client:
                    ports.add(
                        client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]
                    )
            return len(ports) == 1 and str(old) not in ports

        return agree

    def _follow(self) -> bool:
        with suppress(redis.RedisError), self.master.client() as client:
            state = client.info("replication")
            followers = [state.get(f"slave{n}") or {} for n in range(2)]
            return all(one.get("state") == "online" for one in followers)
        return False

    def _is_whole(self) -> bool:
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                state = client.execute_command("SENTINEL", "MASTER", SERVICE)
            if (int(state["num-slaves"]), int(state["num-other-sentinels"])) != (2, 2):
                return False
        return self._follow()


class _SentinelServer(Server):
    binary_name = "redis-server"

    def __init__(self, master: int) -> None:
        super().__init__()
        self._master = master

    def client(self) -> redis.Redis:
        """A client of the sentinel itself; close it."""
        return redis.Redis(port=self.port, decode_responses=True)

    @property
    def down(self) -> set[int]:
        """The ports of the replicas that it takes for down."""
        with self.client() as client:
            replicas = client.execute_command("SENTINEL", "REPLICAS", SERVICE)
        return {int(one["port"]) for one in replicas if "s_down" in one["flags"]}

    def _options(self, port: int) -> list[str]:
        # A file that it writes: its own id, whom it knows, and who leads.
        if not self._file.exists():
            self._file.write_text(
                f"sentinel monitor {SERVICE} 127.0.0.1 {self._master} {_QUORUM}\n"
                f"sentinel down-after-milliseconds {SERVICE} {_DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {SERVICE} 6000\n"
            )
        listen = f"--port {port} --bind 127.0.0.1 --dir {self.data}"
        return [str(self._file), "--sentinel", *listen.split()]

    @property
    def _file(self) -> Path:
        return self.data / "sentinel.conf"

    def _answers(self, port: int) -> bool:
        with redis.Redis(port=port, socket_timeout=1) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False
