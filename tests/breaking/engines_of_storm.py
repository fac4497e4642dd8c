"""The servers of a storm, each with a store of its own, which can be killed and started again.

Each keeps what it has acknowledged when it is killed with SIGKILL. DynamoDB Local does (measured with eight
writers, several times), because every write is a transaction of the SQLite file beneath it; Redis and
PostgreSQL hand their log to the system before they answer. PostgreSQL does not wait for the disk (``fsync``
is off): what a killed server has handed over the system keeps, and only a crash of the machine would lose it.
For the same reason the files lie in memory where there is such a place. What is lost when a machine goes
down is not tried here.

What DynamoDB Local may forget are the tokens of transactions; so a server stays away for longer than any call
waits, and nobody repeats a transaction across its death. Like the servers of all other tests they run under a
shell that ends them when its standard input is closed.

Buckets are read past the product, as plain numbers.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Protocol

import botocore.session
import psycopg
import redis

from tests.breaking.final_checks import STATE, Bucket, buckets_of_table
from tests.engines import dynamodb_local, postgres, redis_server
from tests.postgres.schemas import conninfo
from tests.postgres.test_crashes import Cluster
from tests.redis.fleet import OwnServer
from zae_limiter.backends.dynamodb.table import create_table_request
from zae_limiter.backends.postgres.layout import create_sql

MEMORY = Path("/dev/shm")
UNTIL_TOLD = '"$@" & engine=$!; read -r how; kill "-${how:-KILL}" $engine; wait'


class Engine(Protocol):
    """What a storm does with a server."""

    port: int

    def start(self) -> None: ...

    def make_store(self) -> None:
        """One store, empty."""

    def url(self, port: int, timeout_ms: int, transport: str = "") -> str:
        """How clients open it, through whatever listens on a port."""

    def buckets(self) -> list[Bucket]: ...

    def kill(self) -> None:
        """End it with SIGKILL, wherever it is."""

    def remove(self) -> None: ...


def folder_in_memory() -> Path:
    place = MEMORY if MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="zae-limiter-storm-", dir=place))
    folder.chmod(0o777)  # PostgreSQL does not run as root
    return folder


class OwnDynamoDB:
    """DynamoDB Local on a file."""

    def __init__(self) -> None:
        self._folder, self._table = folder_in_memory(), dynamodb_local.fresh_table()
        self.port = dynamodb_local.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = dynamodb_local.launched(self.port, "-dbPath", str(self._folder), until=UNTIL_TOLD)
        dynamodb_local.wait_for_port(self.port)

    def make_store(self) -> None:
        self._driver().create_table(**create_table_request(self._table))

    def url(self, port: int, timeout_ms: int, transport: str = "") -> str:
        endpoint = f"http://127.0.0.1:{port}"
        options = {"transport": transport} if transport else {}
        return dynamodb_local.url(self._table, endpoint, timeout_ms=timeout_ms, **options)

    def buckets(self) -> list[Bucket]:
        return buckets_of_table(self._driver(), self._table)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate(b"KILL\n")

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def _driver(self) -> Any:
        endpoint, session = f"http://127.0.0.1:{self.port}", botocore.session.Session()
        return session.create_client("dynamodb", region_name="eu-west-1", endpoint_url=endpoint)


class BorrowedDynamoDB(OwnDynamoDB):
    """The engine of all tests, for a storm that spares it."""

    def __init__(self) -> None:
        self._table = dynamodb_local.fresh_table()
        self.port = int(dynamodb_local.endpoint().rpartition(":")[2])

    def start(self) -> None:
        """It runs already."""

    def kill(self) -> None:
        raise AssertionError("others need it")

    def remove(self) -> None:
        """It stays."""


class OwnRedis:
    """A server whose log is on its disk before it answers."""

    PREFIX = "storm"

    def __init__(self) -> None:
        self._folder = folder_in_memory()
        self._server: OwnServer | None = None
        self.port = 0

    def start(self) -> None:
        if self._server is None:
            self._server = OwnServer(self._folder, "--appendonly", "yes", "--appendfsync", "always")
            self.port = self._server.port
        else:
            self._server.start()

    def make_store(self) -> None:
        """It needs none."""

    def url(self, port: int, timeout_ms: int, transport: str = "") -> str:
        del transport
        return redis_server.url(self.PREFIX, port, timeout_ms=timeout_ms)

    def buckets(self) -> list[Bucket]:
        with redis.Redis(redis_server.HOST, self.port) as client:
            found = client.scan_iter(f"{{{self.PREFIX}:*}}i*{STATE}", 1_000)
            return [plain_hash(client.hgetall(key)) for key in found]  # type: ignore[arg-type]

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()

    def remove(self) -> None:
        if self._server is not None:
            self._server.stop()
        shutil.rmtree(self._folder)


def plain_hash(fields: dict[bytes, bytes]) -> Bucket:
    """The numbers and texts of an item; names that begin with NUL are the store's own."""
    return {
        name.decode(): value[1:].decode() if value[:1] == b"s" else int(value)
        for name, value in fields.items()
        if name[0] and value[:1] not in b"jtf"
    }


class OwnPostgres:
    """A cluster that hands its log to the system before it answers, and does not wait for the disk."""

    SCHEMA = "storm"

    def __init__(self) -> None:
        self._folder = folder_in_memory()
        self._cluster = Cluster(self._folder, "fsync=off", "max_connections=300")
        self.port, self._is_made = self._cluster.port, False

    def start(self) -> None:
        self._cluster.start(again=self._is_made)
        self._is_made = True

    def make_store(self) -> None:
        with psycopg.connect(conninfo(self.port), autocommit=True) as connection:
            connection.execute(create_sql(self.SCHEMA))

    def url(self, port: int, timeout_ms: int, transport: str = "") -> str:
        del transport
        return postgres.url(self.SCHEMA, port, timeout_ms=timeout_ms)

    def buckets(self) -> list[Bucket]:
        with psycopg.connect(conninfo(self.port), autocommit=True) as connection:
            asked = f"SELECT body::text FROM {self.SCHEMA}.items WHERE sk = %s"
            rows = connection.execute(asked, (STATE,)).fetchall()  # type: ignore[arg-type]
        return [json.loads(body) for (body,) in rows]

    def kill(self) -> None:
        self._cluster.kill()

    def remove(self) -> None:
        self._cluster.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


OWN: dict[str, type[OwnDynamoDB | OwnRedis | OwnPostgres]] = {
    "dynamodb": OwnDynamoDB,
    "redis": OwnRedis,
    "postgres": OwnPostgres,
}
