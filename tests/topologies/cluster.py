"""`Cluster`: three Redis nodes on free ports, and the move of a namespace from one to another.

with Cluster("acceptance") as cluster:
    move = cluster.begin_move()         # its slot is on two nodes from now on
    move.keys(10)                       # so many keys of it at a time
    move.end()                          # every node knows where the slot is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.crc import key_slot
from servers import FREE_PORT, RedisServer
from waits import wait_until

from nonet.base.keys import prefix

_SLOTS = 16384
_TIMEOUT_MS = 30_000


class Cluster:
    """Three masters without replicas; one of them holds all keys of a namespace.

    Args:
        namespace: whose slot may be moved.
        options: of each node's command line.
        make: the kind of server that the nodes are.

    Attributes:
        nodes: its servers; the slot of the namespace begins on the first.
        slot: that of the namespace.
    """

    def __init__(
        self, namespace: str, *options: str, make: Callable[..., RedisServer] = RedisServer
    ) -> None:
        self.slot = key_slot(prefix(namespace).encode())
        bus = ("--cluster-port", FREE_PORT, "--cluster-node-timeout", "500")
        self.nodes = [make("--cluster-enabled", "yes", *bus, *options) for _ in range(3)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            self._form()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        first = urlsplit(self.nodes[0].url)
        nodes = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return urlunsplit((f"{first.scheme}+cluster", nodes, "", first.query, ""))

    def url_for(self, command: str) -> str:
        return self.url

    @property
    def home(self) -> RedisServer:
        for node in self.nodes:
            if self._knows_home(node, node):
                return node
        raise AssertionError(f"no node has slot {self.slot}")

    @property
    def announcers(self) -> list[Callable[..., redis.Redis]]:
        """All nodes: what happens on one is announced by it alone."""
        return [node.client for node in self.nodes]

    def client(self, **options: Any) -> Any:
        """A client of the whole cluster, as if it were one server; close it."""
        first = self.nodes[0]
        url = first.url.removesuffix("/0")
        return redis.RedisCluster.from_url(url, **{"decode_responses": True, **options})

    def begin_move(self) -> Move:
        source = self.home
        return Move(self, source, self._after(source))

    def move_at_once(self) -> RedisServer:
        """Move it as Valkey 9 does by itself, all keys at a time; the node that has it then."""
        source = self.home
        target = self._after(source)
        with source.client() as old, target.client() as new:
            where = ("SLOTSRANGE", self.slot, self.slot)
            to = ("NODE", new.execute_command("CLUSTER", "MYID"))
            old.execute_command("CLUSTER", "MIGRATESLOTS", *where, *to)
        for node in self.nodes:
            wait_until(lambda node=node: self._knows_home(node, target), "all know the new node")
        return target

    def _after(self, node: RedisServer) -> RedisServer:
        return self.nodes[(self.nodes.index(node) + 1) % len(self.nodes)]

    def _knows_home(self, node: RedisServer, home: RedisServer) -> bool:
        with node.client() as client:
            return self._port_of_slot(client) == home.port

    def _port_of_slot(self, client: redis.Redis) -> int:
        for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
            if int(first) <= self.slot <= int(last):
                return int(port)
        return 0

    def _form(self) -> None:
        share = -(-_SLOTS // len(self.nodes))
        starts = [(self.slot // share * share + n * share) % (share * 3) for n in range(3)]
        first = self.nodes[0]
        with first.client() as client:
            bus = client.config_get("cluster-port")["cluster-port"]
        for epoch, (node, start) in enumerate(zip(self.nodes, starts, strict=True), 1):
            with node.client() as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
                last = min(start + share, _SLOTS) - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", start, last)
                if node is not first:
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, bus)
        for node in self.nodes:
            wait_until(lambda node=node: self._is_whole(node), "the cluster is formed")
            with node.client() as client:  # a short one forms it soon, a busy machine needs more
                client.config_set("cluster-node-timeout", 15000)

    def _is_whole(self, node: RedisServer) -> bool:
        with node.client() as client:
            info = str(client.execute_command("CLUSTER", "INFO"))
        return "cluster_state:ok" in info and f"cluster_known_nodes:{len(self.nodes)}" in info


class Move:
    """The move of a slot as an administrator does it: keys by keys, while clients continue.

    Attributes:
        source: the node that has the slot.
        target: the node that is to have it.
    """

    def __init__(self, cluster: Cluster, source: RedisServer, target: RedisServer) -> None:
        self.source, self.target = source, target
        self._cluster = cluster
        with source.client() as old, target.client() as new:
            self._source_id = old.execute_command("CLUSTER", "MYID")
            self._target_id = new.execute_command("CLUSTER", "MYID")
            slot = cluster.slot
            new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._source_id)
            old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._target_id)

    def keys(self, count: int) -> int:
        """Move so many keys; how many there were."""
        with self.source.client(decode_responses=False) as old:
            keys = old.execute_command("CLUSTER", "GETKEYSINSLOT", self._cluster.slot, count)
            if keys:
                to = ("127.0.0.1", self.target.port, "", 0, _TIMEOUT_MS)
                old.execute_command("MIGRATE", *to, "KEYS", *keys)
        return len(keys)

    def batches(self, count: int) -> Iterator[int]:
        """Move all keys, so many at a time."""
        while moved := self.keys(count):
            yield moved

    def end(self) -> None:
        """Tell all nodes where the slot is, the new one first."""
        others = [node for node in self._cluster.nodes if node not in (self.target, self.source)]
        for node in (self.target, self.source, *others):
            with node.client() as client:
                name = (self._cluster.slot, "NODE", self._target_id)
                client.execute_command("CLUSTER", "SETSLOT", *name)
