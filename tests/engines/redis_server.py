"""Redis from its Debian package: one server for a test run, which keeps nothing on disk."""

import subprocess
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from tests.engines.servers import Server, launched, program

HOST = "127.0.0.1"


def launch(port: int, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """One more server; options are those of its command line, such as ``--cluster-enabled yes``."""
    keep_nothing = ("--save", "", "--appendonly", "no")
    words = [
        program("redis-server"),
        "--bind",
        HOST,
        "--port",
        str(port),
        "--dir",
        str(folder),
        *keep_nothing,
    ]
    return launched([*words, *options], folder)


SERVER = Server("ZAE_TEST_REDIS", launch)


def fresh_prefix() -> str:
    return f"test-{uuid4().hex}"


def url(prefix: str, port: int | None = None, **options: object) -> str:
    """The URL of a store on the server, or behind another port."""
    given = "&".join(f"{name}={quote(str(value))}" for name, value in {"prefix": prefix, **options}.items())
    return f"redis://{HOST}:{port or SERVER.port()}/0?{given}"
