"""The examples as their users start them: processes of their own, with real servers, on loopback."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"

UVICORN = ("uvicorn", "--fd", "{fd}", "--log-level", "warning", "--timeout-graceful-shutdown", "30")
GUNICORN = (
    *("gunicorn", "--workers", "2", "--bind", "fd://{fd}"),
    *("--log-level", "warning", "--no-control-socket"),
)

FORGOTTEN = "<Lease of"
"""How the warning begins that somebody has forgotten a lease."""


@contextmanager
def serving(
    server: tuple[str, ...], app: str, folder: Path, *, within: Path = ROOT, **settings: str
) -> Iterator[str]:
    """The address of an application in a process of its own; whoever comes early waits until it is there.

    It has nothing to say, unless something went wrong.
    """
    log = folder / f"{server[0]}.log"
    with socket.create_server(("127.0.0.1", 0)) as listener, log.open("w") as said:
        command = [word.format(fd=listener.fileno()) for word in (*server, app)]
        process = subprocess.Popen(
            [sys.executable, "-W", f"always:{FORGOTTEN}:ResourceWarning", "-m", *command],
            cwd=within,
            env={**os.environ, **settings},
            pass_fds=[listener.fileno()],
            stdout=said,
            stderr=said,
        )
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
    text = log.read_text()
    assert text == "", text
