"""Which server to ask: the only one, the one that sentinels name, or the one that has a slot of a cluster.

Each remembers what it found until somebody is told to ask elsewhere, and finds it anew then. Nothing is
asked of a server that has not said to be a primary, if sentinels named it: one that was put down may not
know it yet.
"""

from __future__ import annotations

import binascii
import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from ..pool import Pooled
from .address import Login, RedisAddress
from .resp import Refused, Reply, command
from .trouble import RedisTrouble, not_sent, trouble_of, unreadable

if TYPE_CHECKING:
    from .blocking import ThreadsToRedis
    from .loop import LoopToRedis

    Network: TypeAlias = ThreadsToRedis | LoopToRedis

SLOTS = 16_384
CLIENT_HINT = "if it asks clients for a certificate, give tls_cert=FILE and tls_key=FILE that it trusts"
_MOVED = re.compile(r"(?:MOVED|ASK) (\d{1,5}) (.*):(\d{1,5})$")


class RedisConnection(Pooled, Protocol):
    async def exchange(self, request: bytes, count: int, until_ms: float) -> list[Reply]:
        """Send something and return so many replies."""


class Servers(Protocol):
    is_cluster: bool
    login: Login

    async def locate(self, network: Network, tag: bytes, until_ms: float) -> RedisAddress:
        """Who has the keys of a namespace."""

    async def connect(self, network: Network, address: RedisAddress, until_ms: float) -> RedisConnection:
        """A connection on which everything was said that comes first."""

    def forget(self) -> None:
        """Find it anew next time."""

    def moved(self, refused: Refused, address: RedisAddress) -> RedisAddress:
        """Where a server says to ask instead."""


class OneServer:
    is_cluster = False

    def __init__(self, address: RedisAddress, login: Login) -> None:
        self.login = login
        self._address = address

    def __str__(self) -> str:
        return f"at {self._address}"

    async def locate(self, network: Network, tag: bytes, until_ms: float) -> RedisAddress:
        del network, tag, until_ms
        return self._address

    async def connect(self, network: Network, address: RedisAddress, until_ms: float) -> RedisConnection:
        return await greeted(network, address, self.login, until_ms)

    def forget(self) -> None:
        """There is no other."""

    def moved(self, refused: Refused, address: RedisAddress) -> RedisAddress:
        raise RedisTrouble(
            f"{address} is part of a cluster ({refused.code}); use redis+cluster:// for it",
            misconfigured="server",
        )


class Sentinels:
    """The primary that sentinels know under a name."""

    is_cluster = False

    def __init__(self, sentinels: Sequence[RedisAddress], service: str, login: Login) -> None:
        self.login = login
        self._sentinels, self._service = list(sentinels), service
        self._primary: RedisAddress | None = None

    def __str__(self) -> str:
        return f"service {self._service!r}"

    async def locate(self, network: Network, tag: bytes, until_ms: float) -> RedisAddress:
        del tag
        if self._primary is not None:
            return self._primary
        failed: RedisTrouble | None = None
        asked = command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        for sentinel in list(self._sentinels):
            try:
                (reply,) = await _asked_once(network, sentinel, Login(), asked, until_ms)
                named = _primary_of(reply, sentinel)
            except RedisTrouble as trouble:
                failed = trouble
                continue
            if isinstance(reply, Refused):
                failed = RedisTrouble(f"sentinel {sentinel}: {trouble_of(reply)}", transient=True)
                if "unknown command" in reply.message.lower():
                    what = f"{sentinel} is no sentinel; name sentinels, or use redis:// for it"
                    raise RedisTrouble(what, misconfigured="server")
            elif named is not None:
                # The one that answered is asked first next time.
                self._sentinels.sort(key=lambda one: one != sentinel)
                self._primary = named
                return named
            else:
                failed = RedisTrouble(
                    f"sentinel {sentinel} knows no service {self._service!r}", transient=True
                )
        raise not_sent(f"no sentinel names a primary: {failed}")

    async def connect(self, network: Network, address: RedisAddress, until_ms: float) -> RedisConnection:
        return await greeted(network, address, self.login, until_ms, as_primary=True)

    def forget(self) -> None:
        self._primary = None

    moved: Final = OneServer.moved


class Cluster:
    """The nodes of a cluster, by slot."""

    is_cluster = True

    def __init__(self, seeds: Sequence[RedisAddress], login: Login) -> None:
        self.login = login
        self._seeds = list(seeds)
        self._nodes: dict[int, RedisAddress] = {}

    def __str__(self) -> str:
        return f"cluster at {', '.join(map(str, self._seeds[:3]))}"

    async def locate(self, network: Network, tag: bytes, until_ms: float) -> RedisAddress:
        slot = slot_of(tag)
        if slot not in self._nodes:
            self._nodes = await self._slots(network, until_ms)
        if slot not in self._nodes:
            raise not_sent(f"no node of the cluster has slot {slot}")
        return self._nodes[slot]

    async def connect(self, network: Network, address: RedisAddress, until_ms: float) -> RedisConnection:
        return await greeted(network, address, self.login, until_ms)

    def forget(self) -> None:
        # Other nodes than the first may know more by now, and one that is gone knows nothing.
        known = {*self._nodes.values()} - {*self._seeds}
        self._seeds = [*self._seeds[1:], *self._seeds[:1], *known][: len(self._seeds) + 32]
        self._nodes = {}

    def moved(self, refused: Refused, address: RedisAddress) -> RedisAddress:
        found = _MOVED.match(refused.message)
        if found is None:
            raise not_sent(f"{refused.message!r} names no node")
        there = RedisAddress(found[2].strip("[]") or address.host, int(found[3]), address.tls)
        if refused.code == "MOVED":
            self._nodes[int(found[1])] = there
        return there

    async def _slots(self, network: Network, until_ms: float) -> dict[int, RedisAddress]:
        failed: RedisTrouble | None = None
        for seed in self._seeds:
            try:
                (reply,) = await _asked_once(network, seed, self.login, command("CLUSTER", "SLOTS"), until_ms)
                nodes = _nodes_of(reply, seed)
            except RedisTrouble as trouble:
                if trouble.misconfigured:
                    raise
                failed = trouble
                continue
            if isinstance(reply, Refused):
                failed = trouble_of(reply)
                if "cluster support disabled" in reply.message:
                    what = f"{seed} is no part of a cluster; use redis:// for it"
                    raise RedisTrouble(what, misconfigured="server")
            elif nodes:
                return nodes
        raise not_sent(f"no node of the cluster tells its slots: {failed}")


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Whatever a server says, it is read or it is no answer."""
    try:
        yield
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise unreadable(error) from error


def _primary_of(reply: Any, sentinel: RedisAddress) -> RedisAddress | None:
    if reply is None or isinstance(reply, Refused):
        return None
    with _reading():
        return RedisAddress(reply[0].decode(), int(reply[1]), sentinel.tls)


def _nodes_of(reply: Any, seed: RedisAddress) -> dict[int, RedisAddress]:
    nodes: dict[int, RedisAddress] = {}
    with _reading():
        for first, last, primary, *_ in () if isinstance(reply, Refused) else reply:
            if not 0 <= first <= last < SLOTS:
                raise ValueError(f"there are no slots {first} to {last}")
            host = primary[0].decode() if primary[0] else seed.host
            nodes |= dict.fromkeys(range(first, last + 1), RedisAddress(host, int(primary[1]), seed.tls))
    return nodes


def slot_of(tag: bytes) -> int:
    """The slot of all keys that begin with a tag: what stands between its braces decides."""
    return binascii.crc_hqx(tag[1:-1], 0) % SLOTS


async def greeted(
    network: Network, address: RedisAddress, login: Login, until_ms: float, *, as_primary: bool = False
) -> RedisConnection:
    """A connection on which we said who we are."""
    connection: RedisConnection = await network.connect(address, until_ms)
    words = [*login.commands(), *([("ROLE",)] if as_primary else [])]
    if not words and address.tls is None:
        return connection
    # Whether a server accepts our certificate it says in place of its first answer: it must not be a write's.
    words = words or [("PING",)]
    try:
        replies = await connection.exchange(b"".join(command(*w) for w in words), len(words), until_ms)
        for (verb, *_), reply in zip(words, replies, strict=True):
            if isinstance(reply, Refused) and verb != "PING":
                raise _unwelcome(verb, reply)
        with _reading():
            is_primary = not as_primary or cast(Any, replies[-1])[0] == b"master"
        if not is_primary:
            raise not_sent(f"{address} is no primary any more")
    except RedisTrouble as trouble:
        connection.close()
        if trouble.ambiguous:  # nothing was asked yet that could have done something
            hint = "" if address.tls is None else f"; {CLIENT_HINT}"
            raise not_sent(f"{address} did not greet: {trouble}{hint}") from trouble
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _unwelcome(verb: str, refused: Refused) -> RedisTrouble:
    trouble = trouble_of(refused)
    if verb == "SELECT":
        what = f"the database was refused: {refused.message}; choose another at the URL's end, such as /0"
        return RedisTrouble(what, misconfigured="server")
    if verb == "AUTH" and not trouble.transient:
        what = "it does not accept these credentials; correct user and password in the URL"
        return RedisTrouble(what, misconfigured="credentials")
    return trouble


async def _asked_once(
    network: Network, address: RedisAddress, login: Login, request: bytes, until_ms: float
) -> list[Reply]:
    connection = await greeted(network, address, login, until_ms)
    try:
        return await connection.exchange(request, 1, until_ms)
    finally:
        connection.close()
        with contextlib.suppress(RedisTrouble):
            await connection.closed()
