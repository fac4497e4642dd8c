"""PostgreSQL from its Debian package: one cluster for a test run, whose disk is not waited for."""

import subprocess
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from tests.engines.servers import Server, as_nobody, launched, program

HOST = "127.0.0.1"
USER, DATABASE = "postgres", "postgres"
IN_A_HURRY = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=300")


def launch(port: int, folder: Path, settings: tuple[str, ...] = IN_A_HURRY) -> subprocess.Popen[bytes]:
    """One more cluster in an empty folder; settings are those of its configuration file."""
    data, how = folder / "data", as_nobody()
    words = [program("initdb"), "--no-sync", "-A", "trust", "-U", USER, "-E", "UTF8", "--locale", "C", "-D"]
    subprocess.run([*words, str(data)], check=True, capture_output=True, **how)  # type: ignore[call-overload]
    return relaunch(port, folder, settings)


def relaunch(port: int, folder: Path, settings: tuple[str, ...] = IN_A_HURRY) -> subprocess.Popen[bytes]:
    """Start a cluster again that was made before."""
    given = [f"-c{one}" for one in (f"unix_socket_directories={folder}", *settings)]
    words = [program("postgres"), "-D", str(folder / "data"), "-h", HOST, "-p", str(port), *given]
    return launched(words, folder, **as_nobody())


SERVER = Server("ZAE_TEST_POSTGRES", launch)


def fresh_schema() -> str:
    return f"test_{uuid4().hex}"


def url(schema: str, port: int | None = None, **options: object) -> str:
    """The URL of a store on the server, or behind another port."""
    given = "&".join(f"{name}={quote(str(value))}" for name, value in {"schema": schema, **options}.items())
    return f"postgresql://{USER}@{HOST}:{port or SERVER.port()}/{DATABASE}?{given}"
