"""Redis servers of a test's own: one, a primary with replica and sentinels, or a cluster, to be killed."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

from tests.engines.dynamodb_local import free_port, wait_for_port
from tests.engines.redis_server import HOST, launch
from tests.engines.servers import launched, program
from tests.patience import wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "redis.md"
PASSWORD, AS_LIMITER = "p%40ss", "limiter:p%2540ss@"
CLUSTERED = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port")


def rules() -> list[str]:
    """The rules of a user as the page gives them."""
    (found,) = re.findall(r"ACL SETUSER limiter on >PASSWORD (.*)", PAGE.read_text(encoding="utf-8"))
    return str(found).split()


class OwnServer:
    """One server, and how to end it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port, self._options = free_port(), options
        self._folder = folder / str(self.port)
        self._folder.mkdir()
        self.start()

    def start(self) -> None:
        """Again, with what it kept."""
        self._process = launch(self.port, self._folder, *self._options)
        wait_for_port(self.port)

    @property
    def client(self) -> Any:
        """A driver that is not ours, for looking and for setting up."""
        return redis.Redis(HOST, self.port, decode_responses=True)

    def ask(self, *words: object) -> Any:
        with contextlib.closing(self.client) as client:
            return client.execute_command(*words)

    def let_in(self, *, without: str = "") -> None:
        """Make the user of ``AS_LIMITER``, who may do what the page says."""
        given = [rule for rule in rules() if rule != without]
        self.ask("ACL", "SETUSER", "limiter", "reset", "on", f">{PASSWORD}", *given)

    def signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()
        wait_until(self._is_gone)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _is_gone(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) != 0

    def stop(self) -> None:
        if self._process.poll() is None:
            self.kill()


class Fleet:
    """All servers of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: list[OwnServer] = []
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self._buses: list[tuple[int, int]] = []

    def server(self, *options: str) -> OwnServer:
        server = OwnServer(self.folder, *options)
        self.servers.append(server)
        return server

    def sentinels(
        self, primary: OwnServer, count: int = 3, replicas: int = 1, *, port: int = 0, more: str = ""
    ) -> list[int]:
        """Sentinels that agree on another primary as soon as two of them miss this one.

        They may know it by another port, and be told more.
        """
        ports = []
        for _ in range(count):
            own_port = free_port()
            folder = self.folder / f"sentinel-{own_port}"
            folder.mkdir()
            told = [
                f"port {own_port}\nbind {HOST}\ndir {folder}\n{more}",
                f"sentinel monitor limits {HOST} {port or primary.port} 2",
                "sentinel down-after-milliseconds limits 500",
                "sentinel failover-timeout limits 3000",
            ]
            (folder / "sentinel.conf").write_text("\n".join(told) + "\n")
            words = [program("redis-server"), str(folder / "sentinel.conf"), "--sentinel"]
            self._sentinels.append(launched(words, folder))
            wait_for_port(own_port)
            ports.append(own_port)
        for own_port in ports:
            with contextlib.closing(redis.Redis(HOST, own_port, decode_responses=True)) as one:
                wait_until(lambda one=one: _is_ready(one, count, replicas))  # type: ignore[misc]
        return ports

    def cluster(self, count: int = 3, more: Callable[[], Sequence[str]] = tuple) -> list[OwnServer]:
        """Servers that share the slots, each with more options of its own."""
        buses = [free_port() for _ in range(count)]  # by itself it takes one that may not exist
        nodes = [self.server(*CLUSTERED, str(bus), *more()) for bus in buses]
        self._buses = [(node.port, bus) for node, bus in zip(nodes, buses, strict=True)]
        for at, node in enumerate(nodes):
            first, last = at * 16384 // count, (at + 1) * 16384 // count - 1
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            node.ask("CLUSTER", "MEET", HOST, nodes[0].port, buses[0])
        for node in nodes:
            wait_until(lambda node=node: _is_whole(node, count))  # type: ignore[misc]
        return nodes

    def replicas(self, nodes: list[OwnServer], each: int = 1) -> list[list[OwnServer]]:
        """Replicas for each node of a cluster, which take its slots when it is gone."""
        made = []
        for node in nodes:
            bus = next(one for one in self._buses if one[0] == node.port)[1]
            known, mine = node.ask("CLUSTER", "MYID"), list[OwnServer]()
            for _ in range(each):
                own_bus = free_port()
                replica = self.server(*CLUSTERED, str(own_bus), "--repl-diskless-sync-delay", "0")
                replica.ask("CLUSTER", "MEET", HOST, node.port, bus)
                wait_until(lambda replica=replica, known=known: _follows(replica, known))  # type: ignore[misc]
                mine.append(replica)
            made.append(mine)
        everybody = [*nodes, *(one for some in made for one in some)]
        for one in everybody:
            wait_until(lambda one=one: _has_replicas(one, len(nodes), each))  # type: ignore[misc]
        for node in nodes:
            wait_until(
                lambda node=node: (  # type: ignore[misc]
                    node.ask("INFO", "replication").get(f"slave{each - 1}", {}).get("state") == "online"
                )
            )
        return made

    def stop(self) -> None:
        for sentinel in self._sentinels:
            os.killpg(sentinel.pid, signal.SIGKILL)
            sentinel.wait()
            assert sentinel.stdin is not None
            sentinel.stdin.close()
        for server in self.servers:
            server.stop()


@contextlib.contextmanager
def moving(nodes: list[OwnServer], slot: int) -> Iterator[tuple[int, int]]:
    """Move a slot from one node to the next as an operator does.

    Within, all its keys are in the next one already, and the first still has the slot.
    """
    ids = [node.ask("CLUSTER", "MYID") for node in nodes]
    at = slot * len(nodes) // 16384
    while nodes[at].ask("CLUSTER", "COUNTKEYSINSLOT", slot) == 0:
        at = (at + 1) % len(nodes)
    to = (at + 1) % len(nodes)
    nodes[to].ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[at])
    nodes[at].ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
    while True:
        with contextlib.closing(redis.Redis(HOST, nodes[at].port)) as client:
            keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 5)
            if not keys:
                break
            client.execute_command("MIGRATE", HOST, nodes[to].port, "", 0, 5000, "KEYS", *keys)
    yield at, to
    for node in nodes:
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[to])


def _is_ready(sentinel: Any, count: int, replicas: int) -> bool:
    try:
        known = sentinel.sentinel_master("limits")
    except redis.RedisError:
        return False
    return int(known["num-slaves"]) == replicas and int(known["num-other-sentinels"]) == count - 1


def _is_whole(node: OwnServer, count: int) -> bool:
    with contextlib.closing(node.client) as client:
        facts = client.cluster("INFO")
        slots = client.cluster("SLOTS")
    return facts["cluster_state"] == "ok" and len(slots) == count


def _follows(replica: OwnServer, primary: str) -> bool:
    """Let a node follow another as soon as it has heard of it."""
    try:
        return bool(replica.ask("CLUSTER", "REPLICATE", primary))
    except redis.ResponseError:
        return False


def _has_replicas(node: OwnServer, count: int, each: int) -> bool:
    with contextlib.closing(node.client) as client:
        slots = client.execute_command("CLUSTER", "SLOTS")
        facts = client.cluster("INFO")
    known = int(facts["cluster_known_nodes"]) == count * (each + 1)
    return known and facts["cluster_state"] == "ok" and len(slots) == count and _full(slots, each)


def _full(slots: Any, each: int) -> bool:
    return str(slots).count("127.0.0.1") == len(slots) * (each + 1)


@contextlib.contextmanager
def fleet() -> Iterator[Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="zae-limiter-redis-", dir="/tmp"))
    folder.chmod(0o777)
    it = Fleet(folder)
    try:
        yield it
    finally:
        it.stop()
        shutil.rmtree(folder, ignore_errors=True)
